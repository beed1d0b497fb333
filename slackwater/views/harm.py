"""What users felt during episodes, and how much of it lbengine's recorded predictions would have avoided.

A moment is slow while more than 5% of a pool's requests take longer than a limit: the pool's `target_p95_ms`, else
`TIMES_CALM` times the p95 of the calm before. It would have been avoided if the p95 that lbengine recorded as its
prediction, for the weights that it wanted then, is within the limit. Without a record there is no figure.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import msgspec

from slackwater.core.config import PoolSettings
from slackwater.core.journal.journal import Journal
from slackwater.core.journal.pool_totals import Requests, requests
from slackwater.core.messages import Change
from slackwater.views.percentile import pooled_ms, share_above
from slackwater.views.why import BEFORE_S, Episode

Q = 0.95
TIMES_CALM = 2.0
APART_S = 300.0
"""Episodes with less time between them are measured together: that time is no calm to compare with."""
ONSET_S = 2.0
"""The first slow requests of an episode may have been answered this long before it begins."""
MINUTE_S = 60.0
CALM_S = {1.0: 50.0, MINUTE_S: 300.0}
"""By the finest step of the series: how much of the time before is taken as calm, in one step."""
MOST_STEPS = 600
MOST_SERVER_S = 30_000.0
"""Seconds times servers of a pool that are read in steps of a second, the newest episodes first; all others are read in
minutes. With three servers those are nearly three hours, with 300 the last 100 s."""
OVER_S = 3 * MINUTE_S
"""This long after a run's end its last minute is rolled up, and no Sample is on its way."""
MOST_KEPT = 1000
"""Most runs that are remembered; most of them take little memory."""
LEAST_OUTCOMES = 5
"""With fewer outcomes it is not known how far predictions are off."""
Unknown = Literal["", "no_samples", "no_calm", "no_prediction", "acted", "weights_set_nothing"]
UNKNOWN: dict[Unknown, str] = {
    "no_samples": "no response times of that time are in the journal",
    "no_calm": "no requests were measured in the calm before it, and the pool has no `target_p95_ms`",
    "no_prediction": "lbengine recorded no prediction; it needs each server's capacity and response times",
    "acted": "weights were changed, so what users would have felt without that was not measured",
    "weights_set_nothing": "under this balance algorithm weights set nothing",
}
"""Why a figure is not known."""


class Harm(msgspec.Struct):
    """What users felt in a time; what is not known is None, and its reason is beside it."""

    limit_ms: float | None = None
    """Above it the pool's p95 counts as slow."""
    slow_s: float | None = None
    slow_requests: float | None = None
    """Requests that took longer than the limit, by each server's percentiles."""
    slow_unknown: Unknown = ""
    avoided_s: float | None = None
    least_avoided_s: float | None = None
    most_avoided_s: float | None = None
    """The same if all predictions were off to either side by as much as nine of ten of the outcomes were."""
    avoided_unknown: Unknown = ""


@dataclass(frozen=True, eq=False)
class Piece:
    """A time without a change of anything that is measured or predicted."""

    begin_unix_s: float
    end_unix_s: float
    slow_rps: float
    slow: bool
    decision: Change | None
    """The last one with a prediction."""

    @property
    def seconds(self) -> float:
        return self.end_unix_s - self.begin_unix_s


@dataclass(frozen=True)
class MeasuredRun:
    """A run of episodes that are close together."""

    episodes: Sequence[Episode]
    limit_ms: float | None
    pieces: Sequence[Piece]
    slow_unknown: Unknown
    avoided_unknown: Unknown


def runs(episodes: Iterable[Episode], now_unix_s: float) -> list[list[Episode]]:
    """The episodes (the oldest first) in runs with at least `APART_S` between them."""
    runs_so_far: list[list[Episode]] = []
    until = -math.inf
    for episode in episodes:
        if not runs_so_far or episode.since_unix_s - until >= APART_S:
            runs_so_far.append([])
        runs_so_far[-1].append(episode)
        until = max(until, end_of(episode, now_unix_s))
    return runs_so_far


