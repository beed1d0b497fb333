"""What the balancer's own counts say of a server's capacity, whatever its node says. Pure.

A server answers no more than its capacity, so its capacity is no less than what it answers. And one that holds far more
requests than it would at the capacity that it is believed to have is full: then what it answers is its capacity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from lbengine.balancer import Server
from lbengine.decision.law_weights import Load

SURPRISE = 0.01
"""A believed capacity is given up when so many requests in flight are less likely than this."""


def shortest_s(servers: Sequence[Server], rps: Mapping[str, float]) -> float:
    """Least time that a request spends at any of these servers, by Little's law: what they all wait for, such as a
    database, is no queue at a server."""
    times = [server.in_flight / rps[server.name] for server in servers if rps.get(server.name, 0.0) > 0.0]
    return min(times, default=0.0)


def corrected(load: Load, in_flight: int, each_s: float, window_s: float) -> Load:
    """With the capacity that the queue shows, where that is surely less than what is believed.

    A processor-sharing server at a utilisation u holds k requests or more with a probability of u^k. `each_s` is
    `shortest_s`, `window_s` the time over which `load.served_rps` was measured.
    """
    if load.capacity_rps is None or load.rps is None or load.served_rps <= 0.0 or window_s <= 0.0:
        return load
    filled = load.rps / max(load.capacity_rps, 1e-9)
    waiting = in_flight - load.rps * each_s
    if filled >= 1.0 or load.served_rps >= load.capacity_rps or filled**waiting >= SURPRISE:
        return load
    error_rps = math.sqrt(load.served_rps / window_s)
    return msgspec.structs.replace(load, capacity_rps=load.served_rps, capacity_stderr_rps=error_rps, slow=True)
