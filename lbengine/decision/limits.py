"""`maxconn`, the most requests that a server gets at a time. Only requests of the second stage lower it. Pure.

Only a server that has a `maxconn` is ever limited, since 0 (no limit) is never sent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from slackwater.lbengine.balancer import Server


def capped(requested: int, baseline: int | None) -> int | None:
    """The limit to set; None where the baseline is no higher than the requested one, or the server has none."""
    return requested if baseline is not None and requested < baseline else None


def still_ours(
    ours: Mapping[str, int], servers: Collection[Server], unsure: Collection[str], fresh_process: bool
) -> tuple[dict[str, int], dict[str, int]]:
    """Divides the limits that we set (`ours`) into those that the balancer still shows and those that someone else
    changed.

    A changed limit does not count as someone else's after a restart of the balancer (`fresh_process`), nor where ours
    was sent and not confirmed (`unsure`).
    """
    shown = {server.name: server.maxconn for server in servers if server.maxconn is not None}
    kept = {name: limit for name, limit in ours.items() if shown.get(name) == limit}
    changed = {
        name: shown[name]
        for name in ours
        if name in shown and name not in kept and name not in unsure and not fresh_process
    }
    return kept, changed
