"""One writer on this host for each thing that a pool drives.

The lock is an abstract Unix socket, gone with its process.

The kernel knows who holds it (unix(7), SO_PEERCRED). Abstract sockets belong to a network namespace: locks in others
are not seen.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import struct

from lbengine.backends.table import targets_of
from slackwater.config import PoolSettings

LONGEST_NAME = 107
"""sun_path is 108 bytes, the first of which marks an abstract name."""


class LockError(Exception):
    """Somebody else drives this; the text names the process and what to do."""


class PoolLock:
    """Held from `acquire` until `release` or the end of the process. Usable in a `with` statement."""

    def __init__(self, pool: PoolSettings) -> None:
        self.pool = pool
        self.names = {target.place: lock_name(target.lock) for target in targets_of(pool)}
        self._sockets: list[socket.socket] = []

    def acquire(self) -> None:
        """Takes the lock; raises LockError with the pid of the process that has it."""
        for place, name in self.names.items():
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                listener.bind(b"\0" + name)
                listener.listen(1)
            except OSError:
                listener.close()
                self.release()
                raise LockError(
                    f"pool `{self.pool.name}`: {_holder(name)} already drives {place}; stop that one first"
                ) from None
            self._sockets.append(listener)

    def release(self) -> None:
        """Gives the lock back; does nothing if it isn't held."""
        while self._sockets:
            self._sockets.pop().close()

    def __enter__(self) -> PoolLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _holder(name: bytes) -> str:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        asking.connect(b"\0" + name)
        credentials = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return f"process {struct.unpack('3i', credentials)[0]}"
    return "another process"


def lock_name(text: str) -> bytes:
    """The abstract socket's name: the text, or its hash where that is too long."""
    name = text.encode()
    if len(name) > LONGEST_NAME:
        digest = hashlib.sha256(name).hexdigest()
        name = f"slackwater/{digest}".encode()
    return name
