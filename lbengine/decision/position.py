"""Where a server's weight stands within an episode, and which move is worth making. Pure.

A weight goes down at once, and back to its baseline at once when the server is proven calm. In between it does not
rise: what is believed of a drained server is of before, so what the law wants of it is no evidence. Where the others
would be too full it gets load back all the same, which is not decided here.

A server that is drained shows nothing of some neighbours. Where its Verdict says for `WATCH_AFTER_S` that nothing would
show the end of one, it is watched: it gets some requests. Where these do not show it either it is tried: it gets its
baseline weight after `TRIAL_AFTER_S`, and its requests decide. So is one that looks calm for as long without proof. A
server that is still beside its neighbour then is lowered again, but no more often than `MOST_TRIALS` times in an
episode.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

DWELL_S = 2.0
LARGE_FALL = 0.2
"""Share of the baseline from which on a fall is large: it is news, not a wavering estimate."""
WATCH_AFTER_S = 1.5
TRIAL_AFTER_S = 6.0
TRIAL_S = 3.0
"""A trial's requests decide within this time at five a second."""
MOST_TRIALS = 2


@dataclass(frozen=True)
class Position:
    """Where a server's weight stands."""

    weight: int
    moved_s: float | None = None
    """When it was last moved within an episode."""
    blind_s: float | None = None
    """Since when it has been below its baseline while nothing would show that its neighbour is gone, or it looks so and
    isn't proven."""
    trial_s: float | None = None
    """When its last trial in this episode began."""
    trials: int = 0
    least: int = 0
    """The weight below which it is not set until the end of the episode: it brings enough requests to see the neighbour
    leave, or what the others have no room for."""

    def is_tried(self, now_s: float) -> bool:
        """It has its baseline weight so that requests decide; after its last trial it keeps that."""
        if self.trial_s is None:
            return False
        return now_s - self.trial_s < TRIAL_S or self.trials >= MOST_TRIALS


def settle(position: Position, target: int, baseline: int, now_s: float, min_change: float) -> Position:
    """Within an episode: the position after this turn, towards a target, which is never above where it stands.

    Servers that are slow together answer each other's moves, so a small fall waits until `DWELL_S` after the last move;
    one below `min_change` of the baseline is not made unless it ends at 0.
    """
    target = max(target, position.least)
    fall = position.weight - target
    if fall <= 0 or (fall < max(1.0, min_change * baseline) and target > 0):
        return position
    small = fall < LARGE_FALL * baseline
    waits = small and position.moved_s is not None and now_s - position.moved_s < DWELL_S
    return position if waits else moved(position, target, now_s)


def moved(position: Position, weight: int, now_s: float) -> Position:
    """The position at another weight."""
    if weight == position.weight:
        return position
    return dataclasses.replace(position, weight=weight, moved_s=now_s)


def given_back(position: Position, weight: int, now_s: float) -> Position:
    """The position with this weight, which the others have no room for, and no less until the end of the episode: what
    makes the others full once does so again."""
    return moved(dataclasses.replace(position, least=max(position.least, weight)), weight, now_s)


def watched(position: Position, weight: int, now_s: float) -> Position:
    """The position with at least this weight until the end of the episode, where it has been blind for a while."""
    if position.least >= weight or position.blind_s is None or now_s - position.blind_s < WATCH_AFTER_S:
        return position
    position = dataclasses.replace(position, least=weight)
    return moved(position, weight, now_s) if position.weight < weight else position


def tried(position: Position, baseline: int, now_s: float, blind: bool) -> Position:
    """The position with its next trial, if that is due. `blind`: as `Position.blind_s`, now."""
    if not blind or position.weight >= baseline:
        return dataclasses.replace(position, blind_s=None)
    blind_s = now_s if position.blind_s is None else position.blind_s
    if now_s - blind_s < TRIAL_AFTER_S:
        return dataclasses.replace(position, blind_s=blind_s)
    begun = dataclasses.replace(position, blind_s=None, trial_s=now_s, trials=position.trials + 1)
    return moved(begun, baseline, now_s)
