"""Where a server's weight stands within an episode, and which move is worth making. Pure.

A weight goes down at once, and back to its baseline at once when the server is proven calm. In between it does not
rise: the estimates of a drained server are old, so a higher weight from the law is no evidence. Where the others would
be too full the server gets load back all the same; `room` decides that.

A drained server does not show whether some neighbours are still there. When its Verdict has said so for
`WATCH_AFTER_S`, the server is watched: it gets some requests. When these show nothing either until `TRIAL_AFTER_S`, it
is tried: it gets its baseline weight, and its requests decide. A server that looks calm for the same time without proof
is tried too. If its neighbour is still there, the server is lowered again; after `MOST_TRIALS` trials in an episode it
keeps its baseline weight.

A server without a monitor shows nothing at all while it is drained. So its trials begin sooner, and each begins with a
few requests: it gets a low weight for a second or so. Only where these look calm it gets its baseline weight. Such
trials cost little, so there is no limit, but each waits longer than the one before.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

DWELL_S = 2.0
LARGE_FALL = 0.2
"""A fall of at least this share of the baseline is large: it is news, not a wavering estimate."""
WATCH_AFTER_S = 3.0
"""A quiet monitor speaks once a second, and needs two such Samples until its random moments show the neighbour."""
TRIAL_AFTER_S = 6.0
TRIAL_S = 3.0
"""Length of a trial. At five requests a second they decide within this time."""
MOST_TRIALS = 2
FEW_AFTER_S, FEW_GROW, FEW_AFTER_MOST_S = 3.0, 1.1, 20.0
"""A trial with few requests begins this long after the drain or after the trial before. The time grows by this factor
with each trial, up to the last."""
FEW_DECIDE_S = 1.0
"""Time after the requests of a trial until they have been judged."""


@dataclass(frozen=True)
class Position:
    """Where a server's weight stands."""

    weight: int
    moved_s: float | None = None
    """Time of the last move within an episode."""
    blind_s: float | None = None
    """Begin of the time in which the server is below its baseline and nothing would show that its neighbour is gone, or
    the neighbour seems gone without proof."""
    trial_s: float | None = None
    """Begin of the last trial in this episode."""
    trials: int = 0
    """Number of trials in this episode."""
    least: int = 0
    """The lowest weight that the server gets until the end of the episode. It brings enough requests to see the
    neighbour leave, or is what the others have no room for."""
    few_trials: int = 0
    """Number of trials with few requests in this episode. They count apart: the server's monitor may come back."""
    few_trial_s: float | None = None
    """Begin of the last trial with few requests."""
    untried: int | None = None
    """The weight before the trial with few requests that is on; None where none is."""

    def is_tried(self, now_s: float) -> bool:
        """Whether the server has its baseline weight so that its requests decide. After the last trial it keeps it.

        Trials with few requests do not count.
        """
        if self.trial_s is None:
            return False
        return now_s - self.trial_s < TRIAL_S or self.trials >= MOST_TRIALS


def settle(position: Position, target: int, baseline: int, now_s: float, min_change: float) -> Position:
    """The position after this turn of an episode: at `target`, or where it was. It never rises.

    Servers that are slow together answer each other's moves, so a small fall waits until `DWELL_S` after the last move.
    A fall below `min_change`, as a share of the baseline, is not made unless it ends at 0.
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
    """The position with this weight, for which the others have no room. Until the end of the episode it gets no less:
    the same fall would fill the others again."""
    return moved(dataclasses.replace(position, least=max(position.least, weight)), weight, now_s)


def watched(position: Position, weight: int, now_s: float) -> Position:
    """The position; once blind for `WATCH_AFTER_S` it keeps at least this weight until the end of the episode."""
    if position.least >= weight or position.blind_s is None or now_s - position.blind_s < WATCH_AFTER_S:
        return position
    position = dataclasses.replace(position, least=weight)
    return moved(position, weight, now_s) if position.weight < weight else position


def tried(position: Position, baseline: int, now_s: float, blind: bool) -> Position:
    """The position, in its next trial if that is due. `blind`: whether `Position.blind_s` applies now."""
    if not blind or position.weight >= baseline:
        return dataclasses.replace(position, blind_s=None)
    blind_s = now_s if position.blind_s is None else position.blind_s
    if now_s - blind_s < TRIAL_AFTER_S:
        return dataclasses.replace(position, blind_s=blind_s)
    begun = dataclasses.replace(position, blind_s=None, trial_s=now_s, trials=position.trials + 1)
    return moved(begun, baseline, now_s)


def tried_with_few(
    position: Position, baseline: int, few: int, few_s: float, now_s: float, *, blind: bool, slow: bool | None
) -> Position:
    """The position of a server without a monitor, in its next trial if that is due.

    `few`: the weight that brings it a few requests, for `few_s`. `blind` as in `tried`; `slow`: whether its last
    requests were, None for a doubt, or where it answered none. After the few requests it waits for its Verdict with the
    weight of before.
    """
    if position.untried is None or position.few_trial_s is None:
        if not blind or position.weight >= baseline:
            return dataclasses.replace(position, blind_s=None)
        blind_s = now_s if position.blind_s is None else position.blind_s
        if now_s - blind_s < min(FEW_AFTER_S * FEW_GROW**position.few_trials, FEW_AFTER_MOST_S):
            return dataclasses.replace(position, blind_s=blind_s)
        trials, before = position.few_trials + 1, position.weight
        position = dataclasses.replace(position, blind_s=None, few_trial_s=now_s, few_trials=trials, untried=before)
        return moved(position, max(few, before), now_s)
    if slow is False:
        return moved(position, baseline, now_s)
    lasted_s = now_s - position.few_trial_s
    # Where the baseline is 1 the weight of few requests is the baseline too.
    is_whole = position.weight >= baseline and (few < baseline or lasted_s >= few_s)
    if (is_whole and slow is None) or (not is_whole and lasted_s < few_s):
        return position
    lowered = moved(position, max(position.untried, position.least), now_s)
    if not is_whole and lasted_s < few_s + FEW_DECIDE_S:
        return lowered
    return dataclasses.replace(lowered, untried=None, blind_s=now_s if is_whole else position.few_trial_s)
