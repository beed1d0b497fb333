"""Learns, while a pool runs, what p95 its servers have at which request rate, and tells it as short curves.

Heimdall's random forest, on the newest seconds of the pool's servers: requests per second, cores and run delay. Its
answers are laid out as a few points for each kind of server (cores, and how long it waits for them), so that who
reads a Verdict needs no estimator. A curve spans only the rates that such servers really had.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detector.features.columns import Floats, Ints
from detector.features.features import Frame
from detector.features.signals import INDEX
from detector.tail.data import COLUMNS, Rows
from detector.tail.forest import Forest
from detector.tail.predict import p95_at_rps_ms
from detector.tail.table import WAIT_EDGES

KEEP = 3000
"""Seconds of servers that are learnt from; the newest."""
A_TICK = 8
"""At most so many servers' seconds are taken in a tick: of thousands, some are enough."""
MIN_ROWS = 120
MIN_ROWS_OF_KIND = 20
"""A kind of server that was seen for fewer seconds has no curve."""
EVERY_S = 30.0
POINTS = 8
SPAN = (0.02, 0.98)
"""Quantiles of the request rates that a curve spans."""
TELL_EVERY_S = 1.0
SECOND_S = 0.95
"""From the first to the last tick of a second: ticks are not on the dot."""

Curve = list[tuple[float, float]]
"""(requests/s, p95 in ms), rates rising."""
Kind = tuple[int, int]
"""Hundredths of cores, and the range of its run delay (`WAIT_EDGES`)."""


@dataclass(frozen=True)
class Curves:
    """Each kind of server's curve."""

    of: dict[Kind, Curve]


class Learner:
    """One pool's: `see` each tick; `due` gives what a fit needs; `fit` may run in a thread; `put` takes its result."""

    def __init__(self) -> None:
        self._inputs: Floats = np.zeros((KEEP, len(COLUMNS)))
        self._p95_ms: Floats = np.zeros(KEEP)
        self._rows = 0
        self._fitted_s = -np.inf
        self._curves = Curves({})
        self._sums: Floats = np.zeros((0, 4))
        """(slots, ...) requests/s, run delay and p95 of a second's ticks, and how many."""
        self._began_s: Floats = np.zeros(0)
        self._told_s: Floats = np.zeros(0)
        self._told_wait: Ints = np.zeros(0, dtype=np.int64)

    def resize(self, slots: int) -> None:
        more = slots - len(self._began_s)
        if more > 0:
            self._sums = np.concatenate([self._sums, np.zeros((more, 4))])
            self._began_s = np.concatenate([self._began_s, np.full(more, np.inf)])
            self._told_s = np.concatenate([self._told_s, np.full(more, -np.inf)])
            self._told_wait = np.concatenate([self._told_wait, np.full(more, -1)])

    def forget(self, slot: int) -> None:
        """Empties a slot for a new node."""
        self._sums[slot], self._began_s[slot] = 0.0, np.inf
        self._told_s[slot], self._told_wait[slot] = -np.inf, -1

    def see(self, now_s: float, frame: Frame) -> None:
        """Takes a tick in."""
        p95_ms, wait = frame.values[:, INDEX["rt_p95"]], _wait(frame)
        fit = (p95_ms > 0) & (frame.rps > 0) & np.isfinite(frame.cores)
        slots = frame.slots[fit]
        self._began_s[slots] = np.minimum(self._began_s[slots], now_s)
        self._sums[slots] += np.stack([frame.rps[fit], wait[fit], p95_ms[fit], np.ones(len(slots))], axis=1)
        over = np.flatnonzero(fit & (now_s - self._began_s[frame.slots] >= SECOND_S))
        ends = frame.slots[over]
        some = over[:: 1 + len(over) // A_TICK]
        if len(some):
            sums = self._sums[frame.slots[some]]
            rps, waited, p95 = (sums[:, :3] / sums[:, 3:]).T
            at = (self._rows + np.arange(len(some))) % KEEP
            self._inputs[at] = np.stack([rps, frame.cores[some], np.zeros(len(some)), waited], axis=1)
            self._p95_ms[at] = p95
            self._rows += len(some)
        self._sums[ends], self._began_s[ends] = 0.0, np.inf

    def due(self, now_s: float) -> Rows | None:
        """What to learn from, when it is time to; else None."""
        if self._rows < MIN_ROWS or now_s - self._fitted_s < EVERY_S:
            return None
        self._fitted_s = now_s
        count = min(self._rows, KEEP)
        inputs = self._inputs[:count].copy()
        return Rows(inputs, self._p95_ms[:count].copy(), np.zeros(count, dtype=np.int64))

    def put(self, curves: Curves) -> None:
        """Takes the result of a fit."""
        self._curves = curves

    def tell(self, now_s: float, frame: Frame) -> list[tuple[int, Curve]]:
        """(row, curve) of servers whose curve is known and was not told for a second, or that wait otherwise now."""
        if not self._curves.of:
            return []
        slots, wait = frame.slots, np.searchsorted(WAIT_EDGES, _wait(frame))
        due = np.flatnonzero((now_s - self._told_s[slots] >= TELL_EVERY_S) | (wait != self._told_wait[slots]))
        self._told_s[slots[due]], self._told_wait[slots[due]] = now_s, wait[due]
        cores = np.nan_to_num(np.rint(frame.cores[due] * 100)).astype(np.int64)
        curves = map(self._curves.of.get, zip(cores.tolist(), wait[due].tolist(), strict=True))
        return [(row, curve) for row, curve in zip(due.tolist(), curves, strict=True) if curve is not None]


def fit(rows: Rows) -> Curves:
    """Learns anew. Takes some 0.1 s of a core."""
    forest = Forest()
    forest.fit(rows)
    cores = np.rint(rows.inputs[:, 1] * 100).astype(np.int64)
    waits = np.searchsorted(WAIT_EDGES, rows.inputs[:, 3])
    found: dict[Kind, Curve] = {}
    for kind in sorted(set(zip(cores.tolist(), waits.tolist(), strict=True))):
        members = rows.inputs[(cores == kind[0]) & (waits == kind[1])]
        if len(members) < MIN_ROWS_OF_KIND:
            continue
        low, high = np.quantile(members[:, 0], SPAN).tolist()
        rates = np.linspace(low, high, POINTS)
        p95_ms = p95_at_rps_ms(forest, np.median(members, axis=0), rates)
        found[kind] = [(round(rate, 2), round(ms, 2)) for rate, ms in zip(rates.tolist(), p95_ms.tolist(), strict=True)]
    return Curves(found)


def _wait(frame: Frame) -> Floats:
    """(M,) run delay per CPU second; 0 where it is not known: it then says nothing."""
    return np.nan_to_num(frame.values[:, INDEX["run_delay_per_cpu"]], nan=0.0)
