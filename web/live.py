"""Live updates: `/events` is a stream of server-sent events, one a second (https://html.spec.whatwg.org/#server-sent-events)."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from flask import Blueprint, Response, request

from web.api import as_json
from web.reader import Reader

EVERY_S = 1.0
RETRY_MS = 1000
MOST_STREAMS = 64
"""Each viewer holds one of the server's threads; the rest of them stay free for pages."""


class Streams:
    """The open streams: at most so many, all ended at once by `stop`."""

    def __init__(self, most: int = MOST_STREAMS) -> None:
        self.stop = threading.Event()
        self._free = threading.BoundedSemaphore(most)

    def open(self, reader: Reader, pool: str | None) -> Iterator[bytes] | None:
        """A stream of events, of all pools in short or of one whole; None when there are too many."""
        if not self._free.acquire(blocking=False):
            return None
        return _Stream(self, reader, pool)

    def closed(self) -> None:
        self._free.release()


class _Stream(Iterator[bytes]):
    """An iterator rather than a generator: a generator that was never begun would not run its `finally` on close."""

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
        """Called by the server when the viewer is gone or the stream at its end."""
        if self._open:
            self._open = False
            self._streams.closed()


def blueprint(reader: Reader) -> Blueprint:
    """The stream over this reader; `app.extensions["streams"]` ends all streams."""
    live = Blueprint("live", __name__)
    streams = Streams()
    live.record(lambda state: state.app.extensions.update(streams=streams))

    @live.get("/events")
    def events() -> Response:
        pool = request.args.get("pool")
        if pool is not None and reader.pool(pool) is None:
            return as_json({"error": f"no pool `{pool}`"}, 404)
        stream = streams.open(reader, pool)
        if stream is None:
            return as_json({"error": f"{MOST_STREAMS} viewers already get live updates; reload the page by hand"}, 503)
        response = Response(stream, mimetype="text/event-stream")
        response.headers["X-Accel-Buffering"] = "no"
        return response

    return live
