"""How soon a policy answered: from a neighbour's onset to the first weight and Verdict, and the way back."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from slackwater.core.messages import SLOW_ALONE
from slackwater_lab.cluster.balancer import BASE_WEIGHT

LATE_S = 0.5
FOUND_S = 2.0
"""A policy should have answered by then."""


def answer_s(
    weights: Sequence[tuple[float, str, int, int]],
    servers: Collection[str],
    calm_s: float,
    on_s: float,
    off_s: float = math.inf,
) -> float | None:
    """Seconds from the first neighbour until a weight of one of the servers fell; None: not before the last one ended.

    Some policies move weights in calm too. So a fall counts only below everything that the
    server had in calm, by as much as its weight went up and down there. `weights` are (at_s, server, weight, requests)
    in order of time, `calm_s` and `on_s` are on the same clock.
    """
    calm: dict[str, tuple[int, int]] = {}
    for at_s, server, weight, _ in weights:
        if server not in servers:
            continue
        low, high = calm.get(server, (weight, weight))
        if calm_s <= at_s <= on_s:
            calm[server] = min(low, weight), max(high, weight)
        elif on_s < at_s <= off_s and server in calm and weight < low and weight <= max(0, low - (high - low)):
            return at_s - on_s
    return None


def back_s(weights: Sequence[tuple[float, str, int, int]], off_s: float) -> float | None:
    """Seconds from the last neighbour's end until all weights were at the baseline to stay; None: they were not at the
    end, or were all the time. `weights` as in `answer_s`."""
    moved_s = [at_s for at_s, _, weight, _ in weights if at_s >= off_s and weight != BASE_WEIGHT]
    after_s = [at_s for at_s, *_ in weights if moved_s and at_s > moved_s[-1]]
    return after_s[0] - off_s if after_s else None


def later_share(
    weights: Sequence[tuple[float, str, int, int]], servers: Collection[str], on_s: float, off_s: float
) -> float | None:
    """Share of the requests that the servers got from `FOUND_S` after the first neighbour until the last one ended.

    None where no request came then. `weights` as in `answer_s`, with each server's requests so far.
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for at_s, server, _, requests in weights:
        if on_s + FOUND_S <= at_s <= off_s:
            first.setdefault(server, requests)
            last[server] = requests
    came = {server: last[server] - first[server] for server in last}
    whole = sum(came.values())
    return sum(came.get(server, 0) for server in servers) / whole if whole else None


def is_away(weights: Sequence[tuple[float, str, int, int]]) -> bool:
    """Whether some weight is not the baseline at the end. `weights` as in `answer_s`."""
    last = {server: weight for _, server, weight, _ in weights}
    return any(weight != BASE_WEIGHT for weight in last.values())


def wrong_moves(
    weights: Sequence[tuple[float, str, int, int]], neighbours: Sequence[Mapping[str, Any]], calm_s: float
) -> int:
    """How often a weight fell from the baseline, from `calm_s` on, while no neighbour was beside its server.

    A fall counts as the neighbour's until `LATE_S` after it ended. `weights` as in `answer_s`, `neighbours` as in
    `detections`.
    """
    before: dict[str, int] = {}
    wrong = 0
    for at_s, server, weight, _ in weights:
        fell = weight < BASE_WEIGHT <= before.get(server, 0)
        before[server] = weight
        wrong += (
            fell
            and at_s >= calm_s
            and not any(
                server == neighbour["host"] and neighbour["on_s"] <= at_s <= neighbour["off_s"] + LATE_S
                for neighbour in neighbours
            )
        )
    return wrong


def detections(
    verdicts: Sequence[tuple[float, str, str]], neighbours: Sequence[Mapping[str, Any]]
) -> list[float | None]:
    """For each neighbour, in the given order: seconds from its onset until its server was first judged slow by itself;
    None: not as long as it was loud. Left out are neighbours whose server was judged so already when they began.

    `verdicts` are (at_s, server, state) in order of time; `neighbours` have `host`, `on_s` and `off_s` on that clock.
    """
    delays: list[float | None] = []
    for neighbour in neighbours:
        own = [(at_s, state) for at_s, server, state in verdicts if server == neighbour["host"]]
        before = [state for at_s, state in own if at_s <= neighbour["on_s"]]
        if before and before[-1] in SLOW_ALONE:
            continue
        hits_s = [at_s for at_s, state in own if neighbour["on_s"] < at_s <= neighbour["off_s"] and state in SLOW_ALONE]
        delays.append(hits_s[0] - neighbour["on_s"] if hits_s else None)
    return delays
