"""Steps of tools/setup.py: Debian packages, unpacked below .build and never installed."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from tools.setup_base import BIN, BUILD, DEBIAN, MULTIARCH, ROOT, SetupError, need, report, run, wrap

APT = BUILD / "apt"
LIBRARY_PATH = [
    *(DEBIAN / "usr/lib" / MULTIARCH, DEBIAN / "lib" / MULTIARCH),
    *(DEBIAN / "usr/lib" / MULTIARCH / "systemd", DEBIAN / "lib" / MULTIARCH / "systemd"),
    DEBIAN / "usr/lib" / MULTIARCH / "pulseaudio",  # Chromium's
]
# Programs of the unpacked packages that are run, each through a small wrapper in .build/bin.
PROGRAMS = {
    "aarch64-linux-gnu-ar": "usr/bin/aarch64-linux-gnu-ar",
    "aarch64-linux-gnu-gcc": "usr/bin/aarch64-linux-gnu-gcc",
    "aarch64-linux-gnu-strip": "usr/bin/aarch64-linux-gnu-strip",
    "ab": "usr/bin/ab",
    "apache2": "usr/sbin/apache2",
    "apparmor_parser": "sbin/apparmor_parser",
    "apt-ftparchive": "usr/bin/apt-ftparchive",
    "busybox": "bin/busybox",
    "chrpath": "usr/bin/chrpath",
    "chromium-headless-shell": "usr/lib/chromium/chromium-headless-shell",
    "collectd": "usr/sbin/collectd",
    "haproxy": "usr/sbin/haproxy",
    "iasl": "usr/bin/iasl",
    "ipvsadm": "sbin/ipvsadm",
    "keepalived": "usr/sbin/keepalived",
    "memcached": "usr/bin/memcached",
    "memccat": "usr/bin/memccat",
    "memccp": "usr/bin/memccp",
    "mmdebstrap": "usr/bin/mmdebstrap",
    "mmtarfilter": "usr/bin/mmtarfilter",
    "nats-server": "usr/sbin/nats-server",
    "nginx": "usr/sbin/nginx",
    "openssl": "usr/bin/openssl",
    "php-fpm8.2": "usr/sbin/php-fpm8.2",
    "php8.2": "usr/bin/php8.2",
    "prometheus-node-exporter": "usr/bin/prometheus-node-exporter",
    "promtool": "usr/bin/promtool",
    "qemu-system-aarch64": "usr/bin/qemu-system-aarch64",
    "qemu-system-x86_64": "usr/bin/qemu-system-x86_64",
    "setcap": "sbin/setcap",
    "stress-ng": "usr/bin/stress-ng",
    "systemd-nspawn": "usr/bin/systemd-nspawn",
    "tcpdump": "usr/bin/tcpdump",
    "tshark": "usr/bin/tshark",
    "wrk": "usr/bin/wrk",
}
# Words that a program is always called with: the cross compiler's headers and libraries are where it was unpacked.
ALWAYS = {"aarch64-linux-gnu-gcc": f"--sysroot={DEBIAN}"}
DEMO_PROGRAMS = ("apache2", "haproxy", "nats-server", "php-fpm8.2")
DEMO_LIST, TEST_LIST = "tools/debian-packages-demo.txt", "tools/debian-packages.txt"

# --- Debian packages -------------------------------------------------------------------------------------------


def package_names(lists: Sequence[str]) -> list[str]:
    """Those of the lists; one with `[MACHINE]` behind it exists for that kind of machine only."""
    lines = [line for name in lists for line in (ROOT / name).read_text().splitlines()]
    words = [line for line in (raw.split("#")[0].split() for raw in lines) if line]
    return [name for name, *only in words if only in ([], [f"[{platform.machine()}]"])]


def apt_options(state: Path = APT) -> list[str | Path]:
    for folder in (state / "lists/partial", state / "cache/archives/partial"):
        folder.mkdir(parents=True, exist_ok=True)
    return [
        *("-o", f"Dir::State::Lists={state / 'lists'}"),
        *("-o", f"Dir::Cache={state / 'cache'}"),
        *("-o", "APT::Sandbox::User=" + ("root" if os.geteuid() == 0 else "")),
        *("-o", "Debug::NoLocking=1"),
    ]


def missing_packages(names: list[str]) -> list[str]:
    """The named packages and those of their dependencies that this machine does not have, by apt's resolver."""
    done = subprocess.run(
        ["apt-get", *map(str, apt_options()), "install", "-s", "-q", "--no-install-recommends", *names],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        raise SetupError(
            "apt cannot resolve the packages of tools/debian-packages*.txt (they are Debian 12's):\n  "
            + done.stderr.strip().replace("\n", "\n  ")
        )
    wanted = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("Inst ")]
    return sorted({*wanted, *names})


def unpack(lists: Sequence[str], programs: Iterable[str]) -> None:
    """Brings the packages of these lists, in place of those that are there, and commands for the programs."""
    names = package_names(lists)
    need("apt-get", "these programs come from Debian 12's packages: " + ", ".join(names))
    need("dpkg-deb", "it comes with every Debian")
    APT.mkdir(parents=True, exist_ok=True)
    run(["apt-get", *apt_options(), "update", "-q"])
    names = missing_packages(names)
    archives = APT / "archives"
    shutil.rmtree(archives, ignore_errors=True)
    archives.mkdir(parents=True)
    report(f"downloading and unpacking {len(names)} Debian packages into .build/debian")
    run(["apt-get", *apt_options(), "download", "-q", *names], cwd=archives)
    fresh = BUILD / "debian.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    for archive in sorted(archives.glob("*.deb")):
        run(["dpkg-deb", "-x", archive, fresh])
    shutil.rmtree(DEBIAN, ignore_errors=True)
    fresh.rename(DEBIAN)
    shutil.rmtree(APT, ignore_errors=True)
    write_wrappers(programs)


def all_run() -> None:
    unpack((DEMO_LIST, TEST_LIST), PROGRAMS)


def demo_run() -> None:
    unpack((DEMO_LIST,), DEMO_PROGRAMS)


def all_present() -> bool:
    return present(PROGRAMS)


def demo_present() -> bool:
    return present(DEMO_PROGRAMS)


def write_wrappers(programs: Iterable[str]) -> None:
    """`exec` keeps the process id, so that signals and pid files mean the program itself."""
    path = ":".join(map(str, LIBRARY_PATH))
    for name in programs:
        words = " ".join(filter(None, (str(DEBIAN / PROGRAMS[name]), ALWAYS.get(name))))
        wrap(name, f'LD_LIBRARY_PATH={path} exec {words} "$@"')


def present(programs: Iterable[str]) -> bool:
    return all((BIN / name).exists() and (DEBIAN / PROGRAMS[name]).exists() for name in programs)
