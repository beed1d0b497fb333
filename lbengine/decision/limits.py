"""`maxconn`, the most requests that a server gets at a time: lowered where the second stage requests it, never else.

Only a server that has a `maxconn` is ever limited, since 0 (no limit) is never sent. Pure; the engine acts on it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lbengine.balancer import Server


def capped(cap: int, baseline: int | None) -> int | None:
    """The limit that was requested; None: the baseline, or there is none."""
    return cap if baseline is not None and cap < baseline else None


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
