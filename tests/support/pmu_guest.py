"""An emulated arm64 machine that has hardware counters, for hosts that have none: Debian's kernel in QEMU, with the
real `slackwater-monitor` cross-built for it.

QEMU's PMU counts cycles and instructions. With `-icount shift=N` each instruction takes 2^N cycles: arithmetic can be
checked to the digit, contention can't be seen. Everything is made below `.build/`; the packages come from apt with a
private state, so the machine's own configuration is not touched.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.cluster.qemu import BARE, archive, files_below, run_to_the_end
from tests.support.paths import ROOT

BUILD = ROOT / ".build"
GUEST = BUILD / "arm64"
PACKAGES = GUEST / "root"
PROGRAMS = ("qemu-system-aarch64", "aarch64-linux-gnu-gcc", "aarch64-linux-gnu-ar", "aarch64-linux-gnu-strip")
TARGET = "aarch64-unknown-linux-gnu"
DEBIAN_PACKAGES = [
    "busybox-static",
    "libc6",
    "libcap2",
    "libdbus-1-3",
    "libgcc-s1",
    "libgcrypt20",
    "libgpg-error0",
    "liblz4-1",
    "liblzma5",
    "libpcap0.8",
    "libpfm4",
    "libsystemd0",
    "libzstd1",
]
INIT = """#!/bin/sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t tmpfs tmp /tmp
ip link set lo up
hostname guest
exec 2>&1
cd /tmp
sh /story
echo "=== end"
poweroff -f
"""


class NoGuest(Exception):
    """The machine can't be made here; the text says what is missing."""


@dataclass(frozen=True)
class Guest:
    """What is booted: a kernel and everything below its root."""

    kernel: Path
    files: Path


def _run(command: list[str | Path], *, env: dict[str, str] | None = None, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        [str(part) for part in command], env={**os.environ, **(env or {})}, cwd=cwd, capture_output=True, text=True
    )
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise NoGuest(f"`{' '.join(map(str, command[:4]))} ...` failed:\n{tail}")
    return done.stdout


def _apt_options() -> list[str]:
    """apt for arm64 on a state of its own; the sources are those of this machine that name its own release."""
    apt = GUEST / "apt"
    for folder in (apt / "lists/partial", apt / "cache/archives/partial", apt / "parts"):
        folder.mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()
    settings = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "root" if os.geteuid() == 0 else "",
        "Debug::NoLocking": "1",
        "Dir::State": apt,
        "Dir::State::Lists": apt / "lists",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt / "cache",
    }
    return [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]


def _packages() -> None:
    """Debian's arm64 kernel and libraries, unpacked once."""
    stamp = GUEST / "packages"
    wanted = " ".join(DEBIAN_PACKAGES)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    if shutil.which("apt-get") is None:
        raise NoGuest("apt-get is not here: the guest's kernel comes from Debian's packages")
    options = _apt_options()
    _run(["apt-get", *options, "update", "-q"])
    simulated = _run(["apt-get", *options, "install", "-s", "-q", "--no-install-recommends", "linux-image-cloud-arm64"])
    installed = [line.split()[1] for line in simulated.splitlines() if line.startswith("Inst ")]
    kernels = [name for name in installed if name.startswith("linux-image-") and name != "linux-image-cloud-arm64"]
    if not kernels:
        raise NoGuest("apt knows no kernel for arm64")
    archives = GUEST / "archives"
    shutil.rmtree(archives, ignore_errors=True)
    archives.mkdir(parents=True)
    _run(["apt-get", *options, "download", "-q", kernels[0], *DEBIAN_PACKAGES], cwd=archives)
    shutil.rmtree(PACKAGES, ignore_errors=True)
    PACKAGES.mkdir()
    for package in sorted(archives.glob("*.deb")):
        _run(["dpkg-deb", "-x", package, PACKAGES])
    # What the linker looks for is in a package with headers, which are not needed.
    libraries = PACKAGES / "usr/lib/aarch64-linux-gnu"
    (libraries / "libpcap.so").symlink_to("libpcap.so.0.8")
    shutil.rmtree(archives)
    shutil.rmtree(GUEST / "apt")
    stamp.write_text(wanted)


