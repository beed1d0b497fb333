"""What the pages read from the journal. It is opened read-only each time, so that a new file is found at once.

What all viewers share is made once a second.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from slackwater.core.config import ControllerSettings, PoolSettings
from slackwater.core.journal.journal import Journal, JournalError, PoolSeries, StateSpan, journal_path
from slackwater.core.messages import Change, CycleOutage
from slackwater.views.chronic import Machine
from slackwater.views.harm import Remembered
from slackwater.views.pool import PoolStatus, no_view, pool_status
from slackwater.views.standing import Standing, standing
from slackwater.views.usual import Usual
from slackwater.views.week import machines
from slackwater.views.why import Episode, episodes
from slackwater.web.content.pool import ShownPool, drawn, show
from slackwater.web.lanes import Lane

CHANGES = 200
"""Number of Changes that are read for the list of a pool, before steps upwards are put in one line."""
LINES, FEW_LINES = 40, 8
MOST_VALUES = 1_000_000
"""The most values of the series in one answer: some 50 MB while it is made."""
MOST_BYTES = 8 << 20
"""The most bytes of the Changes in one answer."""
PLOT_S = 300.0
TAIL_S = 10.0
"""Each event repeats this much of the plots, for viewers who missed an event."""
FRESH_S = 0.9
RANKED_S = 600.0
WAIT_S = 2.0
READS, READS_WAITING = 2, 10
READ_S = 20.0


class WeightMark(msgspec.Struct):
    """A weight change in a plot."""

    id: str
    time_unix_s: float
    node: str
    before: float
    after: float
    applied: bool


class Plots(msgspec.Struct):
    """The data of a pool's plots."""

    history: PoolSeries
    spans: list[StateSpan]
    """States other than calm."""
    marks: list[WeightMark]


class LiveUpdate(msgspec.Struct):
    """Sent to each viewer every second."""

    time_unix_s: float
    error: str
    """Why the journal cannot be read; empty otherwise."""
    standing: Standing
    """Where these pools stand."""
    pools: list[ShownPool]
    tails: dict[str, Plots]


class _Made(msgspec.Struct):
    """An event, and its JSON once it was needed."""

    event: LiveUpdate
    json: bytes


class Health(msgspec.Struct):
    """Whether the controller works, as it was at one time."""

    time_unix_s: float
    error: str
    """Why the journal cannot be read; empty otherwise."""
    standing: Standing
    """Where all pools stand."""
    ages_s: dict[str, float | None]
    """Seconds since each pool's last cycle."""
    stale: dict[str, bool]
    outages: dict[str, CycleOutage | None]
    """Outage of each pool's balancer."""


