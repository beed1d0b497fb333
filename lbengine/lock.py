"""One writer for each backend of each HAProxy on this host: an abstract Unix socket, gone with its process (unix(7)).

The kernel tells who holds it (SO_PEERCRED). Abstract sockets belong to a network namespace: other ones are not seen.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import struct

from slackwater.config import PoolSettings

LONGEST_NAME = 107
"""sun_path is 108 bytes, the first of which says that the name is abstract."""


class LockError(Exception):
    """Somebody else drives this backend; the text says which process and what to do."""


class PoolLock:
    """Held from `acquire` until `release` or the end of the process. Usable in a `with` statement."""

    def __init__(self, pool: PoolSettings) -> None:
        self.pool = pool
        self.name = lock_name(pool.socket, pool.backend)
        self._socket: socket.socket | None = None

    def acquire(self) -> None:
        """Takes the lock; raises LockError with the pid of the process that has it."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(b"\0" + self.name)
            listener.listen(1)
        except OSError:
            listener.close()
            raise LockError(
                f"pool `{self.pool.name}`: {self._holder()} already drives backend `{self.pool.backend}` behind"
                f" {self.pool.socket}; stop that one first"
            ) from None
        self._socket = listener

    def release(self) -> None:
        """Gives the lock back; does nothing if it isn't held."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> PoolLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _holder(self) -> str:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.setblocking(False)
            asking.connect(b"\0" + self.name)
            credentials = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            return f"process {struct.unpack('3i', credentials)[0]}"
        return "another process"


def lock_name(path: str, backend: str) -> bytes:
    """The abstract socket's name; a long path is told by its hash."""
    real = os.path.realpath(path)
    name = f"slackwater/{real}/{backend}".encode()
    if len(name) > LONGEST_NAME:
        digest = hashlib.sha256(name).hexdigest()
        name = f"slackwater/{digest}".encode()
    return name
