"""The controller's folder: one `serve` at a time in it, and what that one runs (`serve.json`).

The lock is flock(2) on `serve.lock`. The children inherit it, so it is held until the last of them is gone, also when
the supervisor was killed.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from slackwater.core.files import STATE_DIR_MODE, as_owner, bytes_of, in_hands_of, open_file, remove, write_whole

LEFTOVERS_END_WITHIN_S = 8.0


class StateError(Exception):
    """The folder cannot be used, or another `serve` uses it; the text has what to do."""


def prepare(state_dir: str) -> Path:
    """Makes the folder if it is not there. Raises StateError when root runs this in a folder of another user, or
    nothing can be written in it."""
    path = Path(state_dir)
    owner = in_hands_of(path)
    if os.geteuid() == 0 and owner is not None:
        raise StateError(
            f"state_dir {path}: is user {owner.uid}'s, who could not use what root leaves there, and could have root"
            " write elsewhere: run `slackwater serve` as that user (`systemctl start slackwater-controller` does)"
        )
    try:
        with as_owner(path):
            path.mkdir(mode=STATE_DIR_MODE, parents=True, exist_ok=True)
        probe = path / f".write-test-{os.getpid()}"
        remove(probe)
        os.close(open_file(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        remove(probe)
    except OSError as error:
        raise StateError(f"state_dir {path}: cannot be written: {error.strerror}; who runs this must own it") from None
    return path


class ServeLock:
    """Held by the supervisor and, through `fd`, by its children."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "serve.lock"
        self.fd = -1

    def acquire(self, wait_s: float = LEFTOVERS_END_WITHIN_S) -> None:
        """Takes the lock; waits for the leftovers of a `serve` that was killed. Raises StateError."""
        fd = open_file(self._path, os.O_RDWR | os.O_CREAT, 0o640)
        deadline_s = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                pid = _pid_in(fd)
                if pid is not None and is_alive(pid):
                    problem = f"`slackwater serve` already runs on {self._path.parent} (pid {pid}); stop that one first"
                elif time.monotonic() >= deadline_s:
                    problem = f"children of an earlier `slackwater serve` still hold {self._path}: {self._leftovers()}"
                else:
                    time.sleep(0.05)
                    continue
                os.close(fd)
                raise StateError(problem) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self.fd = fd

    def release(self) -> None:
        os.ftruncate(self.fd, 0)
        os.close(self.fd)
        self.fd = -1

    def _leftovers(self) -> str:
        children = (read_serve(self._path.parent) or {}).get("children", {})
        alive = [f"{name} (pid {pid})" for name, pid in children.items() if isinstance(pid, int) and is_alive(pid)]
        return ", ".join(alive) or "unknown processes"


def running_serve(state_dir: str) -> int | None:
    """The pid of the `serve` that uses this folder, if one does and this user may see it."""
    try:
        fd = open_file(Path(state_dir) / "serve.lock", os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _pid_in(fd)
    finally:
        os.close(fd)
    return None


def is_surely_not_served(state_dir: str) -> bool:
    """Whether no `serve` uses this folder; false where this user cannot see it."""
    lock = Path(state_dir) / "serve.lock"
    try:
        os.close(open_file(lock, os.O_RDONLY))
    except FileNotFoundError:
        there = next(folder for folder in lock.absolute().parents if folder.exists())
        return os.access(there, os.R_OK | os.X_OK)
    except OSError:
        return False
    return running_serve(state_dir) is None


def write_serve(state_dir: Path, description: dict[str, Any]) -> None:
    """Replaces serve.json in one step, so that a reader never sees half of it."""
    write_whole(state_dir / "serve.json", f"{json.dumps(description, indent=2)}\n".encode())


def read_serve(state_dir: Path) -> dict[str, Any] | None:
    """The content of serve.json; None if there is none (nothing runs)."""
    try:
        description = json.loads(bytes_of(state_dir / "serve.json"))
    except (OSError, ValueError, RecursionError):
        return None
    return description if isinstance(description, dict) else None


def remove_serve(state_dir: Path) -> None:
    remove(state_dir / "serve.json")


def send_signal(state_dir: Path, pid: int, number: signal.Signals) -> None:
    """Sends a signal to a process that a file of this folder names. Raises StateError, PermissionError, and
    ProcessLookupError if it is gone.

    Who has the folder in hands may write any number there: root signals processes of that user alone.
    """
    try:
        process = os.pidfd_open(pid)
    except OSError:  # also EINVAL: no number of a process
        raise ProcessLookupError(errno.ESRCH, f"no process {pid}") from None
    try:
        owner = in_hands_of(state_dir)
        if os.geteuid() == 0 and _users_of(pid) != {owner.uid if owner else 0}:
            raise StateError(
                f"process {pid}, which {state_dir} names, belongs to another user than that folder: no signal was sent"
            )
        signal.pidfd_send_signal(process, number)
    finally:
        os.close(process)


def _users_of(pid: int) -> set[int]:
    """The real, effective and saved ids of a process's user: proc(5). Raises ProcessLookupError."""
    try:
        lines = bytes_of(Path(f"/proc/{pid}/status")).decode(errors="replace").splitlines()
    except FileNotFoundError:
        raise ProcessLookupError(errno.ESRCH, f"no process {pid}") from None
    return {int(word) for line in lines if line.startswith("Uid:") for word in line.split()[1:4]}


def _pid_in(fd: int) -> int | None:
    text = os.pread(fd, 32, 0).decode(errors="replace").strip()
    return int(text) if text.isdigit() else None


def is_alive(pid: int) -> bool:
    """Whether there is a process with this id, of any user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
