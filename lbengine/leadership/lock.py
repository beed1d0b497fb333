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
from collections.abc import Iterator

from lbengine.backends.table import targets_of
from slackwater.config import PoolSettings

LONGEST_NAME = 107
"""sun_path is 108 bytes, the first of which marks an abstract name."""


class LockError(Exception):
    """Somebody else drives this; the text names the process and what to do."""


@contextlib.contextmanager
def pool_lock(pool: PoolSettings) -> Iterator[None]:
    """Held within the `with` statement, or until the process ends. Raises LockError with the pid of the holder."""
    with contextlib.ExitStack() as held:
        for target in targets_of(pool):
            listener = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            name = lock_name(target.lock)
            try:
                listener.bind(b"\0" + name)
                listener.listen(1)
            except OSError:
                what = f"{_holder(name)} already drives {target.place}"
                raise LockError(f"pool `{pool.name}`: {what}; stop that one first") from None
        yield


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
