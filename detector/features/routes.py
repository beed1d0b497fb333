"""Response time by route class: each route over its own calm response time, weighted by its requests.

The mean over all requests changes with their mix: with more searches among the pages a calm server looks slow. Here
each route is compared with itself, so only a route that became slower counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from operator import attrgetter
from typing import Any

import numpy as np

from slackwater.core.messages import RouteTraffic
from slackwater.detector.features.columns import Bools, Floats, Ints
from slackwater.detector.slot_arrays import SlotArrays

MAX_ROUTES = 24
"""The most routes of a node that are followed: the first that come. Others are left out."""
FIRST = 5
"""A route counts after this many calm ticks with requests. Their mean is its first calm response time."""
STEP = 0.02
"""A calm response time moves by this share a tick, so it goes to the median, whatever the outliers."""
FLOOR_MS = 1.0
_NONE = -1
"""Column of a route that is not followed."""
_FIELDS = attrgetter("route", "rps", "rt_mean_ms")


class RouteTimes(SlotArrays):
    """Calm response time (ms) of every slot's routes, (slots, routes)."""

    _calm_ms: Floats
    _ticks: Ints

    def __init__(self) -> None:
        self._columns: list[dict[str, int]] = []
        """For each slot, route -> its column. A node's routes take no columns from other nodes."""
        self._used = 0
        """Number of columns in use: those of the slot with most routes."""
        super().__init__(_calm_ms=np.full(MAX_ROUTES, np.nan), _ticks=np.zeros(MAX_ROUTES, dtype=np.int64))

    def resize(self, slots: int) -> None:
        """Makes room for this number of slots."""
        super().resize(slots)
        self._columns += [{} for _ in range(slots - len(self._columns))]

    def forget(self, slot: int) -> None:
        """Empties a slot."""
        super().forget(slot)
        self._columns[slot] = {}

    def read(self, slots: Ints, routes: Sequence[Sequence[RouteTraffic]]) -> tuple[Floats, Floats] | None:
        """Requests per second and mean response time (ms), by route, of a Sample of each slot; None: no routes.

        `slots`: (M,). Each result is (M, R) with NaN where there is none; R is the most routes that a node has had.
        """
        all_routes = list(chain.from_iterable(routes))
        if not all_routes:
            return None
        lengths = list(map(len, routes))
        rows = np.repeat(np.arange(len(routes)), lengths)
        slot_columns = list(chain.from_iterable(map(repeat, [self._columns[slot] for slot in slots.tolist()], lengths)))
        names, rps, rt_ms = zip(*map(_FIELDS, all_routes), strict=True)
        values = np.array((rps, rt_ms), dtype=np.float64)
        present = (values[0] > 0) & np.isfinite(values).all(axis=0)
        values[:, ~present] = np.nan
        columns = np.fromiter(map(dict.get, slot_columns, names, repeat(_NONE)), dtype=np.int64, count=len(names))
        for number in np.flatnonzero(present & (columns == _NONE)).tolist():
            columns[number] = self._column(slot_columns[number], names[number])
        # Routes without a column go into a further column at the end, which is cut off.
        both = np.full((2, len(routes), self._used + 1), np.nan)
        both[:, rows, columns] = values
        return both[0, :, :-1], both[1, :, :-1]

    def _column(self, columns: dict[str, int], route: str) -> int:
        """A route's column, a new one if needed; `_NONE` where there are too many."""
        if route not in columns and len(columns) < MAX_ROUTES:
            columns[route] = len(columns)
            self._used = max(self._used, len(columns))
        return columns.get(route, _NONE)

    def ratio(self, slots: Ints, rps: Floats, rt_ms: Floats) -> Floats:
        """(M,) response time over the calm response time, as a mean over the requests of known routes; else NaN."""
        count = rps.shape[1]
        known = (self._ticks[slots, :count] >= FIRST) & ~np.isnan(rt_ms)
        ratio = rt_ms / np.maximum(self._calm_ms[slots, :count], FLOOR_MS)
        requests = np.where(known, rps, 0.0).sum(axis=1)
        slow = np.where(known, rps * ratio, 0.0).sum(axis=1)
        return np.where(requests > 0, slow / np.maximum(requests, 1e-9), np.nan)

    def learn(self, slots: Ints, rt_ms: Floats, calm: Bools) -> None:
        """Learns calm ticks: `slots` (M,), `rt_ms` (M, routes); `calm`: (M,) whether a row is calm."""
        slots, rt_ms, count = slots[calm], rt_ms[calm], rt_ms.shape[1]
        present = ~np.isnan(rt_ms)
        old, ticks = self._calm_ms[slots, :count], self._ticks[slots, :count] + present
        first = present & (ticks <= FIRST)
        mean = np.where(ticks == 1, rt_ms, old + (rt_ms - old) / np.maximum(ticks, 1))
        later = old * (1.0 + STEP * np.sign(rt_ms - old))
        self._calm_ms[slots, :count] = np.where(first, mean, np.where(present, later, old))
        self._ticks[slots, :count] = np.minimum(ticks, FIRST + 1)

    def export(self, slot: int) -> dict[str, Any]:
        """A slot as JSON: route -> calm response time in ms."""
        return {
            name: float(f"{self._calm_ms[slot, column]:.4g}")
            for name, column in self._columns[slot].items()
            if self._ticks[slot, column] >= FIRST
        }

    def restore(self, slot: int, routes: dict[str, Any]) -> None:
        """Restores a slot from a result of `export`. Raises ValueError for anything else; the slot is empty then."""
        self.forget(slot)
        try:
            for name, calm_ms in routes.items():
                if not 0 < float(calm_ms) < np.inf:
                    raise ValueError(f"route {name}: expected a response time, got {calm_ms}")
                column = self._column(self._columns[slot], name)
                if column != _NONE:
                    self._calm_ms[slot, column], self._ticks[slot, column] = float(calm_ms), FIRST
        except (ValueError, TypeError, AttributeError) as error:
            self.forget(slot)
            raise ValueError(f"no calm response times of routes: {error}") from None
