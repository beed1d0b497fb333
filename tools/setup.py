#!/usr/bin/env python3
"""Brings everything that Slackwater needs to run from a checkout into `.build/`, and nothing anywhere else.

Debian packages are downloaded with apt's own resolver on a private state and *unpacked*, never installed: no
maintainer script runs, so no service of this machine is started, stopped or enabled, and no file outside the
checkout changes (the package managers' own download caches in the home folder apart). That also works without
root. Each step is skipped when its inputs have not changed.

Uses the standard library only, since it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / ".build"
DEBIAN = BUILD / "debian"
BIN = BUILD / "bin"
VENV = BUILD / "venv"
STAMPS = BUILD / "stamps"
APT = BUILD / "apt"
"""HAProxy 3 with the libraries that it was built for, its C library among them."""

OHA_VERSION = "1.16.0"
CARGO_DENY_VERSION = "0.20.2"
MULTIARCH = f"{platform.machine()}-linux-gnu"
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
REQUIREMENTS = "requirements-dev.txt"
"""The lock of all that is needed in a checkout, the packages of the product and of the lab among them."""
RUST_BINARIES = ("slackwater-monitor", "slackwater-sniffer", "slackwater-wsengine")


class SetupError(Exception):
    """A step that cannot be done here; the message says what is missing and how to get it."""


@dataclass(frozen=True)
class Step:
    """One thing to bring in: `inputs` decide whether it is up to date, `present` whether it is still there."""

    name: str
    inputs: Callable[[], list[bytes]]
    present: Callable[[], bool]
    run: Callable[[], None]


def report(text: str) -> None:
    print(f"setup: {text}", flush=True)


def run(command: list[str | Path], *, cwd: Path = ROOT, env: dict[str, str] | None = None) -> None:
    """Runs a command with its output in .build/setup.log; on failure shows the end of it."""
    log = BUILD / "setup.log"
    with log.open("ab") as sink:
        sink.write(f"\n$ {' '.join(map(str, command))}\n".encode())
        sink.flush()
        start = sink.tell()
        done = subprocess.run(
            [str(part) for part in command],
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
        )
    if done.returncode != 0:
        with log.open("rb") as source:
            source.seek(start)
            tail = source.read().decode(errors="replace").splitlines()[-15:]
        raise SetupError(
            f"`{' '.join(map(str, command[:4]))} ...` failed with status {done.returncode} (all of it: {log})\n  "
            + "\n  ".join(tail)
        )


def need(program: str, how: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise SetupError(f"{program} is not on this machine; {how}")
    return path


# --- Debian packages -------------------------------------------------------------------------------------------


def package_names() -> list[str]:
    """Those of the list; one with `[MACHINE]` behind it exists for that kind of machine only."""
    lines = (ROOT / "tools/debian-packages.txt").read_text().splitlines()
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
            "apt cannot resolve the packages of tools/debian-packages.txt (they are Debian 12's):\n  "
            + done.stderr.strip().replace("\n", "\n  ")
        )
    wanted = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("Inst ")]
    return sorted({*wanted, *names})


def debian_run() -> None:
    need("apt-get", "these programs come from Debian 12's packages: " + ", ".join(package_names()))
    need("dpkg-deb", "it comes with every Debian")
    APT.mkdir(parents=True, exist_ok=True)
    run(["apt-get", *apt_options(), "update", "-q"])
    names = missing_packages(package_names())
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
    write_wrappers()


def write_wrappers() -> None:
    """`exec` keeps the process id, so that signals and pid files mean the program itself."""
    BIN.mkdir(parents=True, exist_ok=True)
    path = ":".join(map(str, LIBRARY_PATH))
    for name, inside in PROGRAMS.items():
        wrapper = BIN / name
        words = " ".join(filter(None, (str(DEBIAN / inside), ALWAYS.get(name))))
        wrapper.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={path} exec {words} "$@"\n')
        wrapper.chmod(0o755)


def debian_present() -> bool:
    return all((BIN / name).exists() and (DEBIAN / inside).exists() for name, inside in PROGRAMS.items())


# --- other HAProxies, to test with --------------------------------------------------------------------------------


def mirror() -> str:
    """Where this machine gets Debian 12 from."""
    targets = ["apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages"]
    done = subprocess.run(targets, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    found = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    if "bookworm" not in found:
        raise SetupError("apt names no source of Debian 12 (bookworm)")
    return found["bookworm"]


def unpack_of_release(name: str, release: str, packages: Sequence[str], folder: Path) -> None:
    """Another Debian release's packages, unpacked into `folder`."""
    need("apt-get", f"{name} comes from Debian's packages")
    state = BUILD / f"apt-{release}"
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
    """A newer Debian's HAProxy, started by its own dynamic linker, so that this machine's C library doesn't matter.
    Reloads start argv[0] anew: that is the wrapper."""
    unpack_of_release(name, release, HAPROXY_PACKAGES, folder)
    linker = next(iter(sorted(folder.glob("usr/lib*/**/ld-linux-*.so.*"))), None)
    if linker is None:
        raise SetupError(f"libc6 of {release} has no dynamic linker where it was expected")
    start = f'--library-path {folder}/usr/lib/{MULTIARCH} --argv0 "$0" {folder}/usr/sbin/haproxy'
    wrap(name, f'exec {linker} {start} "$@"')


