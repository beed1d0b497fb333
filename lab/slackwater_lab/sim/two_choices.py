"""How many requests each server gets and holds under `balance random(2)`. Pure.

HAProxy draws two servers by weight, perhaps the same server twice, and takes the one with fewer requests in flight for
its weight (`get_server_rnd` in src/backend.c). So a slow server gets less than its share of the draws, but never less
than the requests for which it was drawn twice.

The servers are taken as independent processor-sharing queues, each of which meets the others at their mean: the
mean-field fixed point (M. Mitzenmacher, "The power of two choices in randomized load balancing", IEEE TPDS 12(10),
2001; for servers of different speeds A. Mukhopadhyay and R. R. Mazumdar, "Analysis of randomized
join-the-shortest-queue schemes in large heterogeneous processor-sharing systems", IEEE TCNS 3(2), 2016). A server with
the share d of the draws that holds k requests gets more of them at the rate

    R·d·(d + Σ over the others of their d·(P(theirs > k) + P(theirs >= k)))

where requests are counted relative to the weights.

`tests/lab/test_two_choices.py` compares it with the Markov chain of a few servers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

FULL = 0.95
"""Above this utilisation a queue is taken to grow evenly with its load, since it is infinite at 1."""
SLOPE = 1.0 / (1.0 - FULL) ** 2
"""How fast it grows there: requests for each unit of utilisation."""
LEVELS = 10
"""Up to this number of requests a queue's probabilities are computed one by one. Beyond, each further request is less
likely by the same factor."""
LONGEST = 2 * LEVELS
"""Longest queue that is compared between servers with different weights."""
SWEEPS = 60
PRECISION = 3e-4
"""The sweeps end when no server's requests grow by more than this share in a sweep."""


@dataclass(frozen=True)
class Alike:
    """`count` servers that are taken alike. Each has this weight, and is full at `capacity_rps`."""

    count: int
    weight: float
    capacity_rps: float


@dataclass(frozen=True)
class Queue:
    """A server of a group in the long run."""

    beyond: tuple[float, ...]
    """Probability that the server holds at least k requests, for k from 0 to `LONGEST` + 1."""
    held: float
    """Requests in the server on average."""
    filled: float
    """Rate of the requests that the server gets over its capacity; above 1 where it is full."""


@lru_cache(maxsize=1024)
def queues(groups: tuple[Alike, ...], total_rps: float) -> list[Queue]:
    """The queue of a server of each group. All groups need a weight above 0.

    The queues start empty. Each is computed in turn beside the others as they are now. A longer queue elsewhere makes
    it longer, so no queue ever gets shorter, and all of them converge.
    """
    whole = math.fsum(group.count * group.weight for group in groups)
    draws = [group.weight / whole for group in groups]
    drawn = {group.weight: [0.0] * (LONGEST + 2) for group in groups}
    """By weight, then by k: share of the draws that meet a server with at least k requests."""
    settled = [EMPTY] * len(groups)
    for group, draw in zip(groups, draws, strict=True):
        drawn[group.weight][0] += group.count * draw
    for _ in range(SWEEPS):
        most = 0.0
        for n, (group, draw) in enumerate(zip(groups, draws, strict=True)):
            own = settled[n].beyond
            meets = [draw - draw * (own[k] + own[k + 1]) for k in range(LEVELS + 1)]
            for weight, beyond_shares in drawn.items():
                for k, (no_less, more) in enumerate(_compared(group.weight, weight)):
                    meets[k] += beyond_shares[no_less] + beyond_shares[more]
            fresh = _queue([total_rps * draw * chance / group.capacity_rps for chance in meets])
            most = max(most, fresh.held / max(settled[n].held, 1e-9) - 1.0)
            beyond_shares = drawn[group.weight]
            for k in range(1, LONGEST + 2):
                beyond_shares[k] += group.count * draw * (fresh.beyond[k] - own[k])
            settled[n] = fresh
        if most < PRECISION:
            break
    return settled


@lru_cache(maxsize=4096)
def _compared(own: float, other: float) -> list[tuple[int, int]]:
    """How many requests a server of the `other` weight must hold to have no less for its weight than a server of this
    weight with k requests, and to have more; for each k."""
    ratios = [k * other / own for k in range(LEVELS + 1)]
    return [(min(math.ceil(ratio), LONGEST), min(math.floor(ratio) + 1, LONGEST + 1)) for ratio in ratios]


def _queue(filled: Sequence[float]) -> Queue:
    """The queue of a server that gets requests at `filled[k]` times its capacity while it holds k."""
    last = min(filled[LEVELS], FULL)
    chances = [1.0]
    for ratio in filled[:LEVELS]:
        chances.append(chances[-1] * ratio)
    beyond = [chances[LEVELS] / (1.0 - last)]
    for chance in reversed(chances[:LEVELS]):
        beyond.append(beyond[-1] + chance)
    whole = beyond[-1]
    at_least = [chance / whole for chance in reversed(beyond)]
    held = math.fsum(at_least[1:]) + at_least[LEVELS] * (last / (1.0 - last) + SLOPE * (filled[LEVELS] - last))
    gets = (
        math.fsum((at_least[k] - at_least[k + 1]) * filled[k] for k in range(LEVELS))
        + at_least[LEVELS] * filled[LEVELS]
    )
    for _ in range(LONGEST + 1 - LEVELS):
        at_least.append(at_least[-1] * last)
    return Queue(tuple(at_least), held, gets)


EMPTY = Queue((1.0, *([0.0] * (LONGEST + 1))), 0.0, 0.0)
