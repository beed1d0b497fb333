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

from slackwater.core.messages import Sample, decode
from tests.support.paths import ROOT
from tests.support.qemu import BARE, archive, run_to_the_end
from tools import setup_arm64
from tools.setup_base import SetupError

GUEST = setup_arm64.FOLDER / "guest"
PACKAGES = GUEST / "root"
PROGRAMS = ("qemu-system-aarch64", setup_arm64.COMPILER, setup_arm64.ARCHIVER, setup_arm64.STRIP)
DEBIAN_PACKAGES = ("busybox-static", "linux-image-cloud-arm64")
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


def files_below(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Everything below a folder, for `archive`."""
    files: dict[str, tuple[int, bytes]] = {}
    for path in sorted(folder.rglob("*")):
        contents = b""
        if path.is_symlink():
            contents = os.fsencode(path.readlink())
        elif path.is_file():
            contents = path.read_bytes()
        files[str(path.relative_to(folder))] = (path.lstat().st_mode, contents)
    return files


def _run(command: list[str | Path]) -> None:
    done = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise NoGuest(f"`{' '.join(map(str, command[:4]))} ...` failed:\n{tail}")


def _packages() -> None:
    """Debian's arm64 kernel and libraries, unpacked once."""
    if not setup_arm64.libraries_present():
        setup_arm64.libraries_run()
    stamp = GUEST / "packages"
    wanted = " ".join(DEBIAN_PACKAGES)
    if not stamp.exists() or stamp.read_text() != wanted:
        setup_arm64.unpack(DEBIAN_PACKAGES, PACKAGES)
        stamp.write_text(wanted)


def prepare() -> Guest:
    """Makes or updates everything that is booted. Raises NoGuest."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        raise NoGuest(f"{', '.join(missing)}: not here (make setup)")
    GUEST.mkdir(parents=True, exist_ok=True)
    with _alone():
        try:
            _packages()
            setup_arm64.programs_run()  # cargo knows what has changed
        except SetupError as error:
            raise NoGuest(str(error)) from None
        files = GUEST / "files"
        shutil.rmtree(files, ignore_errors=True)
        for folder in ("bin", "dev", "etc", "lib", "proc", "sys", "tmp"):
            (files / folder).mkdir(parents=True)
        system = setup_arm64.SYSTEM
        for libraries in (system / "lib/aarch64-linux-gnu", system / "usr/lib/aarch64-linux-gnu"):
            for library in libraries.glob("lib*.so.*"):
                if library.name not in ("libc_malloc_debug.so.0", "libmemusage.so"):
                    shutil.copy(library, files / "lib" / library.name)
        shutil.copy(system / "lib/aarch64-linux-gnu/ld-linux-aarch64.so.1", files / "lib")
        shutil.copy(PACKAGES / "bin/busybox", files / "bin/busybox")
        (files / "bin/sh").symlink_to("busybox")
        _run([setup_arm64.COMPILER, "-O1", "-Wall", "-o", files / "bin/load", ROOT / "tests/support/pmu_guest_load.c"])
        shutil.copy(setup_arm64.programs() / "slackwater-monitor", files / "bin")
        _run([setup_arm64.STRIP, "-g", files / "bin/slackwater-monitor"])
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


def published(lines: str) -> list[Sample]:
    """The Samples that `load bus` printed."""
    samples = (decode("sample", bytes.fromhex(line)) for line in lines.split())
    return [sample for sample in samples if isinstance(sample, Sample)]
