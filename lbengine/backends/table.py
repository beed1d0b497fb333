"""Which door leads to a pool's balancer: the one table of `balancer`'s words."""

from __future__ import annotations

from collections.abc import Callable

from lbengine.backends.haproxy.agent_check import AgentCheck
from lbengine.backends.haproxy.fleet import Fleet, haproxy_of
from lbengine.backends.ipvs.ipvs import Lvs, run_here
from lbengine.backends.keepalived.keepalived import Keepalived, LocalFiles
from lbengine.backends.protocol import Balancer
from slackwater.config import PoolSettings


def _haproxy(pool: PoolSettings, timeout_s: float) -> Balancer:
    haproxy = haproxy_of(pool.backend, pool.all_sockets, timeout_s)
    if pool.weight_delivery == "socket":
        return haproxy
    return AgentCheck(haproxy, expect=haproxy.expect) if isinstance(haproxy, Fleet) else AgentCheck(haproxy)


def lvs(pool: PoolSettings, timeout_s: float) -> Lvs:
    """IPVS on this host. Raises BalancerError for no name of a service."""
    return Lvs(pool.service, run_here(timeout_s))


def keepalived(pool: PoolSettings, timeout_s: float) -> Keepalived:
    """keepalived on this host. Raises as `lvs`."""
    return Keepalived(pool.service, run_here(timeout_s), LocalFiles(), timeout_s)


DOORS: dict[str, Callable[[PoolSettings, float], Balancer]] = {
    "haproxy": _haproxy,
    "lvs": lvs,
    "keepalived": keepalived,
}


def balancer_of(pool: PoolSettings, timeout_s: float) -> Balancer:
    """The door to the pool's balancer, which may take `timeout_s` to answer. Opens nothing yet."""
    return DOORS[pool.balancer](pool, timeout_s)
