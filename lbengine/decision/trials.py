"""The few requests with which a server is tried, and with which it comes up. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from slackwater.lbengine.balancer import Server
from slackwater.lbengine.decision import guard
from slackwater.lbengine.decision.state import PoolState

FEW_REQUESTS = 16
"""A trial begins with so many requests, or fewer where these show sooner whether they are slow."""
FEW_LEAST_S, FEW_MOST_S = 1.0, 2.0
"""Range of the time in which they come: five looks at least."""
LEAST_RPS = 2.0
"""In a pool with few requests a server gets this rate in a trial, with at most its baseline weight."""


@dataclass(frozen=True)
class Few:
    """The weight that brings a server a few requests, and the time in which `FEW_REQUESTS` come with it."""

    weight: int
    seconds: float
    others: int
    """Sum of the other servers' weights."""


def few(state: PoolState, usable: Collection[Server], movable: Mapping[str, int], name: str, kept: int = 0) -> Few:
    """The few requests of a server that is in `movable`, beside the `usable` ones.

    Its share is that of a tenth of the baseline beside others at their baselines; more under least connections. A
    server that `kept` more than half of that weight gets twice what it kept: its present requests are no trial.
    """
    present = {server.name: server.weight for server in usable}
    present |= {other: state.positions[other].weight for other in movable}
    usual = {**present, **movable}
    others, others_usual = (sum(weights.values()) - weights[name] for weights in (present, usual))
    baseline, total_rps = movable[name], state.rates.total_rps or 0.0
    ratio = guard.least_weight(baseline) / max(others_usual, 1)
    if state.rates.total_rps is not None:
        ratio = max(ratio, LEAST_RPS / max(total_rps - LEAST_RPS, 1e-9))
    weight = min(max(math.ceil(ratio * others), 2 * kept, 1), baseline)
    few_s = FEW_REQUESTS / max(total_rps * weight / (others + weight), 1e-9)
    return Few(weight, min(max(few_s, FEW_LEAST_S), FEW_MOST_S), others)


def fail_more(failed_rps: float, before_rps: float) -> bool:
    """Whether more requests fail in a trial than before it, when only clients that are bound to the server asked it: by
    more than such a count of a second wavers."""
    return failed_rps > before_rps + 2.0 * math.sqrt(before_rps)
