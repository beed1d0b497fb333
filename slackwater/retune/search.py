"""`policy = "search"`: a bounded hill climb over whole-numbered knobs, by the response times of each try. Pure.

It begins with the values that are in force, and tries those without us next: they are kept unless something is better
by `BETTER`. Then one knob at a time, by a factor, first in the direction that the knowledge base expects. A better try
is kept, and the climb goes on from there. Without a better neighbour the factor shrinks; then it stops.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

BETTER = 0.1
"""A try must be this share better: measurements waver, and each costs a reload."""
MOST_TRIES = 12
FACTORS = (2.0, 1.5)
Values = Mapping[str, int]


@dataclass(frozen=True)
class Range:
    """A knob's bounds, its value without us, and whether more (1) or less (-1) is expected to help."""

    lowest: int
    highest: int
    baseline: int
    expected: int = 1


@dataclass(frozen=True)
class Climb:
    """The tries so far. `costs`: by values, in the order of the knobs' names; lower is better."""

    ranges: Mapping[str, Range]
    costs: Mapping[tuple[int, ...], float]
    best: tuple[int, ...]

    @property
    def tries(self) -> int:
        """Number of tries, without the values that were in force."""
        return len(self.costs) - 1

    def values(self, point: tuple[int, ...]) -> dict[str, int]:
        return dict(zip(sorted(self.ranges), point, strict=True))

    @property
    def best_values(self) -> dict[str, int]:
        return self.values(self.best)

    @property
    def improved(self) -> bool:
        """Whether anything was better than the values without us, which were measured."""
        start = _start(self.ranges)
        return self.best != start and start in self.costs


@dataclass
class NodeSearch:
    """Where a node's search stands in an episode."""

    climb: Climb | None = None
    """None: nothing was measured yet."""
    values: dict[str, int] | None = None
    """The values that are measured, or were the best; None: none are known."""
    severity: float = 0.0
    """The node's severity when the search began."""
    settled_s: float | None = None
    """Since when the node's values have been in force, on a monotonic clock; None: they are being changed."""
    is_over: bool = False
    status: str = ""
    """Where the search stands, in words, for the reasons of Orders."""
    announces_end: bool = False
    """The next Order is the first one after the search."""

    @property
    def is_measuring(self) -> bool:
        return self.climb is not None and not self.is_over


def begin(ranges: Mapping[str, Range], cost: float, values: Values | None = None) -> Climb:
    """A climb from values whose cost was measured; without any: from those without us."""
    point = _start(ranges)
    if values is not None:
        point = tuple(
            _within(ranges[name], values.get(name, own)) for name, own in zip(sorted(ranges), point, strict=True)
        )
    return Climb(dict(ranges), {point: cost}, point)


def _start(ranges: Mapping[str, Range]) -> tuple[int, ...]:
    return tuple(ranges[name].baseline for name in sorted(ranges))


def next_try(climb: Climb) -> dict[str, int] | None:
    """The values to measure next; None when the climb is over."""
    if climb.tries >= MOST_TRIES:
        return None
    if (start := _start(climb.ranges)) not in climb.costs:
        return climb.values(start)
    for factor in FACTORS:
        for point in _neighbours(climb, factor):
            if point not in climb.costs:
                return climb.values(point)
    return None


def record(climb: Climb, values: Values, cost: float) -> Climb:
    """The climb after a measurement."""
    point = tuple(values[name] for name in sorted(climb.ranges))
    best = climb.costs[climb.best]
    is_kept = cost * (1.0 - BETTER) <= best if point == _start(climb.ranges) else cost < best * (1.0 - BETTER)
    return dataclasses.replace(climb, costs={**climb.costs, point: cost}, best=point if is_kept else climb.best)


def _neighbours(climb: Climb, factor: float) -> list[tuple[int, ...]]:
    points = []
    for index, name in enumerate(sorted(climb.ranges)):
        range_, best = climb.ranges[name], climb.best[index]
        more, less = max(best + 1, round(best * factor)), min(best - 1, round(best / factor))
        for value in (more, less) if range_.expected > 0 else (less, more):
            point = (*climb.best[:index], _within(range_, value), *climb.best[index + 1 :])
            if point != climb.best:
                points.append(point)
    return points


def _within(range_: Range, value: int) -> int:
    return min(max(value, range_.lowest), range_.highest)
