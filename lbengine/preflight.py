"""Checks of a pool's servers before the pool is driven, the same for every balancer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from slackwater.core.config import PoolSettings
from slackwater.lbengine.balancer import BalancerError, Server, Snapshot
from slackwater.lbengine.decision.warm_up import is_coarse

FINE_BASELINE = 20
"""The lowest weight that allows steps of 5%."""
NOTHING_SET: Mapping[str, int] = MappingProxyType({})
"""The weights without us where no weight is ours."""
PLACEHOLDERS = {
    "no_address": ("has no address", "have no address", "there is one"),
    "disabled": ("is `disabled` in the configuration", "are `disabled` in the configuration", "that ends"),
}
"""What is said of one server without a machine, and of several, and until when."""
MOST_NAMES = 20
"""The most names in one message."""


def check_servers(
    snapshot: Snapshot, pool: PoolSettings, where: str, without_us: Mapping[str, int] = NOTHING_SET
) -> list[str]:
    """Checks the number, the names and the weights of the servers; returns warnings. Raises BalancerError.

    `without_us`: weights that servers have without us, for those whose present weights may be ours.
    """
    weights = {server.name: without_us.get(server.name, server.weight) for server in snapshot.servers}
    active = [server for server in snapshot.servers if not server.backup]
    if len(active) < 2:
        are = (
            "1 server that is no backup" if len(active) == 1 else "backup servers alone" if snapshot.servers else "none"
        )
        raise BalancerError(
            f"{where} has {are}; expected at least 2 usual servers, or there is nowhere to move load to"
        )
    for name in pool.servers:
        if name not in {server.name for server in snapshot.servers} | snapshot.unreadable.keys():
            known = ", ".join(server.name for server in snapshot.servers)
            raise BalancerError(f"{where} has no server `{name}`, which `servers` names; it has: {known}")
    warnings = [f"left out: {why}" for why in snapshot.unreadable.values()]
    for kind, slots in _by_placeholder(server for server in active if server.placeholder).items():
        one_is, several_are, until = PLACEHOLDERS[kind]
        state = one_is if len(slots) == 1 else several_are
        warnings.append(f"{where}: {names(slots)} {state}: no machine is looked for there until {until}")
    active = [server for server in active if not server.placeholder]
    if coarse := names(server for server in active if 0 < weights[server.name] < FINE_BASELINE):
        at_once = any(weights[server.name] > 0 and is_coarse(weights[server.name]) for server in active)
        comes_up = ", and one that comes up gets all of it at once" if at_once else ""
        warnings.append(
            f"{where}: the weights of {coarse} are too small for fine steps: a slow server gets all of its weight or"
            f" hardly any{comes_up}; give each server {FINE_BASELINE} or more, and a larger one more than a smaller"
        )
    if away := ", ".join(f"{server.name} ({server.condition})" for server in active if not server.available):
        warnings.append(f"{where}: left alone until requests go there again: {away}")
    nothing = [server for server in active if server.available and weights[server.name] == 0]
    if nothing:
        is_left = "has weight 0 and is left alone until it is given one"
        are_left = "have weight 0 and are left alone until they are given one"
        warnings.append(f"{where}: {names(nothing)} {is_left if len(nothing) == 1 else are_left}")
    return warnings


def _by_placeholder(servers: Iterable[Server]) -> dict[str, list[Server]]:
    by_placeholder: dict[str, list[Server]] = {}
    for server in servers:
        by_placeholder.setdefault(server.placeholder, []).append(server)
    return by_placeholder


def names(servers: Iterable[Server]) -> str:
    """The servers' names for a message: all, or the first `MOST_NAMES`."""
    all_names = [server.name for server in servers]
    few = all_names if len(all_names) <= MOST_NAMES + 1 else all_names[:MOST_NAMES]
    more = len(all_names) - len(few)
    return ", ".join(few) + (f" and {more} more" if more else "")