def older_haproxy(name: str, release: str, folder: Path) -> None:
    """An older Debian's HAProxy. Reloads start argv[0] anew: that is the program, and the environment is the same."""
    unpack_of_release(name, release, OLDER_HAPROXY_PACKAGES, folder)
    libraries = f"{folder}/usr/lib/{MULTIARCH}:{folder}/lib/{MULTIARCH}"
    wrap(name, f'LD_LIBRARY_PATH={libraries} exec {folder}/usr/sbin/haproxy "$@"')


def wrap(name: str, command: str) -> None:
    """A command in .build/bin."""
    BIN.mkdir(parents=True, exist_ok=True)
    (BIN / name).write_text(f"#!/bin/sh\n{command}\n")
    (BIN / name).chmod(0o755)


def other_haproxies_or_not() -> None:
    """Without one the tests that want it are skipped; nothing else needs it."""
    for haproxies, bring in ((NEWER_HAPROXIES, newer_haproxy), (OLDER_HAPROXIES, older_haproxy)):
        for name, (release, folder) in haproxies.items():
            try:
                bring(name, release, BUILD / folder)
            except SetupError as error:
                report(f"no {name} here, which some tests would like: {error}")


# --- Python ----------------------------------------------------------------------------------------------------


def python_run() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 - this file runs before anything checked the version
        raise SetupError(f"python3 is {platform.python_version()}; 3.11 or newer is needed (Debian 12 has it)")
    if not (VENV / "bin/python").exists():
        try:
            run([sys.executable, "-m", "venv", VENV])
        except SetupError as error:
            raise SetupError(f"{error}\n  On a plain Debian: apt-get install python3-venv") from None
    pip: list[str | Path] = [VENV / "bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    report("installing the pinned Python packages into .build/venv")
    run([*pip, "--require-hashes", "-r", ROOT / REQUIREMENTS])
    run([*pip, "--no-deps", "--no-build-isolation", "-e", ROOT])
    BIN.mkdir(parents=True, exist_ok=True)
    link(BIN / "slackwater", VENV / "bin/slackwater")


def link(place: Path, target: Path) -> None:
    place.unlink(missing_ok=True)
    place.symlink_to(target)


# --- Rust ------------------------------------------------------------------------------------------------------


def rust_sources() -> list[bytes]:
    """Names, sizes and times: cargo itself decides what to rebuild, this only spares calling it."""
    files = [ROOT / "Cargo.toml", ROOT / "Cargo.lock", *ROOT.glob(".cargo/*")]
    for crate in ("messages", "node", "sniffer", "monitor", "wsengine"):
        files += [ROOT / crate / "Cargo.toml", *sorted((ROOT / crate / "src").rglob("*.rs"))]
    return [f"{path}:{path.stat().st_size}:{path.stat().st_mtime_ns}".encode() for path in files if path.exists()]


def rust_run() -> None:
    need("cargo", "install Rust 1.89 or newer (https://rustup.rs, or Debian's rustup)")
    need("cc", "apt-get install gcc libc6-dev")
    report("building the Rust binaries (release)")
    run(["cargo", "build", "--release", "--locked", "--workspace"])
    BIN.mkdir(parents=True, exist_ok=True)
    for name in RUST_BINARIES:
        link(BIN / name, ROOT / "target/release" / name)


def oha_run() -> None:
    need("cargo", "install Rust 1.89 or newer (https://rustup.rs, or Debian's rustup)")
    report(f"building the load generator oha {OHA_VERSION} (once, some minutes)")
    target = BUILD / "oha-target"
    command: list[str | Path] = ["cargo", "install", "oha", "--version", OHA_VERSION, "--locked", "--force"]
    run([*command, "--no-default-features", "--features", "rustls", "--root", BUILD, "--target-dir", target])
    shutil.rmtree(target, ignore_errors=True)


def cargo_deny_or_not() -> None:
    """Without it `make lint` leaves out what it checks, and says so; nothing else needs it."""
    report(f"building cargo-deny {CARGO_DENY_VERSION} (once, some minutes)")
    target = BUILD / "cargo-deny-target"
    command: list[str | Path] = ["cargo", "install", "cargo-deny", "--version", CARGO_DENY_VERSION, "--locked"]
    try:
        run([*command, "--force", "--no-default-features", "--root", BUILD, "--target-dir", target])
    except SetupError as error:
        report(f"no cargo-deny here: {error}")
    shutil.rmtree(target, ignore_errors=True)


def browser_run() -> None:
    """What the dashboard's tests drive a browser with, from the npm registry, as package-lock.json names it."""
    need("npm", "apt-get install npm, or Node.js 20 from elsewhere; the browser tests need it")
    folder = BUILD / "browser"
    folder.mkdir(exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(ROOT / "tests/browser" / name, folder / name)
    run(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=folder)


def browser_or_not() -> None:
    """Without it the browser tests are skipped, and say so; nothing else needs it."""
    try:
        browser_run()
    except SetupError as error:
        report(f"no browser tests here: {error}")


def contents(*names: str) -> Callable[[], list[bytes]]:
    return lambda: [str(ROOT).encode(), *((ROOT / name).read_bytes() for name in names)]


STEPS = (
    Step("Debian packages", contents("tools/debian-packages.txt", "tools/setup.py"), debian_present, debian_run),
    Step(
        "Python packages",
        contents(REQUIREMENTS, "pyproject.toml"),
        lambda: (VENV / "bin/slackwater").exists(),
        python_run,
    ),
    Step(
        "browser tests",
        contents("tests/browser/package.json", "tests/browser/package-lock.json"),
        lambda: (BUILD / "browser/node_modules/playwright-core").exists(),
        browser_or_not,
    ),
    Step(
        "other HAProxies",
        lambda: [
            str(ROOT).encode(),
            repr((NEWER_HAPROXIES, OLDER_HAPROXIES)).encode(),
            *(name.encode() for name in (*HAPROXY_PACKAGES, *OLDER_HAPROXY_PACKAGES)),
        ],
        lambda: all((BIN / name).exists() for name in (*NEWER_HAPROXIES, *OLDER_HAPROXIES)),
        other_haproxies_or_not,
    ),
    Step("load generator", lambda: [OHA_VERSION.encode()], lambda: (BIN / "oha").exists(), oha_run),
    Step(
        "cargo-deny",
        lambda: [CARGO_DENY_VERSION.encode()],
        lambda: (BIN / "cargo-deny").exists(),
        cargo_deny_or_not,
    ),
    Step(
        "Rust binaries",
        rust_sources,
        lambda: all((ROOT / "target/release" / name).exists() for name in RUST_BINARIES),
        rust_run,
    ),
)


def up_to_date(step: Step, digest: str) -> bool:
    stamp = STAMPS / step.name.replace(" ", "-")
    return stamp.exists() and stamp.read_text() == digest and step.present()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, epilog="Example: tools/setup.py"
    )
    parser.parse_args()
    STAMPS.mkdir(parents=True, exist_ok=True)
    failures = []
    for step in STEPS:
        digest = hashlib.sha256(b"\0".join(step.inputs())).hexdigest()
        if up_to_date(step, digest):
            continue
        started = time.monotonic()
        try:
            step.run()
        except SetupError as error:
            failures.append(f"{step.name}: {error}")
            report(f"{step.name}: FAILED after {time.monotonic() - started:.0f} s")
            continue
        (STAMPS / step.name.replace(" ", "-")).write_text(digest)
        report(f"{step.name}: done in {time.monotonic() - started:.0f} s")
    for failure in failures:
        print(f"setup: error: {failure}", file=sys.stderr)
    if not failures:
        report("everything is in place")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
