"""What must be right before a pool is driven: asked of its balancer at the start, refused in words.

What is asked of IPVS and keepalived stands in `lbengine/backends/ipvs/check.py`. Which of HAProxy's algorithms heed
weights stands in `lbengine/backends/haproxy/algorithms.py`; errors are as HAProxy 2.6 says them.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

from lbengine.backends import table as doors
from lbengine.backends.haproxy.algorithms import ALGORITHMS, effect
from lbengine.backends.haproxy.haproxy import HAProxy
from lbengine.backends.ipvs.check import check_keepalived, check_lvs
from lbengine.backends.keepalived.keepalived import LocalFiles
from lbengine.backends.snapshot import BalancerError, Server, Snapshot
from slackwater.config import TCP, LbengineSettings, PoolSettings
from slackwater.messages import is_name

FINE_BASELINE = 20
"""Below this weight a step of 5% cannot be made."""
NOBODY = "slackwater.asks.for.the.level"


def check(pool: PoolSettings, settings: LbengineSettings) -> list[str]:
    """Looks at the pool's balancers; returns warnings. Raises BalancerError when the pool cannot be driven.

    Changes nothing, except in `act` mode with a hash algorithm: there the only way to learn whether weights can be set
    is to set one that is off by one and put it back in the same batch.
    """
    return CHECKS[pool.balancer](pool, settings)


def _check_lvs(pool: PoolSettings, settings: LbengineSettings) -> list[str]:
    door = doors.lvs(pool, settings.socket_timeout_s)
    return _of_pool(pool, lambda: check_lvs(door, LocalFiles()), door.where, door.read)


def _check_keepalived(pool: PoolSettings, settings: LbengineSettings) -> list[str]:
    door = doors.keepalived(pool, settings.socket_timeout_s)
    return _of_pool(pool, lambda: check_keepalived(door, LocalFiles()), door.where, door.read)


def _of_pool(pool: PoolSettings, look: Callable[[], list[str]], where: str, read: Callable[[], Snapshot]) -> list[str]:
    """What `look` finds, said of the pool."""
    try:
        found = look()
        _check_named(read(), pool, where)
    except BalancerError as error:
        raise type(error)(f"pool `{pool.name}`: {error}") from None
    return [f"pool `{pool.name}`: {text}" for text in found]


def _check_haproxies(pool: PoolSettings, settings: LbengineSettings) -> list[str]:
    warnings: list[str] = []
    balances: dict[str, str] = {}
    for path in pool.all_sockets:
        snapshot, found = _check_one(path, pool, settings)
        warnings += [warning for warning in found if warning not in warnings]
        balances[path] = snapshot.balance
    if len(set(balances.values())) > 1:
        told = ", ".join(f"`{balance}` behind {path}" for path, balance in balances.items())
        raise BalancerError(f"pool `{pool.name}`: its balancers must use the same algorithm, they have {told}")
    return warnings


def _check_one(path: str, pool: PoolSettings, settings: LbengineSettings) -> tuple[Snapshot, list[str]]:
    where = f"pool `{pool.name}`: {path}"
    warnings = []
    if path.startswith(TCP):
        warnings.append(
            f"{where}: an admin socket on TCP has no login: whoever reaches this address can do anything with HAProxy"
        )
    else:
        _check_path(path, where)
    haproxy = HAProxy(path, pool.backend, settings.socket_timeout_s)
    if pool.weight_delivery == "socket":
        (answer,) = haproxy.ask(f"set server {pool.backend}/{NOBODY}")
        if "Permission denied" in answer:
            raise BalancerError(
                f"{where}: this socket has no admin level; expected `stats socket {path} level admin` in HAProxy's"
                ' `global` section, or `weight_delivery = "agent-check"` in the pool\'s settings'
            )
    snapshot = haproxy.read()
    where = f"{where}: backend `{pool.backend}`"
    _check_servers(snapshot, pool, where)
    if pool.weight_delivery == "agent-check":
        _check_agents(snapshot, where)
    warnings += _check_balance(haproxy, snapshot, pool, where)
    return snapshot, warnings + _warnings(snapshot, pool)


def _check_path(path: str, where: str) -> None:
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        raise BalancerError(
            f"{where}: {error.strerror}; expected HAProxy's admin socket (`stats socket {path} level admin`)"
        ) from None
    if not stat.S_ISSOCK(mode):
        raise BalancerError(f"{where}: not a socket; expected HAProxy's admin socket")


def _check_servers(snapshot: Snapshot, pool: PoolSettings, where: str) -> None:
    active = [server for server in snapshot.servers if not server.backup]
    if len(active) < 2:
        raise BalancerError(
            f"{where} has {len(active)} server{'' if len(active) == 1 else 's'} that take requests side by side;"
            " expected at least 2, or there is nowhere to move load to"
        )
    for server in snapshot.servers:
        if not is_name(server.name):
            raise BalancerError(
                f"{where}: server {server.name!r} has no safe name; expected letters, digits and `_-:`, with single"
                " dots between"
            )
    _check_named(snapshot, pool, where)


def _check_agents(snapshot: Snapshot, where: str) -> None:
    active = [server for server in snapshot.servers if not server.backup]
    if deaf := [server.name for server in active if not server.agent_check]:
        raise BalancerError(
            f"{where}: HAProxy asks no agent for the weight of {', '.join(deaf)}; expected `agent-check agent-port PORT"
            " agent-inter 500ms` on each server line, PORT that of `agent.listen` in the nodes' settings"
        )
    if zero := [server.name for server in active if server.configured == 0]:
        raise BalancerError(f"{where}: {', '.join(zero)} is configured with weight 0, of which every share is 0")


def _check_named(snapshot: Snapshot, pool: PoolSettings, where: str) -> None:
    for name in pool.servers:
        if name not in {server.name for server in snapshot.servers}:
            known = ", ".join(server.name for server in snapshot.servers)
            raise BalancerError(f"{where} has no server `{name}`, which `servers` names; it has: {known}")


def _check_balance(haproxy: HAProxy, snapshot: Snapshot, pool: PoolSettings, where: str) -> list[str]:
    balance = snapshot.balance
    algorithm = ALGORITHMS.get(balance)
    if algorithm is None:
        raise BalancerError(
            f"{where}: `balance {balance}` is not known here; expected roundrobin, leastconn, random, or a hash with"
            " `hash-type consistent`"
        )
    if algorithm.effect == "none":
        raise BalancerError(f"{where}: `balance {balance}` cannot be driven: {algorithm.told}")
    if algorithm.effect != "keys":
        return []
    if pool.mode == "observe" or pool.weight_delivery == "agent-check":
        tried = (
            "it is tried when the mode is `act`" if pool.weight_delivery == "socket" else "look at its configuration"
        )
        return [
            f"{where}: `balance {balance}` heeds weights only with `hash-type consistent`, which HAProxy doesn't show;"
            f" {tried}"
        ]
    if not _takes_weights(haproxy, snapshot.servers[0], pool.backend):
        raise BalancerError(
            f"{where}: `balance {balance}` without `hash-type consistent` takes no weights at run time; add"
            " `hash-type consistent` to the backend"
        )
    return [f"{where}: with `balance {balance}`, {algorithm.told}"]


def _takes_weights(haproxy: HAProxy, server: Server, backend: str) -> bool:
    """Tries a weight next to the configured one (0 and the configured one are taken by every algorithm)."""
    other = server.configured + 1 if server.configured < 256 else 255
    command = f"set server {backend}/{server.name} weight"
    tried, _ = haproxy.ask(f"{command} {other}", f"{command} {server.weight}")
    return not tried.strip()


def _warnings(snapshot: Snapshot, pool: PoolSettings) -> list[str]:
    where = f"pool `{pool.name}`: backend `{pool.backend}`"
    by_socket = pool.weight_delivery == "socket"
    warnings = []

    def of(servers: list[Server]) -> str:
        return ", ".join(server.name for server in servers)

    active = [server for server in snapshot.servers if not server.backup]
    if by_socket and (agents := [server for server in active if server.agent_check]):
        warnings.append(
            f"{where}: the agent-check of {of(agents)} sets weights too; two writers would fight, so what it sets is"
            " left alone"
        )
    if records := [server for server in active if server.srv_record]:
        warnings.append(
            f"{where}: the weights of {of(records)} come from SRV records; set `resolve-opts ignore-weight` there"
        )
    if snapshot.cookie or any(server.cookie for server in active):
        warnings.append(
            f"{where}: cookie persistence sends known clients to their server even at weight 0, so less load moves"
        )
    if slow_starters := [server for server in active if server.slow_start]:
        warnings.append(
            f"{where}: HAProxy's own slowstart holds {of(slow_starters)} down now; it acts after failed checks only,"
            " and multiplies with the weights set here"
        )
    if (
        by_socket
        and effect(snapshot.balance) == "concurrency"
        and (endless := [s for s in active if s.maxconn is None])
    ):
        warnings.append(
            f"{where}: {of(endless)} has no `maxconn`, so under `balance {snapshot.balance}` a slow one can only be"
            " given less weight or none; with a `maxconn` it could also be given fewer requests at a time"
        )
    if coarse := [server for server in active if 0 < server.weight < FINE_BASELINE]:
        warnings.append(
            f"{where}: the weights of {of(coarse)} are too small for fine steps, so a slow server is given all of its"
            " weight or hardly any; give servers `weight 100`, or as much as their sizes call for (at most 256)"
        )
    if away := [server for server in active if not server.available]:
        warnings.append(
            f"{where}: " + ", ".join(f"{server.name} ({server.status})" for server in away) + " left alone as long as"
            " it takes no requests"
        )
    if nothing := [server for server in active if server.available and server.weight == 0]:
        warnings.append(f"{where}: {of(nothing)} has weight 0 and is left alone until it is given one")
    return warnings


CHECKS: dict[str, Callable[[PoolSettings, LbengineSettings], list[str]]] = {
    "haproxy": _check_haproxies,
    "lvs": _check_lvs,
    "keepalived": _check_keepalived,
}
"""By the pool's `balancer`."""
