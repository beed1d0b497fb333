"""Checks of a service of IPVS before it is driven."""

from __future__ import annotations

from collections.abc import Mapping

from slackwater.core.config import PoolSettings
from slackwater.lbengine.backends.ipvs import schedulers
from slackwater.lbengine.backends.ipvs.ipvs import Lvs, LvsSnapshot
from slackwater.lbengine.balancer import BalancerError
from slackwater.lbengine.laws.grain import grain
from slackwater.lbengine.preflight import NOTHING_SET, check_servers, names

SHORT_RUNS = 40
"""With weights of more steps than this `wrr` serves a lowered server in long runs: no connection for a while, then its
full share."""


def check(lvs: Lvs, pool: PoolSettings, without_us: Mapping[str, int] = NOTHING_SET) -> list[str]:
    """Checks a service; returns warnings. Raises BalancerError.

    Nothing is changed to try it: a user who may read the kernel's table may write it.
    """
    return check_service(lvs, lvs.read(), pool, lvs.where, without_us)


def check_service(
    lvs: Lvs, snapshot: LvsSnapshot, pool: PoolSettings, where: str, without_us: Mapping[str, int] = NOTHING_SET
) -> list[str]:
    """The part of `check` that holds for any owner of the service. `where` stands in front of the messages."""
    servers = snapshot.servers
    common = check_servers(snapshot, pool, where, without_us)
    for server in servers:
        if server.weight > snapshot.most_weight:
            raise BalancerError(
                f"{where}: {server.name} has weight {server.weight}; expected at most {snapshot.most_weight}"
            )
    if problem := schedulers.refusal(snapshot.balance, snapshot.flags, sum(server.weight for server in servers)):
        raise BalancerError(f"{where}: {problem}")
    warnings = schedulers.warnings(snapshot.balance, snapshot.flags, snapshot.persistent_s, lvs.expires_quiescent())
    if limited := names(server for server in servers if server.upper):
        warnings.append(f"{limited} get no connections beyond their upper threshold, whatever their weight")
    step = grain([server.weight for server in servers])
    large = [f"{server.name} ({server.weight})" for server in servers if server.weight // step > SHORT_RUNS]
    if snapshot.serves_in_runs and large:
        warnings.append(
            f"`{snapshot.balance}` takes turns in runs as long as the weights are large: a lowered server gets nothing,"
            f" then its full share; give 20 or so instead of {', '.join(large)}"
        )
    return [f"{where}: {text}" for text in warnings] + common
