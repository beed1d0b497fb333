"""The guard: how much harm a wrong verdict may do. It decides who may be reduced, and has the last word on weights.

After Envoy's outlier detection, `max_ejection_percent`: a share of the pool that may be drained at a time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from slackwater.core.messages import SLOW_ALONE, State

PART = 0.1
"""A server whose weight is below this share of its baseline counts as drained."""


@dataclass(frozen=True)
class Admission:
    """Which servers may be reduced now."""

    reduce: frozenset[str]
    panic: str = ""
    """Why no server is believed to be slow by itself, in words; empty where they are."""
    fails: str = ""
    """Which server fails well above its peers, in words. No load may be moved to it, so no slow server is reduced."""


def limit(usable: int, max_mitigated: float) -> int:
    """How many of `usable` servers may be drained at a time; always fewer than all."""
    return max(0, min(math.floor(usable * max_mitigated + 1e-9), usable - 1))


def is_drained(weight: int, baseline: int) -> bool:
    """Whether a server with this weight gets hardly any requests, as long as the balancer goes by weights."""
    return weight < PART * baseline


def least_weight(baseline: int) -> int:
    """The lowest weight with which a server does not count as drained."""
    return math.ceil(PART * baseline)


def admit(
    states: Mapping[str, State],
    reduced: Collection[str],
    waiting: Collection[str] = (),
    held: Collection[str] = (),
    failing: Mapping[str, float] | None = None,
) -> Admission:
    """Which servers may be reduced, from the state of each usable server that has a fresh Verdict.

    `reduced`: servers that are below their baseline now. `waiting`: servers whose episode only waits for its end; one
    of these that stands at its baseline is not lowered. `held`: servers whose weight a person or another program keeps.
    `failing`: share of failed requests of the servers that fail well above their peers. The load that is taken from one
    server goes to all others, so no slow server's is moved while a server fails that is not lowered itself. A server in
    `errors` loses most of its answers, so each other one is better, a slow one and one that fails less.
    """
    slow = [server for server, state in states.items() if state in SLOW_ALONE]
    reduce = frozenset(server for server in slow if server in reduced or server not in waiting)
    lost = frozenset(server for server in reduce if states[server] == "errors")
    if "all_slow" in states.values():
        return Admission(lost, "all servers are slow together, so no neighbour is the cause")
    for server, share in (failing or {}).items():
        if server not in reduce or server in held:
            return Admission(lost, fails=f"{server} fails {share:.0%} of its requests")
    return Admission(reduce)


def admit_drains(
    requested: Collection[str], usable: int, max_mitigated: float, drained: Collection[str]
) -> frozenset[str]:
    """The servers, of those whose drain was requested, that may be drained without exceeding `limit`.

    `drained`: servers that are drained already. They count against the limit, and go first if requested.
    """
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

    `weights`: of the servers that lbengine governs and that can take requests now. `others`: weights of the servers
    that can, but that lbengine leaves alone. `most_weight`: the highest weight that the balancer takes. A drained
    server beyond the limit keeps `PART` of its baseline if it is in `reduce`; otherwise it is on its way back, and gets
    its baseline at once. Servers that a person `pinned` stay drained before all others.
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
