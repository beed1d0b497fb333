"""Locks on this host: each thing that a pool drives has at most one writer.

A lock is flock(2) on a file with the holder's pid, in a folder where no other user can make or open files. Balancers
belong to a network namespace, and so do their locks: a lock in another namespace is not seen.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from slackwater.core.config import PoolSettings
from slackwater.core.files import PRIVATE, as_owner, bytes_of, open_file, remove
from slackwater.lbengine.backends.table import targets_of
from slackwater.lbengine.balancer import Target

SYSTEM_FOLDER = Path("/run/slackwater")


class LockError(Exception):
    """Another process holds a lock, or there is no place for it. The text says what to do."""


class HeldError(LockError):
    """Another process holds a lock."""


def lock_folder(state_dir: Path) -> Path:
    """The folder of this user's locks.

    It is `/run/slackwater`, which root and the service share; without a right to it a folder below the user's
    `XDG_RUNTIME_DIR`; without that a folder below `state_dir`, where only controllers with the same `state_dir` exclude
    each other.
    """
    personal = os.environ.get("XDG_RUNTIME_DIR")
    for folder in [SYSTEM_FOLDER, *([Path(personal) / "slackwater"] if personal else [])]:
        with contextlib.suppress(OSError), as_owner(folder):
            folder.mkdir(mode=0o700, exist_ok=True)
            if is_ours(folder):
                return folder
    return state_dir / "locks"


def is_ours(folder: Path) -> bool:
    """Whether we can lock files in a folder and no other user can; root shares the service's folder. Raises OSError."""
    status = folder.lstat()
    private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o022
    owned = status.st_uid == os.geteuid() or (os.geteuid() == 0 and folder == SYSTEM_FOLDER)
    return private and owned and os.access(folder, os.W_OK | os.X_OK)


class PoolLocks:
    """The locks on all targets of a set of pools. They are held until `keep_only` or `release` gives them back, or the
    process ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, contextlib.ExitStack] = {}
        """Name of the target's lock -> what holds it."""

    def take(self, pools: Iterable[PoolSettings]) -> None:
        """Takes the locks that are not held yet: all, or none. Raises LockError, with the pid of a holder."""
        taken: dict[str, contextlib.ExitStack] = {}
        try:
            for pool in pools:
                for target in targets_of(pool):
                    if target.lock not in self._held and target.lock not in taken:
                        held = contextlib.ExitStack()
                        held.enter_context(_target_lock(pool, target, self._folder))
                        taken[target.lock] = held
        except LockError:
            for held in taken.values():
                held.close()
            raise
        self._held |= taken

    def keep_only(self, pools: Iterable[PoolSettings]) -> None:
        """Gives back all locks but those of these pools."""
        wanted = {target.lock for pool in pools for target in targets_of(pool)}
        for lock in self._held.keys() - wanted:
            self._held.pop(lock).close()

    def release(self) -> None:
        self.keep_only(())


@contextlib.contextmanager
def _target_lock(pool: PoolSettings, target: Target, folder: Path) -> Iterator[None]:
    path = folder / lock_name(target.lock)
    with contextlib.ExitStack() as held:
        try:
            with as_owner(folder):
                folder.mkdir(mode=0o700, exist_ok=True)
            if not is_ours(folder):
                raise LockError(f"pool `{pool.name}`: {folder} must belong to this user, and to no other")
            held.enter_context(_locked(path))
        except BlockingIOError:
            held_by = f"{_holder(path)} already drives {target.place}"
            raise HeldError(f"pool `{pool.name}`: {held_by}; stop that one first") from None
        except OSError as error:
            raise LockError(f"pool `{pool.name}`: {path}: cannot be locked: {error.strerror}") from None
        yield


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the lock on a file. Raises BlockingIOError when another process has it, OSError."""
    while True:
        fd = open_file(path, os.O_RDWR | os.O_CREAT, PRIVATE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, fd):
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
                yield
                remove(path)
                return
        finally:
            os.close(fd)


def _is_at(path: Path, fd: int) -> bool:
    """Whether the open file is still the one at `path`. Its last holder may have removed it before we had the lock."""
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def _holder(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        return f"process {int(bytes_of(path))}"
    return "another process"


def lock_name(text: str) -> str:
    """Name of the lock's file for a target (`Target.lock`) in this network namespace."""
    namespace = Path("/proc/self/ns/net").readlink()
    return f"{hashlib.sha256(f'{namespace}/{text}'.encode()).hexdigest()}.lock"
