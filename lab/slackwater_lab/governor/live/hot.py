"""Events of a hot function, as slackwater-wsengine takes them: lines `begin NAME` and `end NAME` on a Unix socket.

A request has a connection, whose end takes it out of all of its functions. The core is that of the process at the other
end, which is pinned to it.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Self

from slackwater.governor.types import HotEvent
from slackwater_lab.cluster.background import Background

LOOK_S = 0.2
LINES_BYTES = 4096


class HotEvents(Background):
    """Inside `with` the socket is there; `drain` gives what came since the last time."""

    def __init__(self, place: Path) -> None:
        super().__init__("hot-events")
        self._place = place
        self._server = socket.socket(socket.AF_UNIX)
        self._selector = selectors.DefaultSelector()
        self._found: list[HotEvent] = []
        self._inside: Counter[int] = Counter()
        """Core -> requests in a hot function there: with several it is left when the last one leaves."""
        self._lock = threading.Lock()

    def drain(self) -> tuple[HotEvent, ...]:
        with self._lock:
            events, self._found = self._found, []
        return tuple(events)

    def _run(self) -> None:
        depth: dict[int, tuple[int, int]] = {}
        """Descriptor -> the core at its first event, and how many functions deep it is."""
        while not self._end.is_set():
            for ready, _ in self._selector.select(LOOK_S):
                if ready.fileobj is self._server:
                    self._selector.register(self._server.accept()[0], selectors.EVENT_READ)
                    continue
                connection = ready.fileobj
                assert isinstance(connection, socket.socket)
                try:
                    data = connection.recv(LINES_BYTES)
                except OSError:
                    data = b""
                core, deep = depth.get(ready.fd) or (core_of(connection), 0)
                after = max(0, deep + data.count(b"begin ") - data.count(b"end ")) if data else 0
                if data.count(b"begin ") and not deep:
                    self._say(core, True)
                if not after and (deep or data.count(b"begin ")):
                    self._say(core, False)
                depth[ready.fd] = core, after
                if not data:
                    del depth[ready.fd]
                    self._selector.unregister(connection)
                    connection.close()

    def _say(self, core: int, entered: bool) -> None:
        self._inside[core] += 1 if entered else -1
        if self._inside[core] == (1 if entered else 0):
            with self._lock:
                self._found.append(HotEvent(core, time.monotonic(), entered))

    def __enter__(self) -> Self:
        self._server.bind(str(self._place))
        self._place.chmod(0o660)
        self._server.listen(64)
        self._selector.register(self._server, selectors.EVENT_READ)
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for known in list(self._selector.get_map().values()):
            assert isinstance(known.fileobj, socket.socket)
            known.fileobj.close()
        self._selector.close()
        self._place.unlink(missing_ok=True)


def core_of(connection: socket.socket) -> int:
    """The first core that the process at the other end may run on; 0 if it is gone (unix(7), SO_PEERCRED)."""
    pid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    try:
        return min(os.sched_getaffinity(pid))
    except ProcessLookupError:
        return 0
