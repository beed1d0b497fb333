"""Debian's cloud kernel in QEMU: what is booted, and the command. Software emulation needs no rights and no particular
processor."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from slackwater_lab.cluster.guest import last_lines, start
from slackwater_lab.cluster.paths import DEBIAN, LabError

QEMU = shutil.which("qemu-system-x86_64")
BUSYBOX = DEBIAN / "bin/busybox"
# lpj: each further CPU would measure how long its delay loops take, badly when the guest is kept waiting. This is the
# value of a counter of 5 GHz: with a slower one, the kernel's short delays are longer than it asks for, never shorter.
KERNEL_LINE = (
    "console=ttyS0 quiet panic=-1 nokaslr mitigations=off tsc=reliable no_timer_check random.trust_cpu=on lpj=20000000"
)
BARE = ("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot")


def kernel() -> Path | None:
    """The newest cloud kernel that was unpacked."""
    kernels = sorted((DEBIAN / "boot").glob("vmlinuz-*-cloud-amd64"))
    return kernels[-1] if kernels else None


def missing() -> list[str]:
    """Names of the programs and files that are missing for a guest."""
    programs = {"qemu-system-x86_64": QEMU, "busybox-static": BUSYBOX.exists(), "linux-image-cloud-amd64": kernel()}
    return [name for name, is_there in programs.items() if not is_there]


def modules(*wanted: str) -> list[Path]:
    """The files of these modules of the kernel, each after its dependencies."""
    vmlinuz = kernel()
    assert vmlinuz is not None
    folder = DEBIAN / "lib/modules" / vmlinuz.name.removeprefix("vmlinuz-")
    files = {path.stem.replace("-", "_"): path for path in folder.rglob("*.ko")}
    ordered: dict[Path, None] = {}

    def add(name: str) -> None:
        path = files[name.replace("-", "_")]
        depends = re.search(rb"\0depends=([^\0]*)\0", path.read_bytes())
        for other in depends[1].decode().split(",") if depends else ():
            if other:
                add(other)
        ordered[path] = None

    for name in wanted:
        add(name)
    return list(ordered)


def archive(files: Mapping[str, tuple[int, bytes]]) -> bytes:
    """A cpio archive ("newc", as the kernel unpacks it) of names, each with its mode and contents."""
    parts: list[bytes] = []
    for number, (name, (mode, contents)) in enumerate([*files.items(), ("TRAILER!!!", (0, b""))], 1):
        encoded = name.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(contents), 0, 0, 0, 0, len(encoded), 0)
        head = b"070701" + b"".join(b"%08x" % field for field in fields) + encoded
        for block in (head, contents):
            parts.append(block + b"\0" * (-len(block) % 4))
    return b"".join(parts)


def root_files(init: str, drivers: Sequence[Path]) -> dict[str, tuple[int, bytes]]:
    """The files of every root in memory: mount points, busybox, `init`, modules and their order."""
    files: dict[str, tuple[int, bytes]] = dict.fromkeys(("bin", "proc", "sys", "dev", "modules"), (0o040755, b""))
    files["bin/busybox"] = (0o100755, BUSYBOX.read_bytes())
    files["bin/sh"] = (0o120777, b"busybox")
    files["init"] = (0o100755, init.encode())
    files["modules/order"] = (0o100644, "".join(f"{path.stem}\n" for path in drivers).encode())
    return files | {f"modules/{path.name}": (0o100644, path.read_bytes()) for path in drivers}


def command(
    initrd: Path,
    more: Sequence[str],
    *,
    line: str,
    cpu: str,
    cpus: int,
    memory_mib: int,
) -> list[str]:
    """Starts an x86-64 guest; `line` comes behind the kernel's usual command line."""
    assert QEMU is not None
    return [
        *(QEMU, "-L", str(DEBIAN / "usr/share/qemu"), "-L", str(DEBIAN / "usr/share/seabios"), *BARE),
        *(
            "-M",
            "q35",
            "-accel",
            "tcg",
            "-cpu",
            cpu,
            "-smp",
            str(cpus),
            "-m",
            str(memory_mib),
        ),
        *("-kernel", str(kernel()), "-initrd", str(initrd), "-append", f"{KERNEL_LINE} {line}", *more),
    ]


def run_to_the_end(argv: Sequence[str], mark: str, within_s: float) -> str:
    """A guest's output until it powers itself off. Raises LabError with the last lines where `mark` is missing."""
    process = start(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    how = "ended"
    try:
        out, errors = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        how = f"did not end within {within_s:g} s"
        process.kill()
        out, errors = process.communicate()
    output = out.decode(errors="replace").replace("\r", "")
    if mark not in output:
        last = last_lines(output + errors.decode(errors="replace"))
        raise LabError(f"the guest {how} without `{mark}`:\n{last}")
    return output