class JournalReader:
    """Reads for the configured pools. May be used from several threads."""

    def __init__(self, settings: ControllerSettings, clock: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self.clock = clock
        self._path = journal_path(settings.state_dir)
        self.measured_by = Remembered()
        """What `week` has measured."""
        self._usual = Usual()
        self._machines: dict[str, tuple[float, list[Machine]]] = {}
        """Pool -> when its machines were ranked last, and these."""
        self.lane = Lane(READS, READS_WAITING)
        """The lane of reads that are done anew for each request."""
        self._lock = threading.Lock()
        self._made: dict[str, _Made] = {}
        self._health: Health | None = None
        self._health_lock = threading.Lock()

    def pool(self, name: str) -> PoolSettings | None:
        """The pool's settings; None if there is no such pool."""
        return next((pool for pool in self.settings.pool if pool.name == name), None)

    @contextmanager
    def journal(self) -> Iterator[Journal]:
        """The journal, read-only. Raises JournalError."""
        with Journal.open(self._path, read_only=True, wait_s=WAIT_S, clock=self.clock) as journal:
            yield journal

    @contextmanager
    def one_request(self) -> Iterator[Journal]:
        """The journal for what one request alone asks for: few do so at a time, and none for long. The answer is made
        in this block, as it takes memory too. Raises JournalError, lanes.BusyError."""
        with self.lane.turn(), self.journal() as journal:
            journal.give_up_after(READ_S)
            yield journal

    def views(self) -> list[PoolStatus]:
        """All pools, now. Raises JournalError."""
        with self.journal() as journal:
            return [self.view(journal, pool) for pool in self.settings.pool]

    def view(self, journal: Journal, pool: PoolSettings) -> PoolStatus:
        return pool_status(journal, pool.name, self.clock(), pool.servers, pool.title, self._usual)

    def machines(self, journal: Journal, pool: str) -> list[Machine]:
        """What its machines cost in the last `replace.days`: ranked again when older than `RANKED_S`. Raises
        JournalError."""
        now_unix_s = self.clock()
        ranked_unix_s, ranked = self._machines.get(pool, (-math.inf, []))
        if not 0 <= now_unix_s - ranked_unix_s < RANKED_S:
            ranked = machines(journal, self.settings, pool, self.settings.replace.days, now_unix_s)
            self._machines[pool] = now_unix_s, ranked
        return ranked

    def plots(
        self,
        journal: Journal,
        pool: PoolSettings,
        last_s: float,
        step_s: float,
        nodes: Collection[str] | None = None,
        until_unix_s: float | None = None,
    ) -> Plots:
        """The last `last_s` seconds on whole multiples of `step_s`, so that later pieces fit to earlier ones."""
        until_unix_s = self.clock() if until_unix_s is None else until_unix_s
        since_unix_s = (until_unix_s - last_s) // step_s * step_s
        history = journal.history(
            pool.name,
            since_unix_s,
            step_s,
            until_unix_s=until_unix_s // step_s * step_s,
            servers=pool.servers,
            nodes=nodes,
            most_values=MOST_VALUES,
        )
        changes = [
            change
            for what in ("weight", "restore")
            for change in journal.changes(
                pool.name, 5_000, since_unix_s, until_unix_s=until_unix_s, what=what, most_bytes=MOST_BYTES
            )
        ]
        changes.sort(key=lambda change: change.time_unix_s)
        marks = [mark for change in changes if (mark := _mark(change, pool)) is not None]
        spans = [
            span
            for span in journal.states(pool.name, since_unix_s)
            if span.state != "calm" and span.since_unix_s <= until_unix_s
        ]
        if nodes is not None:
            marks = [mark for mark in marks if mark.node in nodes]
            spans = [span for span in spans if span.node in nodes]
        return Plots(history=history, spans=spans, marks=marks)

    def event(self, pool: str | None = None) -> LiveUpdate:
        """The present second's event, of all pools in short or of one whole: renewed when older than 0.9 s."""
        with self._lock:
            return self._fresh(pool).event

    def event_json(self, pool: str | None = None) -> bytes:
        """The same, encoded."""
        with self._lock:
            made = self._fresh(pool)
            if not made.json:
                made.json = msgspec.json.encode(made.event)
            return made.json

    def health(self) -> Health:
        """The controller's health: read again when older than 0.9 s, by one caller; others get the last one."""
        now_unix_s = self.clock()
        known = self._health
        if known is not None and 0 <= now_unix_s - known.time_unix_s < FRESH_S:
            return known
        if not self._health_lock.acquire(blocking=known is None):
            assert known is not None
            if now_unix_s - known.time_unix_s <= WAIT_S + FRESH_S:
                return known
            return msgspec.structs.replace(known, error=f"{self._path}: not read: the disk does not answer")
        try:
            if self._health is known:
                self._health = self._read_health(now_unix_s)
            assert self._health is not None
            return self._health
        finally:
            self._health_lock.release()

    def _read_health(self, now_unix_s: float) -> Health:
        try:
            views = self.views()
        except JournalError as error:
            return Health(now_unix_s, str(error), self._standing([], str(error)), {}, {}, {})
        ages_s = {view.pool: view.age_s for view in views}
        stale, outages = {view.pool: view.stale for view in views}, {view.pool: view.outage for view in views}
        return Health(now_unix_s, "", self._standing(views), ages_s, stale, outages)

    def _standing(self, views: Sequence[PoolStatus], error: str = "") -> Standing:
        return standing(views, error, self._path.exists())

    def _fresh(self, pool: str | None) -> _Made:
        now_unix_s = self.clock()
        made = self._made.get(pool or "")
        if made is None or not 0 <= now_unix_s - made.event.time_unix_s < FRESH_S:
            made = self._made[pool or ""] = _Made(self._make(now_unix_s, pool), b"")
        return made

    def _make(self, now_unix_s: float, only: str | None) -> LiveUpdate:
        pools = [pool for pool in self.settings.pool if only in (None, pool.name)]
        shown: list[ShownPool] = []
        views: list[PoolStatus] = []
        tails: dict[str, Plots] = {}
        error = ""
        try:
            with self.journal() as journal:
                for pool in pools:
                    view = self.view(journal, pool)
                    views.append(view)
                    changes = journal.changes(pool.name, limit=CHANGES)
                    going_on = [
                        episode
                        for episode in episodes(journal, pool.name, now_unix_s - 60.0)
                        if _goes_on(episode, view)
                    ]
                    shown.append(show(view, changes, now_unix_s, pool, going_on, all_rows=only is not None))
                    del shown[-1].changes[LINES if only else FEW_LINES :]
                    if only is not None:
                        tails[pool.name] = self.plots(journal, pool, TAIL_S, 1.0, drawn(view) or None)
        except JournalError as failed:
            error = str(failed)
            shown = [show(no_view(pool.name, error), [], now_unix_s, pool) for pool in pools]
            tails = {}
        stands = self._standing(views, error)
        return LiveUpdate(time_unix_s=now_unix_s, error=error, standing=stands, pools=shown, tails=tails)


def _goes_on(episode: Episode, view: PoolStatus) -> bool:
    return episode.until_unix_s is None and any(
        row.since_unix_s is not None and episode.began(row.node, round(row.since_unix_s * 1000)) for row in view.rows
    )


def _mark(change: Change, pool: PoolSettings) -> WeightMark | None:
    """The mark of a Change of a weight; None for another Change, and for a trial with a few requests."""
    before, after = change.before, change.after
    if change.cause == "tried" or not isinstance(before, int | float) or not isinstance(after, int | float):
        return None
    return WeightMark(
        id=change.id,
        time_unix_s=change.time_unix_s,
        node=pool.servers.get(change.target, change.target),
        before=float(before),
        after=float(after),
        applied=change.applied,
    )
