"""Which machine and which process this is. Host names do not tell: two machines of a site may have the same one."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from slackwater.core.files import bytes_of, replacing

MACHINE_ID = Path("/etc/machine-id")
"""machine-id(5): made at the first boot, and kept."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PID_NAMESPACE = Path("/proc/self/ns/pid")


@cache
def machine_id() -> str:
    """The machine's id, the same after a reboot; the host name where it has none, as in some containers."""
    return _first_line(MACHINE_ID) or socket.gethostname()


@cache
def process_space() -> str:
    """Where a process id means the same process: this machine, this boot, this process namespace."""
    return f"{machine_id()} {_first_line(BOOT_ID)} {PID_NAMESPACE.readlink()}"


@cache
def kernel_id() -> str:
    """The id of the running kernel: the same in all its containers, and another one in a clone of this machine."""
    return _first_line(BOOT_ID) or machine_id()


@cache
def folder_id(state_dir: str) -> str:
    """The state folder's id, for all that run on it: random, and kept in the folder.

    Clones of a machine have the same machine id, and the same paths. Where it cannot be kept it is this process's
    alone.
    """
    path, fresh = Path(state_dir) / "id", uuid.uuid4().hex
    line = _first_line(path)
    if re.fullmatch("[0-9a-f]{32}", line):
        return line
    if path.parent.is_dir():
        with contextlib.suppress(OSError), replacing(path) as draft:
            draft.write_text(f"{fresh}\n")
    return fresh


def controller_id(state_dir: str | Path) -> str:
    """The id that all parts of one controller share, and no other controller has: they share a state folder, and see
    each other."""
    return hashlib.sha256(f"{process_space()} {os.path.realpath(state_dir)}".encode()).hexdigest()[:16]


def _unknown(_pid: int) -> bool:
    return False


def has_ended(pid: int) -> bool:
    """Whether there is no process of this id any more, where this process runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


@dataclass(frozen=True)
class Process:
    """A process as others tell it apart, and how it finds out whether another one of its `space` has ended."""

    host: str
    """Name of the host, for people."""
    space: str
    """The space of processes (`process_space`)."""
    pid: int
    has_ended: Callable[[int], bool] = has_ended


def this_process() -> Process:
    """Without the boot's id a process of a copy of this machine looks like our own, so none is said to have ended."""
    return Process(socket.gethostname(), process_space(), os.getpid(), has_ended if _first_line(BOOT_ID) else _unknown)


def _first_line(path: Path) -> str:
    try:
        return bytes_of(path).decode().strip()
    except (OSError, UnicodeDecodeError):
        return ""
