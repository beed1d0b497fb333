"""The guard: how much harm a wrong verdict may do. It decides who may be reduced, and has the last word on weights.

After Envoy's outlier detection, `max_ejection_percent`: a share of the pool that may be drained at a time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from slackwater.messages import State

PART = 0.1
"""A server below this share of its baseline counts as drained."""


@dataclass(frozen=True)
class Admission:
    """Which servers may be reduced now; `panic`: why none, when the verdicts are not believed."""

    reduce: frozenset[str]
    panic: str = ""
    fails: str = ""
    """Who fails well above its peers, in words: no load is moved to it, so nobody is reduced."""


def limit(usable: int, max_mitigated: float) -> int:
    """How many of `usable` servers may be drained at a time: never the last one."""
    return max(0, min(math.floor(usable * max_mitigated + 1e-9), usable - 1))


def is_drained(weight: int, baseline: int) -> bool:
    """It gets hardly any requests, as long as the balancer goes by weights."""
    return weight < PART * baseline


def least_weight(baseline: int) -> int:
    """The lowest weight that is not drained."""
    return math.ceil(PART * baseline)


def admit(
    states: Mapping[str, State],
    reduced: Collection[str],
    waiting: Collection[str] = (),
    held: Collection[str] = (),
    failing: Mapping[str, float] | None = None,
) -> Admission:
    """Who may be reduced, from the state of each usable server that has a fresh Verdict.

    `reduced`: those that are below their baseline now; `waiting`: those whose episode only waits for its end, which
    lowers none that stands at its baseline; `held`: those whose weight a person or someone else keeps; `failing`: share
    of failed requests of those that fail well above their peers. What one server loses all others get, so nothing is
    moved while one fails that isn't lowered itself.
    """
    if "all_slow" in states.values():
        return Admission(frozenset(), "all servers are slow alike, so it is no neighbour")
    slow = [server for server, state in states.items() if state == "interference"]
    reduce = frozenset(server for server in slow if server in reduced or server not in waiting)
    for server, share in (failing or {}).items():
        if server not in reduce or server in held:
            return Admission(frozenset(), fails=f"{server} fails {share:.0%} of its requests")
    return Admission(reduce)


def admit_drains(
    requested: Collection[str], usable: int, max_mitigated: float, drained: Collection[str]
) -> frozenset[str]:
    """Of the servers whose drain was requested, those that the blast radius has room for beside the ones that are
    drained already."""
    room = limit(usable, max_mitigated) - len(set(drained) - set(requested))
    first = sorted(requested, key=lambda server: (server not in drained, server))
    return frozenset(first[: max(room, 0)])


def bound(
    weights: Mapping[str, int],
    baselines: Mapping[str, int],
    reduce: Collection[str],
    max_mitigated: float,
    others: Mapping[str, int],
    most_weight: int = 256,
    pinned: Collection[str] = (),
) -> dict[str, int]:
    """The weights that may be sent: within 0..baseline, few enough drained, never all zero.

    `weights` are of servers that lbengine governs and that can take requests now, `others` the weights of those that
    can, but that it leaves alone; `most_weight` is the highest that the balancer takes. Of servers beyond the limit one
    in `reduce` keeps `PART` of its baseline, and one that is only on its way back goes to its baseline at once.
    `pinned` are a person's, and go before all others.
    """
    bounded = {server: min(max(weight, 0), baselines[server], most_weight) for server, weight in weights.items()}
    drained = [server for server, weight in bounded.items() if is_drained(weight, baselines[server])]
    drained.sort(
        key=lambda server: (
            server not in pinned,
            server not in reduce,
            bounded[server] / max(baselines[server], 1),
            server,
        )
    )
    for server in drained[limit(len(bounded) + sum(weight > 0 for weight in others.values()), max_mitigated) :]:
        bounded[server] = least_weight(baselines[server]) if server in reduce else baselines[server]
    if not any(bounded.values()) and not any(others.values()):
        return {server: min(baselines[server], most_weight) for server in bounded}
    return bounded
