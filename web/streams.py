"""Open streams of server-sent events, one event a second (https://html.spec.whatwg.org/#server-sent-events)."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from web.reader import Reader

EVERY_S = 1.0
RETRY_MS = 1000
MAX_STREAMS = 64
"""Each viewer holds one of the server's threads; the rest of them stay free for pages."""


class Streams:
    """The open streams: a limited number, all ended at once by `stop`."""

    def __init__(self, limit: int = MAX_STREAMS) -> None:
        self.stop = threading.Event()
        self._free = threading.BoundedSemaphore(limit)

    def open(self, reader: Reader, pool: str | None) -> Iterator[bytes] | None:
        """A stream of events, of all pools in short or of one whole; None when there are too many."""
        if not self._free.acquire(blocking=False):
            return None
        return _Stream(self, reader, pool)

    def closed(self) -> None:
        self._free.release()


class _Stream(Iterator[bytes]):
    """An iterator, not a generator: the `finally` of a generator that never started does not run on close."""

    def __init__(self, streams: Streams, reader: Reader, pool: str | None) -> None:
        self._streams = streams
        self._pool = pool
        self._reader = reader
        self._first = True
        self._open = True

    def __next__(self) -> bytes:
        if not self._first and self._streams.stop.wait(EVERY_S):
            raise StopIteration
        head = f"retry: {RETRY_MS}\n".encode() if self._first else b""
        self._first = False
        return head + b"data: " + self._reader.event_json(self._pool) + b"\n\n"

    def close(self) -> None:
        """Called by the server when the viewer is gone or the stream has ended."""
        if self._open:
            self._open = False
            self._streams.closed()
