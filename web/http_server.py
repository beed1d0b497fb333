"""The HTTP server of the dashboard: waitress, with limits that keep one client from holding it.

One thread reads from all connections; a thread of the pool is taken only for a request that has come whole
(https://docs.pylonsproject.org/projects/waitress/).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.server import TcpWSGIServer
from waitress.task import ThreadedTaskDispatcher

from slackwater.web.streams import MAX_STREAMS

logging.getLogger("waitress").setLevel(logging.WARNING)  # it logs each viewer that leaves
# That a request waits a moment for a thread is no news; when none becomes free, the beat stops.
logging.getLogger("waitress.queue").setLevel(logging.ERROR)
THREADS = MAX_STREAMS + 24
MOST_CONNECTIONS = 400
"""With more, the oldest that waits for a request is closed for a new one. With the journal's descriptors they stay
below 1024."""
SILENT_S = 30
"""A connection on which nothing comes for this time is closed."""
MAX_REQUEST_BYTES = 64 * 1024
"""The longest head of a request, and the longest body."""
LARGEST_ANSWER_BYTES = 64 << 20
"""No thread waits until a client has read its answer: beyond a megabyte that lies in a file meanwhile."""
MOST_UNREAD_BYTES = 128 << 20
"""The most unread bytes of all connections; above it the connection that has left most unread is closed."""
BEAT_EVERY_S = 1.0


class HttpServer:
    """Listens on every address of `host`. Raises OSError.

    `beat` is called about once a second by a thread of the pool that was free, on behalf of the loop that reads: so it
    stops when either does.
    """

    def __init__(self, application: Callable[..., Any], host: str, port: int, beat: Callable[[], None]) -> None:
        self._settings = Adjustments(
            host=host,
            port=port,
            threads=THREADS,
            ident=None,
            # `Gate.client_address` reads them, and believes trusted proxies only.
            clear_untrusted_proxy_headers=False,
            connection_limit=2 * MOST_CONNECTIONS,
            channel_timeout=SILENT_S,
            cleanup_interval=5,
            outbuf_high_watermark=LARGEST_ANSWER_BYTES,
            max_request_header_size=MAX_REQUEST_BYTES,
            max_request_body_size=MAX_REQUEST_BYTES,
            asyncore_use_poll=True,
        )
        self._map: dict[int, Any] = {}
        self._threads = ThreadedTaskDispatcher()
        self._threads.set_thread_count(THREADS)
        self._beat = _Beat(beat)
        self._beat_at_s = 0.0
        self._ending = False
        self.listening = [
            _Listener(application, self._map, dispatcher=self._threads, adj=self._settings, sockinfo=address)
            for address in self._settings.listen
        ]

    def run(self) -> None:
        """Serves until `end`, and closes every connection."""
        while self._map and not self._ending:
            wasyncore.loop(timeout=BEAT_EVERY_S, map=self._map, use_poll=True, count=1)
            if time.monotonic() >= self._beat_at_s:
                self._beat_at_s = time.monotonic() + BEAT_EVERY_S
                self._threads.add_task(self._beat)
                self._close_unread()
        wasyncore.close_all(self._map, ignore_all=True)

    def _close_unread(self) -> None:
        """Closes the connections with most unread bytes, also those that waitress gave up: it waits until they can be
        written to."""
        channels = [channel for listener in self.listening for channel in listener.active_channels.values()]
        channels.sort(key=lambda channel: int(channel.total_outbufs_len))
        unread_bytes = sum(channel.total_outbufs_len for channel in channels)
        for channel in reversed(channels):
            if unread_bytes > MOST_UNREAD_BYTES or (channel.will_close and channel.total_outbufs_len):
                unread_bytes -= channel.total_outbufs_len
                channel.handle_close()

    def end(self) -> None:
        """Has `run` return, from another thread; requests that run have 2 s to end."""
        self._threads.shutdown(timeout=2)
        self._ending = True
        for listener in self.listening:
            listener.pull_trigger()


class _Listener(TcpWSGIServer):  # type: ignore[misc]
    """Keeps room for new connections."""

    def handle_accept(self) -> None:
        super().handle_accept()
        waiting = [channel for channel in self.active_channels.values() if not (channel.requests or channel.will_close)]
        if len(self.active_channels) > MOST_CONNECTIONS and waiting:
            min(waiting, key=lambda channel: channel.creation_time).will_close = True


class _Beat:
    """A task of waitress."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self.service = beat

    def cancel(self) -> None:
        """It is not needed any more."""
