"""Where a server's weight stands within an episode, and which move is worth making. Pure.

A weight goes down at once, and back to its baseline at once when the server is proven calm. In between it does not
rise: the estimates of a drained server are old, so a higher weight from the law is no evidence. Where the others would
be too full the server gets load back all the same; `room` decides that.

Where nothing that shows would prove calm, requests decide, in a trial. It begins with a few requests, as many as tell a
slow server from a fast one. Where they are slow it ends at once. Where they are fast the server gets its baseline
weight, until more requests prove calm or are slow. Where they leave a doubt the next trial brings more of them, with at
most half of the baseline. So no server gets its load back by time alone.

A server that comes up is in its warm-up: it begins with a few requests too, and gets `MORE` times its weight each time
that these are fast, up to its baseline weight. Where they are slow it waits there until its caches are warm.

A trial may make requests slow. The next one waits until that is a small share of the pool's requests, and longer in a
long episode. So there is no limit to the number of trials.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

DWELL_S = 2.0
LARGE_FALL = 0.2
"""A fall of at least this share of the baseline is large: it is news, not a wavering estimate."""
MOST_APART_S = 20.0
"""From a trial's end to the next trial."""
COST_SHARE = 0.015
"""Share of the pool's requests that a server gets in trials. Not all of them are slow."""
LOOKS_S = 0.5
"""A server is fast with few requests no sooner than this, which is three looks."""
DECIDE_S = 1.0
"""Time after the few requests of a trial until they have been judged."""
DOUBT = 0.25
"""While the probability that a server is slow is between this and its complement, more requests have to decide."""
MORE = 4
"""After a trial that left a doubt the next one begins with so many times its weight, at most half of the baseline."""
GONE_S = 60.0
"""A server that has been away for so long is not waited for."""
SILENT_S = 6.0
"""A server of which nothing is heard keeps its lower weight for this time."""
Stage = Literal["few", "judged", "all", "over"]
"""few: it gets a few requests. judged: it has the weight of before, until they have been judged. all: it has its
baseline weight."""


@dataclass(frozen=True)
class Requests:
    """What the requests of a lowered server show in a turn, and how many it could get."""

    probability: float
    """Probability that the server is slow, or fails. Without answers it falls with time alone."""
    answered: bool
    """Whether the probability is of a time in which the server answered any."""
    few: int
    """The weight that brings it a few requests."""
    few_s: float
    """The time in which as many come as it takes to tell whether they are slow."""
    others: int
    """Sum of the other servers' weights."""
    fails: bool = False
    """Whether the server fails well above its peers; in an episode of `errors` whether more requests failed in the last
    second than before the trial. One that fails at once looks fast."""
    failed_rps: float = 0.0
    """Requests that failed in the last second."""

    def share(self, weight: int) -> float:
        """Share of the pool's requests that the server gets with this weight."""
        return weight / max(weight + self.others, 1)


@dataclass(frozen=True)
class Trial:
    """A trial with requests."""

    stage: Stage
    since_s: float
    """Begin of the stage."""
    before: int
    """The weight before the trial."""
    probability: float
    """`Requests.probability` at the begin of the stage."""
    cost_s: float = 0.0
    """Share of the pool's requests that the server got for the trial, times its length."""
    answered: bool = False
    """Whether any requests of the trial were answered and judged."""
    few: int = 0
    """The weight with which it began; 0 once it is over, unless its requests were too few to tell."""
    failed_rps: float = 0.0
    """`Requests.failed_rps` before it: of clients that are bound to the server."""


@dataclass(frozen=True)
class WarmUp:
    """A server that is away, or came up and has not shown that its full weight is not too much."""

    away_s: float
    """Time of the first turn in which it was away."""
    up_s: float
    """Time of the last such turn."""
    stage_s: float
    """Time of its last move since then."""
    lowers: bool = True
    """Whether its weight falls while it is away."""
    served: int = -1
    """Requests that it had answered when it got this weight; -1: not known yet."""
    held: int = 0
    """Requests that it held at each look since then."""
    long: int = 0
    """So many were held at each look with a lower weight too, which was not too much: they are long by themselves."""


@dataclass(frozen=True)
class Position:
    """Where a server's weight stands."""

    weight: int
    moved_s: float | None = None
    """Time of the last move within an episode."""
    blind_s: float | None = None
    """Begin of the time in which the server is below its baseline and nothing would show that its neighbour is gone, or
    the neighbour seems gone without proof."""
    silent_s: float | None = None
    """Begin of the time in which nothing is heard of the server."""
    least: int = 0
    """The lowest weight that the server gets until the end of the episode, since the others have no room for it."""
    trial: Trial | None = None
    """The last trial in this episode."""
    warm_up: WarmUp | None = None
    """None: the server is not away, and is warm."""

    @property
    def is_tried(self) -> bool:
        """Whether a trial is on."""
        return self.trial is not None and self.trial.stage != "over"

    @property
    def has_few(self) -> bool:
        """Whether a trial is on that a few requests decide."""
        return self.trial is not None and self.trial.stage in ("few", "judged")


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


