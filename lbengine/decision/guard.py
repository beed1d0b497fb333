"""The guard: how much harm a wrong verdict may do. It decides who may be reduced, and has the last word on weights.

After Envoy's outlier detection: `max_ejection_percent`, and a panic threshold above which verdicts are not believed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from slackwater.messages import State

PANIC_SHARE = 0.5
"""When more than this share (or more than `max_mitigated`) looks slow, no verdict is believed."""
AFTER_PANIC_S = 1.0
STICKINESS = 0.1
"""Severity that a reduced server is given on top when the most severe ones are chosen, so that two don't take turns."""


@dataclass(frozen=True)
class Admission:
    """Which servers may be reduced now; `panic`: why none, when the verdicts are not believed."""

    reduce: frozenset[str]
    panic: str = ""
    shared: bool = False
    """All are slow alike: no server is a better place for requests than another."""
    held_back: frozenset[str] = frozenset()
    """Servers that interference slows but that the blast radius leaves alone."""


def limit(usable: int, max_mitigated: float) -> int:
    """How many of `usable` servers may stand below their baseline at a time: never the last one."""
    return max(0, min(math.floor(usable * max_mitigated + 1e-9), usable - 1))


def admit(
    states: Mapping[str, tuple[State, float]],
    usable: Collection[str],
    max_mitigated: float,
    reduced: Collection[str],
    waiting: Collection[str] = (),
    after_panic: bool = False,
) -> Admission:
    """Chooses who may be reduced.

    `states`: state and severity of each server that has a fresh Verdict; `usable`: servers that can take requests;
    `reduced`: those that are below their baseline now; `waiting`: those whose episode only waits for its end. Such an
    episode is no sign of a panic. It may keep a server reduced where no other one needs the place, but it lowers none
    that stands at its baseline. Nor does any episode `after_panic`, for `AFTER_PANIC_S`: neighbours that leave together
    leave queues that drain one after the other.
    """
    if any(state == "all_slow" for state, _ in states.values()):
        return Admission(frozenset(), "all servers are slow alike, so it is no neighbour", shared=True)
    slow = [server for server in usable if states.get(server, ("calm", 0.0))[0] == "interference"]
    believed, now = max(max_mitigated, PANIC_SHARE), [server for server in slow if server not in waiting]
    if len(now) > len(usable) * believed + 1e-9:
        return Admission(
            frozenset(), f"{len(now)} of {len(usable)} servers look slow, and more than {believed:.0%} is not believed"
        )
    most = limit(len(usable), max_mitigated)
    slow = [server for server in slow if server in reduced or not (server in waiting or after_panic)]
    slow.sort(key=lambda server: (server in waiting, -(states[server][1] + STICKINESS * (server in reduced)), server))
    return Admission(frozenset(slow[:most]), held_back=frozenset(slow[most:]))


def admit_drains(
    requested: Collection[str], usable: int, max_mitigated: float, below: Collection[str], drained: Collection[str]
) -> frozenset[str]:
    """Of the servers whose drain was requested, those that the blast radius has room for.

    `below`: servers that are to be below their baseline anyway; `drained`: those that have no weight now.
    """
    room = limit(usable, max_mitigated) - len(set(below) - set(requested))
    first = sorted(requested, key=lambda server: (server not in below, server not in drained, server))
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
    """The weights that may be sent: within 0..baseline, few enough below the baseline, never all zero.

    `weights` are of servers that lbengine governs and that can take requests now, `others` the weights of those that
    can, but that it leaves alone; `most_weight` is the highest that the balancer takes. One that is only
    on its way back makes room for one in `reduce`: it goes to its baseline at once. `pinned` are a
    person's, and go before all others.
    """
    bounded = {server: min(max(weight, 0), baselines[server], most_weight) for server, weight in weights.items()}
    below = [server for server, weight in bounded.items() if weight < baselines[server]]
    below.sort(
        key=lambda server: (
            server not in pinned,
            server not in reduce,
            bounded[server] / max(baselines[server], 1),
            server,
        )
    )
    for server in below[limit(len(bounded) + sum(weight > 0 for weight in others.values()), max_mitigated) :]:
        bounded[server] = baselines[server]
    if not any(bounded.values()) and not any(others.values()):
        return {server: min(baselines[server], most_weight) for server in bounded}
    return bounded
