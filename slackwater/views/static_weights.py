"""An estimate of the p95 that users would have had under the baseline weights.

From its first slow Sample until the first weight was changed, the slow server answered its static share of the
requests, so its response times of those moments were measured under static weights. They are pooled with the other
servers' times before the episode, each server with its share by the baseline weights. It holds where weights set shares
of the requests (`Cycle.weights_mean`). docs/results/static-weights-estimate.md compares it with what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slackwater.core.config import PoolSettings
from slackwater.core.journal.journal import Journal, PoolSeries
from slackwater.core.journal.pool_totals import Requests
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
    return known and first_change(history, baselines) is None


def estimate(
    journal: Journal,
    pool: PoolSettings,
    node: str,
    since_unix_s: float,
    baselines: Mapping[str, float],
    calm: PoolSeries,
) -> tuple[float | None, str]:
    """The p95 in ms over all requests, and its basis, or the reason why there is none. `calm`: before the episode."""
    seen = {other: [answered.requests for answered in _answered(calm, other)] for other in calm.nodes}
    usual = seen.get(node, [])
    usual_ms = pooled_ms(usual, 0.95)
    if usual_ms is None:
        return None, "no estimate: too little was measured before it began"
    begin, last = since_unix_s - ONSET_S, since_unix_s + LONGEST_S
    weights = journal.history(pool.name, begin, WEIGHTS_STEP_S, until_unix_s=last, servers=pool.servers)
    changed = first_change(weights, baselines) or last
    samples = journal.history(pool.name, begin, SAMPLES_STEP_S, until_unix_s=changed + LATE_S, nodes=[node])
    own = _slow(_answered(samples, node), usual_ms, since_unix_s, changed)
    unchanged = [answered for answered in own if answered.begin_unix_s < changed]
    if not unchanged and changed < since_unix_s:
        return None, "no estimate: not all weights were at their baselines when it began"
    number = math.fsum(answered.number for answered in own)
    if number < LEAST_REQUESTS:
        return None, (
            f"no estimate: only {number:.0f} requests were answered before a weight was changed, expected at least"
            f" {LEAST_REQUESTS}"
        )
    answered_rps = math.fsum(each.number for each in unchanged) / math.fsum(each.seconds for each in unchanged)
    share = answered_rps * len(usual) / math.fsum(rps for rps, *_ in usual)
    if share < LEAST_ANSWERED:
        return None, (
            f"no estimate: this server answered only {share:.0%} of its requests before a weight was changed; how"
            " far its queue would have grown is not known"
        )
    p95_ms = estimate_ms({**seen, node: [(each.number, *each.requests[1:]) for each in own]}, baselines, 0.95)
    if p95_ms is None:
        return None, "no estimate: too little was measured before it began"
    return p95_ms, (
        f"An estimate from the {number:.0f} requests that this server answered before a weight was changed, and from"
        " the other servers' times before it began. Its queue would have grown later; that is not in it."
    )


class Answered(NamedTuple):
    """The requests that a node answered between two of its Samples."""

    begin_unix_s: float
    seconds: float
    requests: Requests

    @property
    def number(self) -> float:
        return self.requests[0] * self.seconds


def _answered(history: PoolSeries, node: str) -> list[Answered]:
    """What a node answered, by its Samples. The first covers an unknown time and is left out."""
    if node not in history.nodes:
        return []
    series = history.nodes[node]
    times = series.rt_mean_ms, series.rt_p50_ms, series.rt_p95_ms, series.rt_p99_ms
    answered: list[Answered] = []
    before: float | None = None
    for unix_s, rps, mean, p50, p95, p99 in zip(history.time_unix_s, series.rps, *times, strict=True):
        if rps is None:
            continue
        if rps and p95 is not None and before is not None:
            answered.append(Answered(before, unix_s - before, (rps, mean, p50, p95, p99)))
        before = unix_s
    return answered


def _slow(answered: Sequence[Answered], usual_ms: float, since_unix_s: float, changed_unix_s: float) -> list[Answered]:
    """From the first Sample that is slow, nearer to the slowest than to what is usual, to the requests that were sent
    when the weights were changed."""
    decided = max(since_unix_s, changed_unix_s)
    p95_ms = [each.requests[3] or 0.0 for each in answered if each.begin_unix_s < decided]
    slowest_ms = max(p95_ms, default=0.0)
    limit_ms = math.sqrt(usual_ms * slowest_ms)
    first = next((slot for slot, p95 in enumerate(p95_ms) if p95 > limit_ms), len(answered))
    late_s = min(LATE_S, slowest_ms / 1000.0)
    return [each for each in answered[first:] if each.begin_unix_s < changed_unix_s + late_s]


def estimate_ms(seen: Mapping[str, Sequence[Requests]], baselines: Mapping[str, float], q: float) -> float | None:
    """The `q`-quantile of response time over all requests, split by the baselines; None if one was not measured."""
    mixed: list[Requests] = []
    for node, baseline in baselines.items():
        if baseline <= 0.0:
            continue
        total = math.fsum(rps for rps, *_ in seen.get(node, ()))
        if not total:
            return None
        mixed += [(baseline * rps / total, mean, p50, p95, p99) for rps, mean, p50, p95, p99 in seen[node]]
    return pooled_ms(mixed, q)