def end_of(episode: Episode, now_unix_s: float) -> float:
    if episode.until_unix_s is None:
        return now_unix_s if episode.unseen_since_unix_s is None else episode.unseen_since_unix_s
    return episode.until_unix_s


def finest_steps(
    runs_of_pool: Sequence[Sequence[Episode]], servers: int, now_unix_s: float, keep_samples_s: float
) -> list[float]:
    """The steps in which each run (the oldest first) is read: of a second or a minute."""
    left = MOST_SERVER_S
    steps_s = []
    for run in reversed(runs_of_pool):
        since = run[0].since_unix_s
        left -= servers * (until_of(run, now_unix_s) - since + CALM_S[1.0])
        kept = now_unix_s - since <= keep_samples_s - 2 * MINUTE_S
        steps_s.append(1.0 if kept and left >= 0.0 else MINUTE_S)
    return steps_s[::-1]


def until_of(run: Sequence[Episode], now_unix_s: float) -> float:
    return max(end_of(episode, now_unix_s) for episode in run)


@dataclass(frozen=True)
class Run:
    """A run of episodes, and how it is to be measured."""

    pool: PoolSettings
    episodes: Sequence[Episode]
    changes: Sequence[Change]
    """The weight changes of the pool in its time, the oldest first."""
    finest_s: float
    weights_work: bool


Measure = Callable[[Journal, Run, float], MeasuredRun]
"""Measures a run at a time."""


def measure(journal: Journal, run: Run, now_unix_s: float) -> MeasuredRun:
    """Reads what users felt from the journal. Raises JournalError."""
    pool, episodes, changes, finest_s = run.pool, run.episodes, run.changes, run.finest_s
    since = episodes[0].since_unix_s
    until = until_of(episodes, now_unix_s)
    limit_ms = pool.target_p95_ms or None
    if limit_ms is None:
        calm_s, calm_until = CALM_S[finest_s], _floor(since - ONSET_S, finest_s)
        before = requests(journal, pool.name, calm_until - calm_s, calm_s, calm_until)
        calm_ms = pooled_ms([server for known in before.values() for server in known], Q)
        limit_ms = None if calm_ms is None else TIMES_CALM * calm_ms
    avoided_unknown = _avoided_unknown(changes, run.weights_work)
    if limit_ms is None:
        return MeasuredRun(episodes, None, [], "no_calm", avoided_unknown or "no_calm")
    step_s = finest_s * max(1, math.ceil((until - since) / MOST_STEPS / finest_s))
    begin = _floor(since, finest_s)
    answered = requests(journal, pool.name, begin, step_s, until)
    steps = [(begin + slot * step_s, begin + (slot + 1) * step_s, answered[slot]) for slot in sorted(answered)]
    pieces = list(_pieces(steps, episodes, changes, limit_ms, now_unix_s))
    missing: Unknown = "" if pieces else "no_samples"
    return MeasuredRun(episodes, limit_ms, pieces, missing, avoided_unknown or missing)


