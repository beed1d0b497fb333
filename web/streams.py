"""Open streams of server-sent events, one event a second (https://html.spec.whatwg.org/#server-sent-events)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from werkzeug.wsgi import ClosingIterator

EVERY_S = 1.0
RETRY_MS = 1000
MAX_STREAMS = 64
"""Each viewer holds one of the server's threads; the rest of them stay free for pages."""


class Streams:
    """The open streams: a limited number, all ended at once by `stop`."""

    def __init__(self, limit: int = MAX_STREAMS) -> None:
        self.stop = threading.Event()
        self._free = threading.BoundedSemaphore(limit)

    def open(self, event_json: Callable[[], bytes]) -> ClosingIterator | None:
        """A stream of what `event_json` gives at each time; None when there are too many.

        The server closes it when the viewer is gone.
        """
        if not self._free.acquire(blocking=False):
            return None
        return ClosingIterator(self._events(event_json), self._free.release)

    def _events(self, event_json: Callable[[], bytes]) -> Iterator[bytes]:
        yield f"retry: {RETRY_MS}\n".encode() + b"data: " + event_json() + b"\n\n"
        while not self.stop.wait(EVERY_S):
            yield b"data: " + event_json() + b"\n\n"