def tried(
    position: Position, baseline: int, requests: Requests, now_s: float, *, blind: bool, after_s: float
) -> Position:
    """The position, in the next stage of its trial, or in its next trial if that is due.

    `blind`: whether `Position.blind_s` applies now. `after_s`: no trial begins sooner after the begin of that time.
    """
    trial = position.trial
    if trial is None or trial.stage == "over":
        if not blind or position.weight >= baseline:
            return dataclasses.replace(position, blind_s=None)
        since_s = now_s if position.blind_s is None else position.blind_s
        cost_s = 0.0 if trial is None else trial.cost_s
        if now_s - since_s < min(max(after_s, cost_s / COST_SHARE), MOST_APART_S):
            return dataclasses.replace(position, blind_s=since_s)
        few = max(requests.few, 0 if trial is None else min(MORE * trial.few, baseline // 2))
        begun = Trial("few", now_s, position.weight, requests.probability, few=few, failed_rps=requests.failed_rps)
        return moved(dataclasses.replace(position, blind_s=None, trial=begun), few, now_s)
    trial = dataclasses.replace(trial, answered=trial.answered or requests.answered)
    position = dataclasses.replace(position, trial=trial)
    # Time alone lowers the probability, so where it rose the requests of this stage are slow.
    rose = requests.probability > trial.probability or requests.fails
    slow = requests.probability >= 1.0 - DOUBT and rose
    fast = trial.answered and not requests.fails and requests.probability <= DOUBT
    lasted_s = now_s - trial.since_s
    fast_s, doubt_s = (LOOKS_S, requests.few_s) if trial.stage == "few" else (0.0, DECIDE_S)
    if not slow and (trial.stage == "all" or lasted_s < (fast_s if fast else doubt_s)):
        return position
    stage: Stage = "over" if slow else "all" if fast else "judged" if trial.stage == "few" else "over"
    share = max(requests.share(position.weight) - requests.share(trial.before), 0.0)
    cost_s = trial.cost_s + share * lasted_s
    leaves_doubt = trial.answered and not slow and not requests.fails
    few = trial.few if stage != "over" or leaves_doubt else 0
    after = Trial(
        stage, now_s, trial.before, requests.probability, cost_s, trial.answered, few, failed_rps=trial.failed_rps
    )
    blind_s = trial.since_s if trial.stage == "judged" else None
    weight = baseline if stage == "all" else max(trial.before, position.least)
    return moved(dataclasses.replace(position, trial=after, blind_s=blind_s), weight, now_s)


def is_gone(position: Position, now_s: float) -> bool:
    """Whether the server has been away for so long that nobody waits for it."""
    warm_up = position.warm_up
    return warm_up is not None and warm_up.up_s >= now_s > warm_up.away_s + GONE_S


def warmed(position: Position, baseline: int, requests: Requests, now_s: float) -> Position:
    """The position of a server that came up: at `MORE` times its weight where its requests are fast, at as much less
    where they are slow. Its warm-up is over when they are fast with the baseline weight."""
    warm_up = position.warm_up
    assert warm_up is not None
    least = min(max(requests.few, position.least), baseline)
    if position.weight < least:
        return _warming_at(position, least, now_s)
    lasted_s = now_s - warm_up.stage_s
    if requests.fails or requests.probability >= 1.0 - DOUBT:
        fallen = max(position.weight // MORE, least)
        return position if fallen == position.weight else _warming_at(position, fallen, now_s)
    fast = requests.answered and requests.probability <= DOUBT and lasted_s >= LOOKS_S
    if not fast and (not requests.answered or lasted_s < requests.few_s):
        return position
    if position.weight >= baseline:
        return Position(baseline)
    return _warming_at(position, min(MORE * position.weight, baseline), now_s)


def _warming_at(position: Position, weight: int, now_s: float) -> Position:
    """The next stage of a warm-up, in which nothing was shown yet."""
    assert position.warm_up is not None
    held = position.warm_up.held
    long = held if weight > position.weight else min(position.warm_up.long, held)
    warm_up = dataclasses.replace(position.warm_up, stage_s=now_s, served=-1, held=0, long=long)
    return dataclasses.replace(position, weight=weight, warm_up=warm_up)


def silent(position: Position, baseline: int, now_s: float) -> Position:
    """The position of a server of which nothing is heard: silence is no proof of calm."""
    silent_s = now_s if position.silent_s is None else position.silent_s
    if position.weight < baseline and now_s - silent_s < SILENT_S:
        return dataclasses.replace(position, silent_s=silent_s)
    return Position(baseline)
