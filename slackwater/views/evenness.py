"""How evenly the servers of a pool are filled in calm, in a sentence: the one place for these words. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from slackwater.core.messages import TAKES_REQUESTS, Cycle, ServerState
from slackwater.views.row import listed

MOST_NAMED = 6
"""The weights of all servers are named up to this number of servers; beyond it those below the highest."""


def evenness(cycle: Cycle | None) -> str:
    """What the servers carry and which weights would fill them alike; empty where nothing is known yet."""
    if cycle is None or cycle.evenness is None or not cycle.servers:
        return ""
    even, servers = cycle.evenness, [server for server in cycle.servers if server.condition in TAKES_REQUESTS]
    if even.outcome == "not_known" or even.fullest is None or even.evened is None:
        unknown = [server.server for server in servers if server.carries is None]
        what = f"what {listed(unknown)} can carry" if 0 < len(unknown) < len(servers) else "what each server can carry"
        return f"{what} in calm is not known well enough to compare the servers"
    if even.outcome == "even":
        are = f"in calm the fullest server is at {even.fullest:.0%}, and the mean is {even.mean or 0.0:.0%}"
        return f"{are}; other weights would gain nothing"
    weakest = min(servers, key=lambda server: server.carries or 1.0)
    strongest = max(servers, key=lambda server: server.carries or 0.0)
    weigh = "" if len({server.baseline for server in servers}) == 1 else " per unit of weight"
    carries = f"{weakest.server} carries {weakest.carries or 0.0:.2f} of what {strongest.server} carries{weigh}"
    if even.outcome == "by_itself":
        filled = f"the fullest server is at {even.fullest:.0%}, and the mean is {even.mean or 0.0:.0%}"
        return f"{carries}; {filled}; {cycle.balance} goes by the requests in flight, so no other weights are advised"
    coarse = "" if even.outcome == "uneven" else "the configured weights are too small to say so; "
    would = f"with {_weights(servers)} the fullest would be at {even.evened:.0%} instead of {even.fullest:.0%}"
    return f"{carries}; {coarse}{would}{_saved(even.saved, len(servers))}"


def uneven_advice(cycle: Cycle | None) -> str:
    """The same where other weights would help; else empty."""
    even = None if cycle is None else cycle.evenness
    return evenness(cycle) if even is not None and even.outcome in ("uneven", "coarse") else ""


def _weights(servers: Sequence[ServerState]) -> str:
    """`weights 100, 100, 60`, in the order of the servers."""
    if len(servers) <= MOST_NAMED:
        return f"weights {', '.join(str(server.advised or 0) for server in servers)}"
    most = max(server.advised or 0 for server in servers)
    lower = [f"{server.advised or 0} for {server.server}" for server in servers if (server.advised or 0) < most]
    return f"weights {listed(lower)}, and {most} for the others"


def _saved(saved: float, servers: int) -> str:
    count = int(saved)
    return f", and {servers - count} of the {servers} servers could carry the same load" if count else ""


def max_over_mean(cycle: Cycle | None) -> float | None:
    """Utilisation of the fullest server over the mean; None: not known."""
    even = None if cycle is None else cycle.evenness
    return even.fullest / even.mean if even is not None and even.fullest is not None and even.mean else None


def servers_saved(cycle: Cycle | None) -> float | None:
    """Servers of mean size that other weights could save; None: not known."""
    even = None if cycle is None else cycle.evenness
    return None if even is None or even.outcome == "not_known" else even.saved
