"""What the pages read from the journal. It is opened read-only each time: a new one is found as soon as it is there.

What is the same for all viewers is made once a second, however many look.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from slackwater.config import ControllerSettings, PoolSettings
from slackwater.journal import History, Journal, JournalError, StateSpan, journal_path
from slackwater.messages import Change
from slackwater.view import PoolView, no_view, pool_view
from web.shown import ShownPool, show

CHANGES = 200
"""As many Changes are read for the list of a pool, before the steps of ramps are told in one line."""
LINES = 40
PLOT_S = 300.0
TAIL_S = 10.0
"""Each event repeats this much of the plots: it mends what a viewer missed."""
FRESH_S = 0.9
WAIT_S = 2.0


class Mark(msgspec.Struct):
    """A weight change in a plot."""

    id: str
    time_unix_s: float
    node: str
    before: float
    after: float
    applied: bool


class Plots(msgspec.Struct):
    """What the plots of a pool are drawn from."""

    history: History
    spans: list[StateSpan]
    """States other than calm."""
    marks: list[Mark]


class Event(msgspec.Struct):
    """What a viewer gets each second."""

    time_unix_s: float
    error: str
    """Why the journal cannot be read; empty otherwise."""
    pools: list[ShownPool]
    tails: dict[str, Plots]


class Reader:
    """Reads for the configured pools. May be used from several threads."""

    def __init__(self, settings: ControllerSettings, clock: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self.clock = clock
        self._path = journal_path(settings.state_dir)
        self._lock = threading.Lock()
        self._event: Event | None = None
        self._event_json = b""

    def pool(self, name: str) -> PoolSettings | None:
        """The pool's settings; None if there is no such pool."""
        return next((pool for pool in self.settings.pool if pool.name == name), None)

    @contextmanager
    def journal(self) -> Iterator[Journal]:
        """The journal, read-only. Raises JournalError."""
        with Journal.open(self._path, read_only=True, wait_s=WAIT_S, clock=self.clock) as journal:
            yield journal

    def views(self) -> list[PoolView]:
        """All pools, now. Raises JournalError."""
        with self.journal() as journal:
            return [self.view(journal, pool) for pool in self.settings.pool]

    def view(self, journal: Journal, pool: PoolSettings) -> PoolView:
        return pool_view(journal, pool.name, self.clock(), pool.servers)

    def plots(self, journal: Journal, pool: PoolSettings, last_s: float, step_s: float) -> Plots:
        """The last `last_s` seconds on whole multiples of `step_s`, so that later pieces fit to earlier ones."""
        now_unix_s = self.clock()
        since_unix_s = (now_unix_s - last_s) // step_s * step_s
        history = journal.history(
            pool.name, since_unix_s, step_s, until_unix_s=now_unix_s // step_s * step_s, servers=pool.servers
        )
        changes = journal.changes(pool.name, limit=5_000, since_unix_s=since_unix_s)
        return Plots(
            history=history,
            spans=[span for span in journal.states(pool.name, since_unix_s) if span.state != "calm"],
            marks=[mark for change in reversed(changes) if (mark := _mark(change, pool)) is not None],
        )

    def event(self) -> Event:
        """The present second's event: made anew when the last one is older than 0.9 s."""
        with self._lock:
            return self._fresh_event()

    def event_json(self) -> bytes:
        """The same, encoded."""
        with self._lock:
            self._fresh_event()
            return self._event_json

    def _fresh_event(self) -> Event:
        now_unix_s = self.clock()
        if self._event is None or not 0 <= now_unix_s - self._event.time_unix_s < FRESH_S:
            self._event = self._make_event(now_unix_s)
            self._event_json = msgspec.json.encode(self._event)
        return self._event

    def _make_event(self, now_unix_s: float) -> Event:
        shown: list[ShownPool] = []
        tails: dict[str, Plots] = {}
        error = ""
        try:
            with self.journal() as journal:
                for pool in self.settings.pool:
                    view = self.view(journal, pool)
                    shown.append(show(view, journal.changes(pool.name, limit=CHANGES), now_unix_s))
                    del shown[-1].changes[LINES:]
                    tails[pool.name] = self.plots(journal, pool, TAIL_S, 1.0)
        except JournalError as failed:
            error = str(failed)
            shown = [show(no_view(pool.name, error), [], now_unix_s) for pool in self.settings.pool]
            tails = {}
        return Event(time_unix_s=now_unix_s, error=error, pools=shown, tails=tails)


def _mark(change: Change, pool: PoolSettings) -> Mark | None:
    """The mark of a Change of a weight; None for another Change."""
    if not isinstance(change.before, int | float) or not isinstance(change.after, int | float):
        return None
    if change.what not in ("weight", "restore"):
        return None
    return Mark(
        id=change.id,
        time_unix_s=change.time_unix_s,
        node=pool.servers.get(change.target, change.target),
        before=float(change.before),
        after=float(change.after),
        applied=change.applied,
    )
