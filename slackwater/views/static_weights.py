"""An estimate of the p95 that users would have had under the baseline weights.

From its first slow Sample until the first weight was changed, the slow server answered its static share of the
requests, so its response times of those moments were measured under static weights. They are pooled with the other
servers' times before the episode, each server with its share by the baseline weights. It holds where weights set shares
of the requests (`Cycle.weights_mean`). docs/results/static-weights-estimate.md compares it with what was measured.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slackwater.core.config import PoolSettings
from slackwater.core.journal.journal import Journal, PoolSeries
from slackwater.core.journal.pool_totals import Requests, slow_times
from slackwater.views.harm import ONSET_S
from slackwater.views.percentile import pooled_ms

SAMPLES_STEP_S, WEIGHTS_STEP_S = 0.01, 0.05
"""Each Sample of the node has its own step; all servers' weights need fewer."""
LONGEST_S = 10.0
"""At most this much of an episode is used, however late a weight was lowered."""
LATE_S = 1.0
"""Requests that were sent before a weight was lowered are answered within this time, or are not looked for."""
LEAST_REQUESTS = 20
"""With one slow server of three, the p95 of all requests is the p85 of its own: three of 20 are slower."""
LEAST_ANSWERED = 0.5
"""A server that answers less than this share of its requests has a growing queue, whose length is not known."""


class NotEstimated(Exception):
    """Why there is no estimate, in words that end a sentence."""


def first_change(history: PoolSeries, baselines: Mapping[str, float]) -> float | None:
    """When a weight was first seen to differ from its baseline; None: never."""
    for slot, time_unix_s in enumerate(history.time_unix_s):
        for node, baseline in baselines.items():
            weight = history.nodes[node].weight[slot] if node in history.nodes else None
            if weight is not None and weight != baseline:
                return time_unix_s
    return None


def stayed(history: PoolSeries, baselines: Mapping[str, float]) -> bool:
    """All weights are known in this time, and none differed from its baseline."""
    known = all(
        node in history.nodes and any(weight is not None for weight in history.nodes[node].weight) for node in baselines
    )
    return bool(baselines) and known and first_change(history, baselines) is None


def estimate(
    journal: Journal,
    pool: PoolSettings,
    node: str,
    since_unix_s: float,
    baselines: Mapping[str, float],
    calm: PoolSeries,
) -> tuple[float, str]:
    """The p95 in ms over all requests, and its basis. `calm`: before the episode. Raises NotEstimated."""
    if not baselines.get(node):
        raise NotEstimated("under the baseline weights this server gets no requests")
    before = {other: _answered(calm, other) for other in baselines}
    seen = {other: [each.requests for each in answered] for other, answered in before.items()}
    estimate_ms(seen, baselines, 0.95)  # each server was measured
    usual_ms, usual_rps = pooled_ms(seen[node], 0.95), _rps(before[node])
    if usual_ms is None or not usual_rps:
        raise NotEstimated("this server answered no requests before it began")
    begin, last = since_unix_s - ONSET_S, since_unix_s + LONGEST_S
    weights = journal.history(pool.name, begin, WEIGHTS_STEP_S, until_unix_s=last, servers=pool.servers)
    changed = last if stayed(weights, baselines) else first_change(weights, baselines)
    if changed is None:
        raise NotEstimated("the weights of that time are not known")
    until = max(changed, since_unix_s + ONSET_S)
    for span in slow_times(journal, pool.name, begin):
        if span.node != node and span.node in baselines and span.since_unix_s < until:
            raise NotEstimated(f"{span.node} had an episode at about the same time")
    samples = journal.history(pool.name, begin, SAMPLES_STEP_S, until_unix_s=changed + LATE_S, nodes=[node])
    own = _slow(_answered(samples, node), usual_ms, changed)
    if not own and changed < since_unix_s:
        raise NotEstimated("not all weights were at their baselines (today's) when it began")
    if not own:
        raise NotEstimated("its response times were not above the usual ones before a weight was changed")
    number = math.fsum(each.number for each in own)
    if number < LEAST_REQUESTS:
        raise NotEstimated(
            f"only {number:.0f} requests came to this server while it was slow and no weight was changed, expected at"
            f" least {LEAST_REQUESTS}"
        )
    share = _rps([each for each in own if each.begin_unix_s < changed]) / usual_rps
    if share < LEAST_ANSWERED:
        raise NotEstimated(
            f"this server answered only {share:.0%} of its requests before a weight was changed; how far its queue"
            " would have grown is not known"
        )
    p95_ms = estimate_ms({**seen, node: [(each.number, *each.requests[1:]) for each in own]}, baselines, 0.95)
    others = ", and from the other servers' times before it began" if len(baselines) > 1 else ""
    return p95_ms, (
        f"An estimate from the {number:.0f} requests that came to this server while it was slow and all weights were at"
        f" their baselines{others}. Its queue would have grown later; that is not in it."
    )


