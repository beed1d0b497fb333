"""What the page of all servers reads: their present states once a second, what they lost every few seconds."""

from __future__ import annotations

import threading

import msgspec

from slackwater.core.journal.journal import Journal, JournalError
from slackwater.views.pool import no_view
from slackwater.web.content import harm
from slackwater.web.content.fleet import FleetServer, servers_of, summary
from slackwater.web.content.harm import HarmMap
from slackwater.web.reader import FRESH_S, JournalReader

HARM_FRESH_S = 5.0


class FleetEvent(msgspec.Struct):
    """Sent to each viewer of the page every second."""

    time_unix_s: float
    error: str
    """Why the journal cannot be read; empty otherwise."""
    silent: list[str]
    """Pools whose controller is silent."""
    summary: str
    servers: list[FleetServer]


class Fleet:
    """Reads for all viewers at once. May be used from several threads."""

    def __init__(self, reader: JournalReader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._event = FleetEvent(0.0, "", [], "", [])
        self._json = b""
        self._harm_lock = threading.Lock()
        self._harm: dict[str, tuple[float, HarmMap, bytes]] = {}

    def event(self) -> FleetEvent:
        """All servers, now: renewed when older than 0.9 s."""
        with self._lock:
            return self._fresh()

    def event_json(self) -> bytes:
        """The same, encoded."""
        with self._lock:
            event = self._fresh()
            self._json = self._json or msgspec.json.encode(event)
            return self._json

    def harm(self, last: str, until_unix_s: float) -> HarmMap:
        """What all servers lost in a range that ends then, a few seconds ago if that is now. Raises JournalError."""
        return self._harm_of(last, until_unix_s)[1]

    def harm_json(self, last: str, until_unix_s: float) -> bytes:
        """The same, encoded."""
        return self._harm_of(last, until_unix_s)[2]

    def _harm_of(self, last: str, until_unix_s: float) -> tuple[float, HarmMap, bytes]:
        now_unix_s = self._reader.clock()
        if until_unix_s < now_unix_s - FRESH_S:
            with self._reader.one_request() as journal:
                return self._read_harm(journal, last, until_unix_s)
        with self._harm_lock:
            known = self._harm.get(last)
            if known is None or not 0 <= now_unix_s - known[0] < HARM_FRESH_S:
                with self._reader.journal() as journal:
                    known = self._harm[last] = self._read_harm(journal, last, now_unix_s)
            return known

    def _read_harm(self, journal: Journal, last: str, until_unix_s: float) -> tuple[float, HarmMap, bytes]:
        harm_map = harm.read(journal, self._reader.settings.pool, last, until_unix_s)
        return until_unix_s, harm_map, msgspec.json.encode(harm_map)

    def _fresh(self) -> FleetEvent:
        now_unix_s = self._reader.clock()
        if not 0 <= now_unix_s - self._event.time_unix_s < FRESH_S:
            self._event, self._json = self._make(now_unix_s), b""
        return self._event

    def _make(self, now_unix_s: float) -> FleetEvent:
        pools, error = self._reader.settings.pool, ""
        try:
            views = self._reader.views()
        except JournalError as failed:
            error = str(failed)
            views = [no_view(pool.name, error) for pool in pools]
        servers = [
            server for pool, view in zip(pools, views, strict=True) for server in servers_of(view, pool, now_unix_s)
        ]
        silent = [view.pool for view in views if view.stale]
        return FleetEvent(now_unix_s, error, silent, summary(servers), servers)
