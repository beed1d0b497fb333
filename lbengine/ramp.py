"""The ramp: a weight goes down at once and comes back slowly; small changes are not sent.

HAProxy's own `slowstart` acts after failed health checks only, so the way back is walked here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Position:
    """Where a server's weight stands, and from where and when its present climb began."""

    weight: int
    climb_from: int = 0
    climb_began_s: float | None = None


def step(position: Position, target: int, baseline: int, now_s: float, ramp_s: float, min_change: float) -> Position:
    """The next position on the way to `target`.

    Up: linear, 0 to `baseline` in `ramp_s`; the first step from 0 is at least 1, and the last one is always taken.
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
    reached = min(target, position.climb_from + int(baseline * (now_s - began_s) / ramp_s))
    if position.weight == 0:
        reached = max(reached, 1)
    if reached <= position.weight or (reached < target and position.weight > 0 and reached - position.weight < least):
        return position
    if reached == target:
        return Position(target)
    return Position(reached, position.climb_from, began_s)
