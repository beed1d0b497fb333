"""The wall clock of one of the lab's machines, stepped without touching this machine's.

`lab/slackwater_lab/native/clock.c` is preloaded into the machine's programs. It covers Python and Rust, whose wall time
comes from the C library; not nats-server (Go asks the kernel itself), and not the times of files.
"""

from __future__ import annotations

import struct
from pathlib import Path

from slackwater_lab.cluster.paths import system_program
from slackwater_lab.cluster.spawn import NATIVE, call

SOURCE = NATIVE / "clock.c"
_SECONDS = struct.Struct("=d")


def build(folder: Path) -> Path:
    """Compiles the library into a folder; gives its path. Raises LabError."""
    target = folder / "clock.so"
    call([system_program("cc"), "-O2", "-shared", "-fPIC", "-o", str(target), str(SOURCE), "-ldl", "-lm"])
    return target


class Clock:
    """The offset of a machine's wall clock, in seconds, in a file that its programs have mapped."""

    def __init__(self, path: Path, library: Path) -> None:
        self._path = path
        self._library = library
        self.offset_s = 0.0
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_SECONDS.pack(0.0))

    @property
    def env(self) -> dict[str, str]:
        """What a program's environment needs to see this clock."""
        return {"LD_PRELOAD": str(self._library), "SLACKWATER_LAB_CLOCK": str(self._path)}

    def step_to(self, offset_s: float) -> None:
        """Sets how far the clock is ahead of this machine's; running programs see it at once."""
        with self._path.open("r+b") as file:
            file.write(_SECONDS.pack(offset_s))
        self.offset_s = offset_s