class Remembered:
    """`measure` with a memory: a run that is over does not change any more, and is measured once. May be called from
    several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[object, ...], MeasuredRun] = {}

    def __call__(self, journal: Journal, run: Run, now_unix_s: float) -> MeasuredRun:
        if now_unix_s - until_of(run.episodes, now_unix_s) < OVER_S:
            return measure(journal, run, now_unix_s)
        spans = tuple((episode.node, episode.since_unix_s, episode.until_unix_s) for episode in run.episodes)
        changes = tuple(made.id for made in run.changes)
        key = (run.pool.name, run.pool.target_p95_ms, spans, changes, run.finest_s, run.weights_work)
        with self._lock:
            known = self._known.pop(key, None)
        if known is None:
            known = measure(journal, run, now_unix_s)
        with self._lock:
            self._known[key] = known  # now the newest
            while len(self._known) > MOST_KEPT:
                del self._known[next(iter(self._known))]
        return replace(known, episodes=run.episodes)


def _avoided_unknown(changes: Sequence[Change], weights_work: bool) -> Unknown:
    if any(made.applied for made in changes):
        return "acted"
    if changes and not weights_work:
        return "weights_set_nothing"
    return "no_prediction" if changes and all(made.rt_p95_predicted_ms is None for made in changes) else ""


def harm(measured: MeasuredRun, episode: Episode | None, now_unix_s: float, off_by: float | None) -> Harm:
    """The harm of one episode, or of the whole run (None), in which time within several episodes counts once."""
    if measured.slow_unknown:
        return Harm(measured.limit_ms, slow_unknown=measured.slow_unknown, avoided_unknown=measured.avoided_unknown)
    episodes = measured.episodes if episode is None else [episode]
    spans = [(each.since_unix_s, end_of(each, now_unix_s)) for each in episodes]
    inside = {
        piece: min(begins)
        for piece in measured.pieces
        if (begins := [since for since, until in spans if since <= piece.begin_unix_s and piece.end_unix_s <= until])
    }
    slow = {piece: since for piece, since in inside.items() if piece.slow}
    result = Harm(
        measured.limit_ms,
        math.fsum(piece.seconds for piece in slow),
        math.fsum(piece.slow_rps * piece.seconds for piece in inside),
        avoided_unknown=measured.avoided_unknown,
    )
    assert measured.limit_ms is not None
    if not measured.avoided_unknown:
        result.avoided_s = _avoided_s(slow, measured.limit_ms, 1.0)
        if off_by is not None:
            result.least_avoided_s = _avoided_s(slow, measured.limit_ms, off_by)
            result.most_avoided_s = _avoided_s(slow, measured.limit_ms, 1.0 / off_by)
    return result


def _avoided_s(slow: Mapping[Piece, float], limit_ms: float, factor: float) -> float:
    """Seconds that would not have been slow if each prediction came out higher by this factor.

    `slow` has the beginning of each piece's episode: a decision of an earlier one predicted nothing about it.
    """
    return math.fsum(
        piece.seconds
        for piece, since in slow.items()
        if piece.decision is not None
        and piece.decision.time_unix_s >= since - BEFORE_S
        and factor * (piece.decision.rt_p95_predicted_ms or 0.0) <= limit_ms
    )


def off_by(outcomes: Iterable[Change]) -> float | None:
    """The factor within which nine of ten predictions came true; None if too few outcomes are known."""
    factors = sorted(
        max(outcome.rt_p95_ms / outcome.rt_p95_predicted_ms, outcome.rt_p95_predicted_ms / outcome.rt_p95_ms)
        for outcome in outcomes
        if outcome.rt_p95_ms and outcome.rt_p95_predicted_ms
    )
    return factors[math.ceil(0.9 * len(factors)) - 1] if len(factors) >= LEAST_OUTCOMES else None


def _pieces(
    steps: Iterable[tuple[float, float, Sequence[Requests]]],
    episodes: Sequence[Episode],
    changes: Sequence[Change],
    limit_ms: float,
    now_unix_s: float,
) -> Iterable[Piece]:
    """The measured steps, cut where an episode begins or ends and where a prediction was recorded.

    Of each step it takes begin, end and what each server answered.
    """
    predicted = [made for made in changes if made.rt_p95_predicted_ms is not None]
    times = [made.time_unix_s for made in predicted]
    cuts = sorted(
        set(times)
        | {episode.since_unix_s for episode in episodes}
        | {end_of(episode, now_unix_s) for episode in episodes}
    )
    for begin, end, known in steps:
        share = share_above(known, limit_ms)
        if share is None:
            continue
        total_rps = math.fsum(rps for rps, *_ in known)
        edges = [begin, *(cut for cut in cuts if begin < cut < end), end]
        for since, until in pairwise(edges):
            past = bisect_right(times, since)
            last = predicted[past - 1] if past else None
            yield Piece(since, until, share * total_rps, share > 1.0 - Q, last)


def _floor(unix_s: float, step_s: float) -> float:
    return math.floor(unix_s / step_s) * step_s
