"""The journal's open file: opened again when somebody deleted it, or one of the two files beside it, under us.

`-wal` has what was written since the last checkpoint, `-shm` where it is in there (https://sqlite.org/wal.html).
Whoever has them open goes on with the deleted ones, which nobody else finds: with the last process what was written is
gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path

from slackwater.core.files import as_owner
from slackwater.core.journal import schema
from slackwater.core.journal.schema import JournalError

log = logging.getLogger("slackwater.journal")

BESIDE = ("-wal", "-shm")
SHARED_BYTES = 0x40000002, 510
"""Start and length of what every connection to a database locks (https://sqlite.org/src/file/src/os.h)."""
NOT_THERE = 0
"""Stands for the inode of a file that is missing."""


@contextlib.contextmanager
def _held(database: Path) -> Iterator[None]:
    """Holds the database as a reader does, so that no connection takes itself for the last one. The last one would
    bring its log into the database, and remove the file of the log's name, which may be another process's by now."""
    with open(database, "rb") as file:  # noqa: PTH123 - within the block of `used`
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, *SHARED_BYTES, 0))
        yield


class Database:
    """One connection, with the rights of the folder's owner. Only one thread at a time may use it.

    Only one connection of a process has a file open for long, since SQLite shares `-shm` among all of them.
    """

    def __init__(self, path: Path, read_only: bool, wait_s: float) -> None:
        """Makes or updates the file unless `read_only`. Raises JournalError."""
        self.path = path
        self.read_only = read_only
        self._wait_s = wait_s
        self._inode = NOT_THERE
        self._beside = (NOT_THERE, NOT_THERE)
        self._log_inode = NOT_THERE
        """Inode of the write-ahead log whose name is on the disk."""
        with as_owner(path):
            self._open()

    def _open(self) -> None:
        self._inode = NOT_THERE  # if it fails, the next use tries again
        self.connection = schema.connect(self.path, self.read_only, self._wait_s)
        self._file = Path(os.path.realpath(self.path))
        """Where SQLite has the files beside it."""
        self._inode = self.path.stat().st_ino
        self._beside = self._found()

    @contextlib.contextmanager
    def used(self) -> Iterator[sqlite3.Connection]:
        """The connection, opened again if the file has gone. Raises JournalError, sqlite3.Error."""
        with as_owner(self.path):
            self._look()
            yield self.connection

    def close(self) -> None:
        with as_owner(self.path):
            self.connection.close()

    def force(self) -> None:
        """Has what was written on the disk. Raises OSError."""
        with as_owner(self.path):
            self._log_inode = schema.force_log(self._file, self._log_inode)

    def _found(self) -> tuple[int, int]:
        """The inodes of `-wal` and `-shm`. SQLite has both from the first transaction on until the last one closes."""
        inodes = []
        for name in BESIDE:
            try:
                inodes.append(os.stat(f"{self._file}{name}").st_ino)  # noqa: PTH116
            except OSError:
                inodes.append(NOT_THERE)
        return inodes[0], inodes[1]

    def _look(self) -> None:
        try:
            is_there = self.path.stat().st_ino == self._inode
        except OSError:
            is_there = False
        if not is_there:
            self.connection.close()
            self._open()
        elif not self.read_only and self._found() != self._beside:
            try:
                self._begin_anew()
            except OSError as error:
                text = f"{self.path}: its {' or '.join(BESIDE)} file was deleted, and a new one cannot be made: {error}"
                raise JournalError(text) from None

    def _begin_anew(self) -> None:
        """One process after the other. All that have the old pair share it, and look before they write."""
        folder = os.open(self._file.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            if not self._has_another_saved():
                self._save()
                log.error(
                    "%s: its %s file was deleted while in use; what it held is saved", self.path, " or ".join(BESIDE)
                )
            with _held(self._file):
                self.connection.close()
            self._open()
            # Something stands in the new log from now on: the other processes see that it is one.
            version = self.connection.execute("PRAGMA user_version").fetchone()[0]
            self.connection.execute(f"PRAGMA user_version={version}")
        finally:
            os.close(folder)

    def _has_another_saved(self) -> bool:
        """Whether another process has begun a new pair. A log in which nothing stands is of somebody who only reads."""
        (log_before, index_before), (log_now, index_now) = self._beside, self._found()
        if log_now == log_before:
            return index_now not in (index_before, NOT_THERE)
        return log_now != NOT_THERE and os.stat(f"{self._file}{BESIDE[0]}").st_size > 0  # noqa: PTH116

    def _save(self) -> None:
        """Brings what stands in the deleted log into the database, and takes away what is left of the pair. Raises
        JournalError while somebody still reads from it."""
        _, in_log, saved = self.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if in_log != saved:
            raise JournalError(
                f"{self.path}: its {BESIDE[0]} file was deleted while another process still reads it; what it held"
                " is saved at the next try"
            )
        for name in BESIDE:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self._file}{name}")  # noqa: PTH108
