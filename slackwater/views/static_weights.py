"""An estimate of the p95 that users would have had under the baseline weights.

Until the first weight was changed, the slow server answered its static share of the requests, so its response times of
those moments were measured under static weights. They are pooled with the other servers' times before the episode, each
server with its share by the baseline weights. It holds where weights set shares of the requests (`Cycle.weights_mean`).
docs/results/static-weights-estimate.md compares it with what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from slackwater.core.config import PoolSettings
from slackwater.core.journal.journal import Journal, PoolSeries
from slackwater.views.percentile import Known, pooled_ms

STEPS_A_PERIOD = 4
"""Fine enough that each Sample has its own step."""
BEFORE_PERIODS = 1.5
"""An episode begins with the Sample that decided it; that one and the one before contain slow requests."""
ANSWERED_PERIODS = 1.25
"""Requests sent just before a weight was lowered appear in a Sample this much later."""
LONGEST_S = 10.0
"""At most this much of an episode is used, however late a weight was lowered."""
LEAST_REQUESTS = 30
"""With one slow server of three, the p95 of all requests is the p85 of its own: four or five of 30 are slower."""
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
    sample = journal.latest_samples(pool.name).get(node)
    if sample is None:
        return None, "no estimate: this server sends no Samples"
    begin = since_unix_s - BEFORE_PERIODS * sample.period_s
    last = since_unix_s + LONGEST_S
    answered_s = ANSWERED_PERIODS * sample.period_s
    step_s = sample.period_s / STEPS_A_PERIOD
    try:
        first = journal.history(pool.name, begin, step_s, until_unix_s=last + answered_s, servers=pool.servers)
    except ValueError:  # what a node says of its period may be anything
        return None, f"no estimate: this server says that it sends a Sample every {sample.period_s:g} s"
    changed = first_change(first, baselines)
    if changed is not None and changed <= begin:
        return None, "no estimate: not all weights were at their baselines when it began"
    changed = last if changed is None else min(last, changed)
    own = _seen(first, node, changed + answered_s)
    requests = sample.period_s * math.fsum(rps for rps, *_ in own)
    if requests < LEAST_REQUESTS:
        return None, (
            f"no estimate: only {requests:.0f} requests were answered before a weight was changed, expected at least"
            f" {LEAST_REQUESTS}"
        )
    seen = {other: _seen(calm, other) for other in calm.nodes}
    answered = _mean_rps(_seen(first, node, changed + step_s)) / (_mean_rps(seen.get(node, [])) or math.inf)
    if 0.0 < answered < LEAST_ANSWERED:
        return None, (
            f"no estimate: this server answered only {answered:.0%} of its requests before a weight was changed; how"
            " far its queue would have grown is not known"
        )
    p95_ms = estimate_ms({**seen, node: own}, baselines, 0.95)
    if p95_ms is None:
        return None, "no estimate: too little was measured before it began"
    return p95_ms, (
        f"An estimate from the {requests:.0f} requests that this server answered before a weight was changed, and from"
        " the other servers' times before it began. Its queue would have grown later; that is not in it."
    )


def _seen(history: PoolSeries, node: str, until_unix_s: float = math.inf) -> list[Known]:
    """Requests per second and response times of a node in each step with requests."""
    if node not in history.nodes:
        return []
    series = history.nodes[node]
    steps = zip(history.time_unix_s, series.rps, series.rt_p50_ms, series.rt_p95_ms, series.rt_p99_ms, strict=True)
    return [(rps, p50, p95, p99) for unix_s, rps, p50, p95, p99 in steps if rps and unix_s < until_unix_s]


def _mean_rps(known: Sequence[Known]) -> float:
    return math.fsum(rps for rps, *_ in known) / len(known) if known else 0.0


def estimate_ms(seen: Mapping[str, Sequence[Known]], baselines: Mapping[str, float], q: float) -> float | None:
    """The `q`-quantile of response time over all requests, split by the baselines; None if one was not measured."""
    mixed: list[Known] = []
    for node, baseline in baselines.items():
        if baseline <= 0.0:
            continue
        known = [answered for answered in seen.get(node, ()) if answered[2] is not None]
        total = math.fsum(rps for rps, *_ in known)
        if not total:
            return None
        mixed += [(baseline * rps / total, p50, p95, p99) for rps, p50, p95, p99 in known]
    return pooled_ms(mixed, q)
