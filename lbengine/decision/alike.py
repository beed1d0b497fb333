"""Whether servers are slow alike, as their nodes say, by the requests that the balancer holds for each. Pure.

`all_slow` says that a server is no worse a place for requests than the others, so nothing is moved. In a small pool a
single node that claims to be slow makes a server beside it, which really is slow, `all_slow` too. So the claim is
weighed by Little's law (requests in flight over their rate). A server that answers its requests as in calm is not slow,
whatever its node says. A server beside it that holds far more is slow by itself. Until the counts decide, the nodes are
believed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import msgspec

from slackwater.core.messages import Verdict
from slackwater.lbengine.balancer import Server
from slackwater.lbengine.decision.calm import Calm
from slackwater.lbengine.decision.rates import Rates

MANY = 2.5
"""A server is slow when its requests take this many times as long as in calm, as in the detector's scale of response
times."""
SURELY_NOT, SURELY = 2.0, 3.0
"""Standard deviations below, and above, `MANY` times the requests of calm. The upper bound is further away: a move by
mistake is worse than a move that comes some seconds late."""
LEAST_RPS = 1.0
"""Below this rate the requests in flight say nothing about a server."""
MEMORY_LOOKS = 150.0
"""After this many looks an observation counts for 1/e."""
SLOW_STATES = ("all_slow", "interference", "slow")
LIKELY_LOSS = 0.5
"""A server that is slow by itself counts as having lost this share of its capacity, until more is known."""
LIKELY = 0.5
"""Probability that such a server has a neighbour, until its queue says more."""
HALF = 0.5
"""A server is not slow by itself where each other one has this part of its queue."""
LEAST_QUEUE = 0.5
"""A queue shorter than this, in requests, is within the noise of the looks."""
NOT_SLOW = "it seemed to be slow together with the others, but its requests are answered as in calm"
ALONE = "it seemed to be slow together with the others, but only its own requests wait"


def have_queues(server: str, queues: Mapping[str, float]) -> bool:
    """Whether each other server has a queue about as long as this server's.

    Neighbours that begin together are found one after the other, and until all are found the first one looks slow by
    itself. The balancer sees all servers at once. `queues`: requests beyond those of calm, of servers with requests.
    """
    others = [queue for name, queue in queues.items() if name != server]
    return min(others, default=0.0) >= max(HALF * queues.get(server, 0.0), LEAST_QUEUE)


@dataclass(frozen=True)
class HeldRequests:
    """What the balancer held of one server at looks since its node called it slow."""

    looks: float = 0.0
    requests: float = 0.0
    """Sum of the requests in flight over the looks; older looks count less."""
    in_calm: float = 0.0
    """The same sum for a calm server that gets requests at the same rate."""
    is_slow: bool | None = None
    """The last sure answer. True: requests take more than `MANY` times as long as in calm; False: less; None: there was
    no sure answer yet."""

    def after(self, requests: int, in_calm: float) -> HeldRequests:
        """Adds a look: the `requests` in flight, and how many a calm server would have in flight."""
        kept = math.exp(-1.0 / MEMORY_LOOKS)
        looks, held = kept * self.looks + 1.0, kept * self.requests + requests
        in_calm = kept * self.in_calm + in_calm
        expected = MANY * in_calm
        spread = math.sqrt(expected * (1.0 + expected / looks))  # each look is geometric (processor sharing)
        is_slow = self.is_slow
        if held > expected + SURELY * (spread + 1.0):
            is_slow = True
        elif held < expected - SURELY_NOT * spread:
            is_slow = False
        return HeldRequests(looks, held, in_calm, is_slow)


def after(
    before: Mapping[str, HeldRequests],
    servers: Collection[Server],
    verdicts: Mapping[str, Verdict],
    rates: Rates,
    calm: Calm,
) -> dict[str, HeldRequests]:
    """Adds a look at each server whose node calls it slow; the others drop out.

    A drained server holds no requests, which says nothing about its speed, so its look is not counted.
    """
    held_by_server = {}
    for server in servers:
        verdict = verdicts.get(server.name)
        if verdict is None or verdict.state not in SLOW_STATES:
            continue
        held = before.get(server.name, HeldRequests())
        rps = (rates.rps or {}).get(server.name, 0.0)
        if server.weight > 0 and rps >= LEAST_RPS and not server.uncounted and calm.wait_s is not None:
            held = held.after(server.in_flight, rps * calm.wait_s)
        held_by_server[server.name] = held
    return held_by_server


def weighed(verdicts: Mapping[str, Verdict], held: Mapping[str, HeldRequests]) -> Mapping[str, Verdict]:
    """The Verdicts; `all_slow` is replaced where the balancer's counts surely tell the servers apart."""
    if not {True, False} <= {counts.is_slow for counts in held.values()}:
        return verdicts
    changed = dict(verdicts)
    for server, verdict in verdicts.items():
        if verdict.state != "all_slow" or server not in held:
            continue
        if held[server].is_slow is False:
            changed[server] = msgspec.structs.replace(
                verdict, state="calm", path=[NOT_SLOW], probability=0.0, resource=None, own_limit_cores=None
            )
        else:
            changed[server] = msgspec.structs.replace(
                verdict,
                state="slow" if verdict.source == "balancer" or verdict.resource == "own limit" else "interference",
                path=[ALONE],
                severity=LIKELY_LOSS,
                probability=LIKELY,
                capacity_rps=None,
                capacity_stderr_rps=None,
                shown=True,
            )
    return changed
