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
    "virtiofsd": "usr/lib/qemu/virtiofsd",
    "wrk": "usr/bin/wrk",
}
# Words that a program is always called with: the cross compiler's headers and libraries are where it was unpacked.
ALWAYS = {"aarch64-linux-gnu-gcc": f"--sysroot={DEBIAN}"}
DEMO_PROGRAMS = ("apache2", "haproxy", "nats-server", "php-fpm8.2")
DEMO_LIST, TEST_LIST = "tools/debian-packages-demo.txt", "tools/debian-packages.txt"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
NEWER_HAPROXIES = {"haproxy-3": ("trixie", "debian-13"), "haproxy-3.2": ("forky", "debian-14")}
"""Command -> the Debian release that has it, and the folder in .build that it is unpacked into."""
HAPROXY_PACKAGES = (
    *("haproxy", "libc6", "libcrypt1", "libgcc-s1", "libjemalloc2", "liblua5.4-0", "libopentracing-c-wrapper0t64"),
    *("libopentracing1", "libpcre2-8-0", "libssl3t64", "libstdc++6", "libzstd1", "zlib1g"),
)
"""Those that a newer release's HAProxy loads."""
OLDER_HAPROXIES = {"haproxy-2.2": ("bullseye", "debian-11")}
OLDER_HAPROXY_PACKAGES = (
    *("haproxy", "libcrypt1", "libgcrypt20", "libgpg-error0", "liblua5.3-0", "liblz4-1", "liblzma5", "libpcre2-8-0"),
    *("libssl1.1", "libsystemd0", "libzstd1", "zlib1g"),
)
"""Those that an older release's HAProxy loads, but for the C library: this machine's is newer and does."""
NEWER_PYTHON, NEWER_PYTHON_FOLDER = "python3.13", BUILD / "debian-13-python"
"""Debian 13's Python, which compiles that release's package of the controller."""
NEWER_PYTHON_PACKAGES = (
    *("python3.13-minimal", "libpython3.13-minimal", "libpython3.13-stdlib", "libc6", "libexpat1", "zlib1g"),
)
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


# --- other releases' programs --------------------------------------------------------------------------------


def mirror() -> str:
    """Where this machine gets Debian 12 from."""
    targets = ["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages"]
    done = subprocess.run(targets, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    found = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    if "bookworm" not in found:
        raise SetupError("apt names no source of Debian 12 (bookworm)")
    return found["bookworm"]


def unpack_of_release(name: str, release: str, packages: Sequence[str], folder: Path) -> None:
    """Another Debian release's packages, unpacked into `folder`. Steps of setup that want the same release run at the
    same time, so apt's state belongs to the folder."""
    need("apt-get", f"{name} comes from Debian's packages")
    state = BUILD / f"apt-of-{folder.name}"
    options = apt_options(state)
    sources, archives = state / "sources.list", state / "archives"
    sources.write_text(f"deb [signed-by={KEYRING}] {mirror()} {release} main\n")
    options += ["-o", f"Dir::Etc::SourceList={sources}", "-o", "Dir::Etc::SourceParts=/dev/null"]
    archives.mkdir(exist_ok=True)
    run(["apt-get", *options, "update", "-q"])
    run(["apt-get", *options, "download", "-q", *(f"{package}/{release}" for package in packages)], cwd=archives)
    shutil.rmtree(folder, ignore_errors=True)
    for archive in sorted(archives.glob("*.deb")):
        run(["dpkg-deb", "-x", archive, folder])
    shutil.rmtree(state, ignore_errors=True)


def newer_haproxy(name: str, release: str, folder: Path) -> None:
    """A newer Debian's HAProxy. Reloads start argv[0] anew: that is the wrapper."""
    unpack_of_release(name, release, HAPROXY_PACKAGES, folder)
    wrap(name, f"exec {start_of_release(release, folder, 'usr/sbin/haproxy')}")


def newer_python() -> None:
    """Debian 13's Python."""
    unpack_of_release(NEWER_PYTHON, "trixie", NEWER_PYTHON_PACKAGES, NEWER_PYTHON_FOLDER)
    start = start_of_release("trixie", NEWER_PYTHON_FOLDER, f"usr/bin/{NEWER_PYTHON}")
    wrap(NEWER_PYTHON, f"PYTHONHOME={NEWER_PYTHON_FOLDER}/usr exec {start}")


def newer_python_present() -> bool:
    return (BIN / NEWER_PYTHON).exists()


def start_of_release(release: str, folder: Path, program: str) -> str:
    """How a newer release's program is started: by its own dynamic linker, so that this machine's C library doesn't
    matter."""
    linker = next(iter(sorted(folder.glob("usr/lib*/**/ld-linux-*.so.*"))), None)
    if linker is None:
        raise SetupError(f"libc6 of {release} has no dynamic linker where it was expected")
    return f'{linker} --library-path {folder}/usr/lib/{MULTIARCH} --argv0 "$0" {folder}/{program} "$@"'


def older_haproxy(name: str, release: str, folder: Path) -> None:
    """An older Debian's HAProxy. Reloads start argv[0] anew: that is the program, and the environment is the same."""
    unpack_of_release(name, release, OLDER_HAPROXY_PACKAGES, folder)
    libraries = f"{folder}/usr/lib/{MULTIARCH}:{folder}/lib/{MULTIARCH}"
    wrap(name, f'LD_LIBRARY_PATH={libraries} exec {folder}/usr/sbin/haproxy "$@"')


def other_haproxies_inputs() -> list[bytes]:
    return [
        str(ROOT).encode(),
        repr((NEWER_HAPROXIES, OLDER_HAPROXIES)).encode(),
        *(name.encode() for name in (*HAPROXY_PACKAGES, *OLDER_HAPROXY_PACKAGES)),
    ]


def other_haproxies_present() -> bool:
    return all((BIN / name).exists() for name in (*NEWER_HAPROXIES, *OLDER_HAPROXIES))


def other_haproxies() -> None:
    """Without one the tests that want it are skipped; nothing else needs it."""
    for haproxies, bring in ((NEWER_HAPROXIES, newer_haproxy), (OLDER_HAPROXIES, older_haproxy)):
        for name, (release, folder) in haproxies.items():
            try:
                bring(name, release, BUILD / folder)
            except SetupError as error:
                report(f"no {name} here, which some tests would like: {error}")
