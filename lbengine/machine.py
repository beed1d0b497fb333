"""Which machine this is. Host names do not tell: two machines of a site may have the same one."""

from __future__ import annotations

import socket
from functools import cache
from pathlib import Path

MACHINE_ID = Path("/etc/machine-id")
"""machine-id(5): made at the first boot, and kept."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PID_NAMESPACE = Path("/proc/self/ns/pid")


@cache
def machine_id() -> str:
    """The same after a reboot; the host name where the machine has no id, as in some containers."""
    return _first_line(MACHINE_ID) or socket.gethostname()


@cache
def process_space() -> str:
    """Where a process id means the same process: this machine, this boot, this process namespace."""
    return f"{machine_id()} {_first_line(BOOT_ID)} {PID_NAMESPACE.readlink()}"


def _first_line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
