"""What `balance random(2)` makes of weights: how many requests each server gets, and how many the pool holds. Pure.

HAProxy draws two servers by weight, the same one perhaps twice, and takes the one with fewer requests in flight for its
weight (`get_server_rnd` in src/backend.c). So a slow server gets less than its share of the draws, but never less than
the requests for which it was drawn twice.

The servers are taken as independent processor-sharing queues, each of which meets the others at their mean: the
mean-field fixed point (M. Mitzenmacher, "The power of two choices in randomized load balancing", IEEE TPDS 12(10),
2001; for servers of different speeds A. Mukhopadhyay and R. R. Mazumdar, "Analysis of randomized
join-the-shortest-queue schemes in large heterogeneous processor-sharing systems", IEEE TCNS 3(2), 2016). A server with
the share d of the draws that holds k requests gets more of them at the rate

    R·d·(d + Σ over the others of their d·(P(theirs > k) + P(theirs >= k)))      where both are counted for the weight.

In a small pool queues also grow and shrink together, as those of one server with the whole pool's capacity. The two
kinds of waiting are added as if by chance, by squares: within 17% of what the Markov chain of 3 to 8 servers holds
(`tests/lbengine/test_two_choices.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from lbengine.decision.prediction import FULL, SLOPE, Alike, in_server

LEVELS = 10
"""Numbers of requests that are told apart; beyond, each further one is less likely by the same factor."""
LONGEST = 2 * LEVELS
"""No queue is longer when queues of servers with different weights are compared."""
SWEEPS = 60
PRECISION = 3e-4
"""Of what a server holds, from one sweep to the next."""


@dataclass(frozen=True)
class Queue:
    """One server of a group in the long run."""

    beyond: tuple[float, ...]
    """Probability that it holds so many requests or more, by number, up to `LONGEST` + 1."""
    held: float
    """Requests in it on average."""
    filled: float
    """Rate of the requests that it gets over its capacity; above 1 where it is full."""


def held_together(groups: Sequence[Alike], total_rps: float) -> float:
    """Requests in the pool."""
    used = [group for group in groups if group.weight > 0.0]
    working = tuple(Alike(group.count, group.weight, group.working_rps) for group in used)
    settled = queues(working, total_rps)
    held = math.fsum(group.count * queue.held for group, queue in zip(used, settled, strict=True))
    busy = math.fsum(group.count * queue.beyond[1] for group, queue in zip(used, settled, strict=True))
    filled = total_rps / math.fsum(group.count * group.capacity_rps for group in working)
    over = math.fsum(
        group.count * max(queue.filled * group.speed - FULL, 0.0)
        for group, queue in zip(used, settled, strict=True)
        if group.speed > 1.0
    )
    return busy + math.hypot(held - busy, in_server(filled) - filled) + SLOPE * over


def shares(groups: Sequence[Alike], total_rps: float) -> list[float]:
    """Share of the requests that a server of each group gets; all servers' together are 1."""
    settled = iter(queues(tuple(group for group in groups if group.weight > 0.0), total_rps))
    rates = [group.capacity_rps * next(settled).filled if group.weight > 0.0 else 0.0 for group in groups]
    whole = math.fsum(group.count * rate for group, rate in zip(groups, rates, strict=True))
    return [rate / whole for rate in rates]


@lru_cache(maxsize=1024)  # many splits of one decision are alike
def queues(groups: tuple[Alike, ...], total_rps: float) -> list[Queue]:
    """One server of each group; all have a weight above 0.

    Each group's queue in turn is worked out beside the others as they are now, from empty ones on. Longer queues
    elsewhere make it longer, so none ever gets shorter again, and they settle."""
    whole = math.fsum(group.count * group.weight for group in groups)
    draws = [group.weight / whole for group in groups]
    drawn = {group.weight: [0.0] * (LONGEST + 2) for group in groups}
    """By weight and number: share of the draws that meet a server with so many requests or more."""
    settled = [EMPTY] * len(groups)
    for group, draw in zip(groups, draws, strict=True):
        drawn[group.weight][0] += group.count * draw
    for _ in range(SWEEPS):
        most = 0.0
        for n, (group, draw) in enumerate(zip(groups, draws, strict=True)):
            own = settled[n].beyond
            meets = [draw - draw * (own[k] + own[k + 1]) for k in range(LEVELS + 1)]
            for weight, found in drawn.items():
                for k, (no_less, more) in enumerate(_compared(group.weight, weight)):
                    meets[k] += found[no_less] + found[more]
            fresh = _queue([total_rps * draw * one / group.capacity_rps for one in meets])
            most = max(most, fresh.held / max(settled[n].held, 1e-9) - 1.0)
            found = drawn[group.weight]
            for k in range(1, LONGEST + 2):
                found[k] += group.count * draw * (fresh.beyond[k] - own[k])
            settled[n] = fresh
        if most < PRECISION:
            break
    return settled


@lru_cache(maxsize=4096)
def _compared(own: float, other: float) -> list[tuple[int, int]]:
    """By the requests that a server of this weight holds: those that one of the `other` weight must hold to have no
    less for its weight, and to have more."""
    ratios = [k * other / own for k in range(LEVELS + 1)]
    return [(min(math.ceil(one), LONGEST), min(math.floor(one) + 1, LONGEST + 1)) for one in ratios]


def _queue(filled: Sequence[float]) -> Queue:
    """`filled`: by number of requests held, the rate of further ones over the server's capacity."""
    last = min(filled[LEVELS], FULL)
    chances = [1.0]
    for one in filled[:LEVELS]:
        chances.append(chances[-1] * one)
    beyond = [chances[LEVELS] / (1.0 - last)]
    for chance in reversed(chances[:LEVELS]):
        beyond.append(beyond[-1] + chance)
    whole = beyond[-1]
    kept = [one / whole for one in reversed(beyond)]
    held = math.fsum(kept[1:]) + kept[LEVELS] * (last / (1.0 - last) + SLOPE * (filled[LEVELS] - last))
    gets = math.fsum((kept[k] - kept[k + 1]) * filled[k] for k in range(LEVELS)) + kept[LEVELS] * filled[LEVELS]
    for _ in range(LONGEST + 1 - LEVELS):
        kept.append(kept[-1] * last)
    return Queue(tuple(kept), held, gets)


EMPTY = Queue((1.0, *([0.0] * (LONGEST + 1))), 0.0, 0.0)
