"""`maxconn`, the second lever: under least connections a slow server that must keep some load gets a limit in flight.

Only a server that has a `maxconn` is ever limited, since 0 (no limit) is never sent. Pure; the engine acts on it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from lbengine.balancer import Server

ROOM = 2.0
"""The limit over the mean in flight that the law wants: arrivals are not even."""
DEAD_BAND = 0.25
"""A limit that is off by no more than this share (or by one) stays."""


def limit(in_flight: float | None, baseline: int | None, now: int | None) -> int | None:
    """The `maxconn` for a server that should hold so many requests; None: its baseline.

    `baseline` is the `maxconn` that it has without us, `now` the limit that we have set, if any.
    """
    if in_flight is None or baseline is None:
        return None
    wanted = max(1, math.ceil(ROOM * in_flight))
    if now is not None and abs(wanted - now) <= max(1.0, DEAD_BAND * now):
        wanted = now
    return wanted if wanted < baseline else None


def capped(cap: int, wanted: int | None, baseline: int | None) -> int | None:
    """The lower of what the law wants and what was requested; None: the baseline."""
    if baseline is None:
        return None
    most = cap if wanted is None else min(cap, wanted)
    return most if most < baseline else None


def still_ours(
    ours: Mapping[str, int], servers: Collection[Server], unsure: Collection[str], fresh_process: bool
) -> tuple[dict[str, int], dict[str, int]]:
    """Of the limits that we set, those that the balancer shows; and those that someone else has changed.

    After a restart of the balancer, and for a limit that was sent and not confirmed (`unsure`), another one is not
    somebody else's.
    """
    shown = {server.name: server.maxconn for server in servers if server.maxconn is not None}
    kept = {name: most for name, most in ours.items() if shown.get(name) == most}
    changed = {
        name: shown[name]
        for name in ours
        if name in shown and name not in kept and name not in unsure and not fresh_process
    }
    return kept, changed