def _cross_build() -> Path:
    """`slackwater-monitor` for the guest; cargo knows what has changed."""
    cargo = shutil.which("cargo")
    if cargo is None:
        raise NoGuest("cargo is not here")
    if shutil.which("rustup") is not None:
        _run(["rustup", "target", "add", TARGET])
    upper = TARGET.upper().replace("-", "_")
    under = TARGET.replace("-", "_")
    env = {
        f"CARGO_TARGET_{upper}_LINKER": "aarch64-linux-gnu-gcc",
        f"CARGO_TARGET_{upper}_RUSTFLAGS": "-C link-arg=-Wl,--allow-shlib-undefined",
        f"CC_{under}": "aarch64-linux-gnu-gcc",
        f"AR_{under}": "aarch64-linux-gnu-ar",
        "LIBPCAP_LIBDIR": str(PACKAGES / "usr/lib/aarch64-linux-gnu"),
        "LIBPCAP_VER": "1.10.3",
    }
    _run([cargo, "build", "--locked", "-q", "-p", "slackwater-monitor", "--target", TARGET], env=env)
    return ROOT / "target" / TARGET / "debug/slackwater-monitor"


def prepare() -> Guest:
    """Makes or updates everything that is booted. Raises NoGuest."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        raise NoGuest(f"{', '.join(missing)}: not here (make setup)")
    GUEST.mkdir(parents=True, exist_ok=True)
    with _alone():
        _packages()
        monitor = _cross_build()
        files = GUEST / "files"
        shutil.rmtree(files, ignore_errors=True)
        for folder in ("bin", "dev", "etc", "lib", "proc", "sys", "tmp"):
            (files / folder).mkdir(parents=True)
        for libraries in (PACKAGES / "lib/aarch64-linux-gnu", PACKAGES / "usr/lib/aarch64-linux-gnu"):
            for library in libraries.glob("lib*.so.*"):
                if library.name not in ("libc_malloc_debug.so.0", "libmemusage.so"):
                    shutil.copy(library, files / "lib" / library.name)
        shutil.copy(PACKAGES / "lib/aarch64-linux-gnu/ld-linux-aarch64.so.1", files / "lib")
        shutil.copy(PACKAGES / "bin/busybox", files / "bin/busybox")
        (files / "bin/sh").symlink_to("busybox")
        _run(
            ["aarch64-linux-gnu-gcc", "-O1", "-Wall", "-o", files / "bin/load", ROOT / "tests/support/pmu_guest_load.c"]
        )
        shutil.copy(monitor, files / "bin/slackwater-monitor")
        _run(["aarch64-linux-gnu-strip", "-g", files / "bin/slackwater-monitor"])
        (files / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n")
        (files / "init").write_text(INIT)
        (files / "init").chmod(0o755)
        kernel = next((PACKAGES / "boot").glob("vmlinuz-*"), None)
        if kernel is None:
            raise NoGuest(f"no kernel below {PACKAGES / 'boot'}")
    return Guest(kernel, files)


@contextmanager
def _alone() -> Iterator[None]:
    """Two test runs must not build at a time."""
    with (GUEST / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def root_archive(guest: Guest, story: str) -> bytes:
    """What the guest boots from; it runs the shell script `story` as root and powers off."""
    return archive(files_below(guest.files) | {"story": (0o100644, story.encode())})


def command(guest: Guest, image: Path, *, shift: int, cpus: int = 1) -> list[str]:
    """QEMU's, for a guest whose instructions take 2^`shift` cycles each; it prints on its standard output."""
    return [
        *("qemu-system-aarch64", "-M", "virt,gic-version=3", "-cpu", "max,pauth-impdef=on", "-m", "512", *BARE),
        *("-smp", str(cpus), "-icount", f"shift={shift},sleep=off", "-serial", "stdio"),
        *("-kernel", str(guest.kernel), "-initrd", str(image)),
        *("-append", "console=ttyAMA0 quiet panic=-1 mitigations=off nokaslr rodata=off"),
    ]


def boot(guest: Guest, story: str, folder: Path, *, shift: int = 0, cpus: int = 1, timeout_s: float = 180) -> str:
    """Boots, runs the shell script `story` as root, powers off; returns what was printed.

    Each instruction takes 2^`shift` cycles. Raises LabError when the script did not come to its end.
    """
    image = folder / "initrd"
    image.write_bytes(root_archive(guest, story))
    return run_to_the_end(command(guest, image, shift=shift, cpus=cpus), "=== end", timeout_s)


def part(text: str, name: str) -> str:
    """What was printed between `=== NAME` and the next `===`."""
    start = text.index(f"=== {name}\n") + len(f"=== {name}\n")
    return text[start : text.index("===", start)]


def printed_json(text: str, name: str) -> Any:
    """The JSON of that part; lines for people around it are left out."""
    lines = part(text, name).splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith(("{", "[")))
    value, _ = json.JSONDecoder().raw_decode("\n".join(lines[start:]))
    return value
