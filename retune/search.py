"""`policy = "search"`: a bounded hill climb over whole-numbered knobs, by the response times of each try. Pure.

One knob at a time, by a factor, first in the direction that the knowledge base expects; whatever is better by
`BETTER` is kept and the climb goes on from there. Without a better neighbour the factor shrinks; then it stops. What
is never beaten is the beginning: the values without us.
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
    """What is known so far. `costs` is by values, in the order of the knobs' names; lower is better."""

    ranges: Mapping[str, Range]
    costs: Mapping[tuple[int, ...], float]
    best: tuple[int, ...]

    @property
    def tries(self) -> int:
        """Beside the beginning."""
        return len(self.costs) - 1

    def values(self, point: tuple[int, ...]) -> dict[str, int]:
        return dict(zip(sorted(self.ranges), point, strict=True))

    @property
    def best_values(self) -> dict[str, int]:
        return self.values(self.best)

    @property
    def improved(self) -> bool:
        """Whether anything was better than the values without us."""
        return self.best != _start(self.ranges)


def begin(ranges: Mapping[str, Range], cost: float) -> Climb:
    """A climb from the values without us, whose cost was measured."""
    start = _start(ranges)
    return Climb(dict(ranges), {start: cost}, start)


def _start(ranges: Mapping[str, Range]) -> tuple[int, ...]:
    return tuple(ranges[name].baseline for name in sorted(ranges))


def next_try(climb: Climb, guess: Values | None = None) -> dict[str, int] | None:
    """The values to measure next; None when the climb is over. A `guess` (what was good before) goes first."""
    if climb.tries >= MOST_TRIES:
        return None
    if guess is not None and climb.tries == 0:
        point = tuple(_within(climb.ranges[name], guess.get(name, at)) for name, at in climb.best_values.items())
        if point not in climb.costs:
            return climb.values(point)
    for factor in FACTORS:
        for point in _neighbours(climb, factor):
            if point not in climb.costs:
                return climb.values(point)
    return None


def told(climb: Climb, values: Values, cost: float) -> Climb:
    """The climb after a measurement."""
    point = tuple(values[name] for name in sorted(climb.ranges))
    costs = {**climb.costs, point: cost}
    if cost < climb.costs[climb.best] * (1.0 - BETTER):
        return dataclasses.replace(climb, costs=costs, best=point)
    return dataclasses.replace(climb, costs=costs)


def _neighbours(climb: Climb, factor: float) -> list[tuple[int, ...]]:
    names = sorted(climb.ranges)
    found = []
    for index, name in enumerate(names):
        range_, at = climb.ranges[name], climb.best[index]
        more, less = max(at + 1, round(at * factor)), min(at - 1, round(at / factor))
        for value in (more, less) if range_.expected > 0 else (less, more):
            point = (*climb.best[:index], _within(range_, value), *climb.best[index + 1 :])
            if point != climb.best:
                found.append(point)
    return found


def _within(range_: Range, value: int) -> int:
    return min(max(value, range_.lowest), range_.highest)
