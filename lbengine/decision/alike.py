"""Whether servers are slow alike, as their nodes say, by the requests that the balancer holds for each. Pure.

`all_slow` says that a server is no worse a place for requests than the others, so nothing is moved. In a small pool one
node that claims to be slow would make it so for another one that is. So the claim is weighed: a server that answers its
requests as it does in calm (Little's law: requests in flight over their rate) is not slow, whatever its node says, and
one beside it that holds far more is slow by itself. What cannot be told yet is believed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import msgspec

from lbengine.balancer import Server
from lbengine.decision.calm import Calm
from lbengine.decision.rates import Rates
from slackwater.messages import Verdict

MANY = 2.5
"""A server is slow when its requests take so many times as long as in calm: the detector's scale of a response time."""
SURELY_NOT, SURELY = 2.0, 3.0
"""So many standard deviations fewer, or more, requests than `MANY` times those of calm. What is moved by mistake is
worse than what is not moved for some more seconds."""
LEAST_RPS = 1.0
"""Fewer requests a second tell nothing of a server."""
MEMORY_LOOKS = 150.0
"""Looks after which what was seen counts for 1/e."""
SLOW_STATES = ("all_slow", "interference")
LIKELY_LOSS = 0.5
"""Share of its capacity that a server which is slow by itself has lost, as long as nothing more is known."""
LIKELY = 0.5
"""Probability of its neighbour, likewise: its queue says more."""
NOT_SLOW = "its node says that it is slow as others are, but its requests are answered as in calm"
ALONE = "its requests wait, and those of others that say so too do not"


@dataclass(frozen=True)
class Held:
    """What the balancer held of one server at looks since its node called it slow."""

    looks: float = 0.0
    requests: float = 0.0
    """In flight, at all of them together."""
    in_calm: float = 0.0
    """As many as there would be of a calm server that gets as many requests."""
    is_slow: bool | None = None
    """They surely take more than `MANY` times as long as in calm, or surely less, since that was last sure; None: it
    never was."""

    def after(self, requests: int, in_calm: float) -> Held:
        """With one more look."""
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
        return Held(looks, held, in_calm, is_slow)


def after(
    before: Mapping[str, Held], servers: Collection[Server], verdicts: Mapping[str, Verdict], rates: Rates, calm: Calm
) -> dict[str, Held]:
    """With a look at these servers, of those that are called slow. A drained one holds nothing, which says nothing."""
    found = {}
    for server in servers:
        verdict = verdicts.get(server.name)
        if verdict is None or verdict.state not in SLOW_STATES:
            continue
        held = before.get(server.name, Held())
        rps = (rates.rps or {}).get(server.name, 0.0)
        if server.weight > 0 and rps >= LEAST_RPS and not server.uncounted and calm.wait_s is not None:
            held = held.after(server.in_flight, rps * calm.wait_s)
        found[server.name] = held
    return found


def weighed(verdicts: Mapping[str, Verdict], held: Mapping[str, Held]) -> Mapping[str, Verdict]:
    """The Verdicts, without `all_slow` where the balancer's counts surely tell the servers apart."""
    if not {True, False} <= {one.is_slow for one in held.values()}:
        return verdicts
    changed = dict(verdicts)
    for server, verdict in verdicts.items():
        if verdict.state != "all_slow" or server not in held:
            continue
        if held[server].is_slow is False:
            changed[server] = msgspec.structs.replace(verdict, state="calm", path=[NOT_SLOW], probability=0.0)
        else:
            changed[server] = msgspec.structs.replace(
                verdict,
                state="interference",
                path=[ALONE],
                severity=LIKELY_LOSS,
                probability=LIKELY,
                capacity_rps=None,
                capacity_stderr_rps=None,
                shown=True,
            )
    return changed
