"""Response time by route class: each route over its own calm one, weighted by its requests.

The mean over all requests moves when the mix does: more searches among the pages, and a calm server looks slow. Here
each route is compared with itself, so that only a route that became slower counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from detector.columns import Bools, Floats, Ints
from slackwater.messages import Sample

MAX_ROUTES = 24
"""Routes of a pool that are followed; the first heard of. Of more, the others are left out."""
FIRST = 5
"""Calm ticks with requests on a route before it counts; their mean is the first calm response time."""
STEP = 0.02
"""A calm response time moves by at most this share a tick: towards the median, whatever the outliers."""
FLOOR_MS = 1.0


class RouteTimes:
    """Calm response time (ms) of every slot's routes, (slots, routes)."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._calm_ms: Floats = np.full((0, MAX_ROUTES), np.nan)
        self._ticks: Ints = np.zeros((0, MAX_ROUTES), dtype=np.int64)

    def resize(self, slots: int) -> None:
        more = slots - len(self._calm_ms)
        if more > 0:
            self._calm_ms = np.concatenate([self._calm_ms, np.full((more, MAX_ROUTES), np.nan)])
            self._ticks = np.concatenate([self._ticks, np.zeros((more, MAX_ROUTES), dtype=np.int64)])

    def forget(self, slot: int) -> None:
        """Empties a slot for a new node."""
        self._calm_ms[slot] = np.nan
        self._ticks[slot] = 0

    def read(self, samples: Sequence[Sample]) -> tuple[Floats, Floats] | None:
        """Requests per second and mean response time (ms) by route, each (M, routes), NaN without; None: no routes."""
        if not any(sample.traffic is not None and sample.traffic.routes for sample in samples):
            return None
        rows: list[int] = []
        columns: list[int] = []
        found: list[tuple[float, float]] = []
        for row, sample in enumerate(samples):
            for route in sample.traffic.routes if sample.traffic else ():
                if route.rps and route.rt_mean_ms is not None:
                    rows.append(row)
                    columns.append(self._column(route.route))
                    found.append((route.rps, route.rt_mean_ms))
        both = np.full((2, len(samples), MAX_ROUTES + 1), np.nan)
        both[:, rows, columns] = np.array(found).reshape(len(found), 2).T
        return both[0, :, :MAX_ROUTES], both[1, :, :MAX_ROUTES]

    def _column(self, route: str) -> int:
        """Number of a route; `MAX_ROUTES` for one too many."""
        if route not in self._names and len(self._names) < MAX_ROUTES:
            self._names[route] = len(self._names)
        return self._names.get(route, MAX_ROUTES)

    def ratio(self, slots: Ints, rps: Floats, rt_ms: Floats) -> Floats:
        """(M,) response time over the calm one, mean over the requests of the routes that are known; else NaN."""
        known = (self._ticks[slots] >= FIRST) & ~np.isnan(rt_ms)
        ratio = rt_ms / np.maximum(self._calm_ms[slots], FLOOR_MS)
        requests = np.where(known, rps, 0.0).sum(axis=1)
        slow = np.where(known, rps * ratio, 0.0).sum(axis=1)
        return np.where(requests > 0, slow / np.maximum(requests, 1e-9), np.nan)

    def learn(self, slots: Ints, rt_ms: Floats, calm: Bools) -> None:
        """Takes calm ticks in."""
        slots, rt_ms = slots[calm], rt_ms[calm]
        heard = ~np.isnan(rt_ms)
        old, ticks = self._calm_ms[slots], self._ticks[slots] + heard
        first = heard & (ticks <= FIRST)
        mean = np.where(ticks == 1, rt_ms, old + (rt_ms - old) / np.maximum(ticks, 1))
        later = old * (1.0 + STEP * np.sign(rt_ms - old))
        self._calm_ms[slots] = np.where(first, mean, np.where(heard, later, old))
        self._ticks[slots] = np.minimum(ticks, FIRST + 1)

    def export(self, slot: int) -> dict[str, Any]:
        """One slot as JSON: route -> calm response time in ms."""
        return {
            name: float(f"{self._calm_ms[slot, column]:.4g}")
            for name, column in self._names.items()
            if self._ticks[slot, column] >= FIRST
        }

    def restore(self, slot: int, routes: dict[str, Any]) -> None:
        """The opposite of `export`. Raises ValueError for what is no such thing; the slot is then empty."""
        self.forget(slot)
        try:
            for name, calm_ms in routes.items():
                if not 0 < float(calm_ms) < np.inf:
                    raise ValueError(f"route {name}: expected a response time, got {calm_ms}")
                column = self._column(name)
                if column < MAX_ROUTES:
                    self._calm_ms[slot, column], self._ticks[slot, column] = float(calm_ms), FIRST
        except (ValueError, TypeError, AttributeError) as error:
            self.forget(slot)
            raise ValueError(f"no calm response times of routes: {error}") from None
