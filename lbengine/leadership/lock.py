"""One writer for each backend behind each HAProxy socket, and for each service of IPVS, on this host.

The lock is an abstract Unix socket, gone with its process.

The kernel tells who holds it (unix(7), SO_PEERCRED). Abstract sockets belong to a network namespace, as IPVS's
table does: others are not seen.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import struct

from slackwater.config import TCP, PoolSettings, place_in_words

LONGEST_NAME = 107
"""sun_path is 108 bytes, the first of which says that the name is abstract."""


class LockError(Exception):
    """Somebody else drives this; the text says which process and what to do."""


class PoolLock:
    """Held from `acquire` until `release` or the end of the process. Usable in a `with` statement."""

    def __init__(self, pool: PoolSettings) -> None:
        self.pool = pool
        self.names = {
            place_in_words(pool.balancer, "", pool.backend, path): lock_name(path, pool.backend)
            for path in pool.all_sockets
        }
        if pool.service:  # one lock for both doors to the table
            self.names[pool.place] = _fitting(f"slackwater/ipvs/{pool.service}")
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


def lock_name(path: str, backend: str) -> bytes:
    """The abstract socket's name for a backend behind HAProxy's socket."""
    real = path if path.startswith(TCP) else os.path.realpath(path)
    return _fitting(f"slackwater/{real}/{backend}")


def _fitting(text: str) -> bytes:
    """A long name is told by its hash."""
    name = text.encode()
    if len(name) > LONGEST_NAME:
        digest = hashlib.sha256(name).hexdigest()
        name = f"slackwater/{digest}".encode()
    return name
