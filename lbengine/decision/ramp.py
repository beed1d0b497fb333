"""The ramp: a weight goes down at once and comes back in doubling steps, after a trickle; small changes are not sent.

Doubling, since each step has shown that the server carries half of the next one: a neighbour that is still there is met
with few requests, and the whole climb is shorter than an even one of the same harm. A balancer's own slow start acts
after failed health checks only, so the climb is made here.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

TRICKLE_SHARE = 0.02
"""Share of its baseline that a drained server gets first: enough requests for its signals, too few for the p95."""
TRICKLE_OF_RAMP = 1 / 3
"""Share of the ramp's time that the trickle takes."""
DWELL_S = 2.0
LARGE_FALL = 0.2
"""Share of the baseline from which on a fall is large: it is news, not a wavering estimate."""


@dataclass(frozen=True)
class Position:
    """Where a server's weight stands, and from where and when its present climb began."""

    weight: int
    climb_from: int = 0
    climb_began_s: float | None = None
    moved_s: float | None = None
    """When it was last moved within an episode."""
    wants_more_s: float | None = None
    """Since when, within an episode, the law has wanted more without a break."""
    falling: bool = False
    """Its last move was down."""
    falls_s: tuple[float, ...] = ()
    """When Verdicts turned it downwards in the last minute: `lbengine/decision/budget.py`."""


def settle(position: Position, target: int, baseline: int, now_s: float) -> tuple[int, Position]:
    """Within an episode: the target that is worth a move now, and the position to step from.

    What the law wants wavers with its estimates, and servers that are slow together answer each other's moves. So it
    must want more for `DWELL_S` without a break, and a small fall waits until so long after the last move.
    """
    if target > position.weight:
        wants_more_s = now_s if position.wants_more_s is None else position.wants_more_s
        position = dataclasses.replace(position, wants_more_s=wants_more_s)
        return (target if now_s - wants_more_s >= DWELL_S else position.weight), position
    position = dataclasses.replace(position, wants_more_s=None)
    small = position.weight - target < LARGE_FALL * baseline
    if small and position.moved_s is not None and now_s - position.moved_s < DWELL_S:
        return position.weight, position
    return target, position


def moved(before: Position, after: Position, now_s: float) -> Position:
    """`after`, with what `settle` needs to know the next time."""
    moved_s = now_s if after.weight != before.weight else before.moved_s
    return dataclasses.replace(after, moved_s=moved_s, wants_more_s=before.wants_more_s)


def step(
    position: Position,
    target: int,
    baseline: int,
    now_s: float,
    ramp_s: float,
    min_change: float,
    *,
    carries: bool = False,
) -> Position:
    """The next position on the way to `target`.

    Up: from 0 to `baseline` in `ramp_s`, first the trickle, then doubling; the last step is always taken. `carries`
    means that the server gets its full share already whatever its weight: then the climb ends after the trickle's time.
    Down: at once. A change below `min_change` of the baseline is not made, unless it ends at 0 or at the baseline.
    """
    least = max(1.0, min_change * baseline)
    if target == position.weight:
        return Position(position.weight)
    if target < position.weight:
        if target > 0 and position.weight - target < least:
            return Position(position.weight)
        return Position(target)
    if target < baseline and target - position.weight < least:
        return Position(position.weight)
    if position.climb_began_s is None:
        position = Position(position.weight, position.weight, now_s)
    began_s = now_s if position.climb_began_s is None else position.climb_began_s
    reached = min(target, _reached(position.climb_from, baseline, now_s - began_s, ramp_s))
    if carries and now_s - began_s >= ramp_s * TRICKLE_OF_RAMP:
        reached = target
    if reached <= position.weight or (reached < target and position.weight > 0 and reached - position.weight < least):
        return position
    if reached == target:
        return Position(target)
    return Position(reached, position.climb_from, began_s)


def _reached(climb_from: int, baseline: int, for_s: float, ramp_s: float) -> int:
    """Weight after climbing for `for_s`; whoever starts higher has the rest of the same climb before it."""
    trickle = max(1, round(TRICKLE_SHARE * baseline))
    doublings = math.log2(max(baseline / trickle, 2.0))
    doubling_s = ramp_s * (1.0 - TRICKLE_OF_RAMP) / doublings
    if climb_from == 0:
        for_s -= ramp_s * TRICKLE_OF_RAMP
    start = max(climb_from, trickle)
    doubled = min(max(for_s, 0.0) / doubling_s, 16.0)
    return start if doubled <= 0.0 else math.ceil(start * 2.0**doubled - 1e-6)
