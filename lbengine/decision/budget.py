"""The rate limit: how often a minute Verdicts may turn a server's weight downwards.

When that is used up the lower weight is held, so that no further fall can come, until the minute allows a rise. A fall
that goes on is no new one: who gets worse meanwhile is lowered. Who has risen all the same (in a panic, or since the
others would be too full) stays up until then: that is what the pool does without us.
"""

from __future__ import annotations

import dataclasses

from lbengine.decision.ramp import Position

WINDOW_S = 60.0


def is_spent(position: Position, now_s: float, most: int) -> bool:
    """True when it was turned downwards `most` times in the last minute: it should not rise by itself."""
    return len(_recent(position, now_s)) >= most


def may_fall(position: Position, now_s: float, most: int) -> bool:
    """Whether a Verdict may lower it now."""
    return position.falling or not is_spent(position, now_s, most)


def noted(before: Position, after: Position, now_s: float, *, counts: bool) -> Position:
    """`after`, with the falls of `before` and its own. `counts`: a Verdict brought it, and no override."""
    fell, falls_s = after.weight < before.weight, _recent(before, now_s)
    if fell and not before.falling and counts:
        falls_s = (*falls_s, now_s)
    return dataclasses.replace(
        after, falling=fell or (after.weight == before.weight and before.falling), falls_s=falls_s
    )


def _recent(position: Position, now_s: float) -> tuple[float, ...]:
    return tuple(at_s for at_s in position.falls_s if now_s - at_s < WINDOW_S)