class Answered(NamedTuple):
    """What a node answered between two of its Samples."""

    begin_unix_s: float
    seconds: float
    requests: Requests

    @property
    def number(self) -> float:
        return self.requests[0] * self.seconds

    @property
    def p95_ms(self) -> float:
        """0 where nothing was answered."""
        return self.requests[2] or 0.0


def _answered(history: PoolSeries, node: str) -> list[Answered]:
    """What a node answered, by its Samples. The first covers an unknown time and is left out."""
    if node not in history.nodes:
        return []
    series = history.nodes[node]
    answered: list[Answered] = []
    before: float | None = None
    times = series.rt_p50_ms, series.rt_p95_ms, series.rt_p99_ms
    for unix_s, rps, p50, p95, p99 in zip(history.time_unix_s, series.rps, *times, strict=True):
        if rps is None:
            continue
        if before is not None:
            answered.append(Answered(before, unix_s - before, (rps, p50, p95, p99)))
        before = unix_s
    return answered


def _rps(answered: Sequence[Answered]) -> float:
    seconds = math.fsum(each.seconds for each in answered)
    return math.fsum(each.number for each in answered) / seconds if seconds else 0.0


def _slow(answered: Sequence[Answered], usual_ms: float, changed_unix_s: float) -> list[Answered]:
    """From the first Sample that is slow, nearer to the others that are slower than usual than to what is usual, to the
    requests that were sent when the weights were changed."""
    unchanged = [each for each in answered if each.begin_unix_s < changed_unix_s]
    above_ms = [each.p95_ms for each in unchanged if each.p95_ms > usual_ms]
    if not above_ms:
        return []
    slow_ms = statistics.median(above_ms)
    limit_ms = math.sqrt(usual_ms * slow_ms)
    first = next(slot for slot, each in enumerate(unchanged) if each.p95_ms >= limit_ms)
    until = changed_unix_s + min(LATE_S, slow_ms / 1000.0)
    return [each for each in answered[first:] if each.begin_unix_s < until]


def estimate_ms(seen: Mapping[str, Sequence[Requests]], baselines: Mapping[str, float], q: float) -> float:
    """The `q`-quantile of response time over all requests, split by the baselines.

    A server that answered nothing gets nothing. Raises NotEstimated where a server's response times are not known."""
    mixed: list[Requests] = []
    for node, baseline in baselines.items():
        requests = seen.get(node, ())
        known = [each for each in requests if each[0] > 0.0 and each[2] is not None]
        if baseline <= 0.0 or (requests and not any(rps for rps, *_ in requests)):
            continue
        if not known:
            raise NotEstimated(f"the response times of {node} before it began are not known")
        total = math.fsum(rps for rps, *_ in known)
        mixed += [(baseline * rps / total, p50, p95, p99) for rps, p50, p95, p99 in known]
    quantile_ms = pooled_ms(mixed, q)
    if quantile_ms is None:
        raise NotEstimated("no server answered requests before it began")
    return quantile_ms
