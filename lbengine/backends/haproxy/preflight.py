"""Checks of HAProxy before a pool is driven. Its errors are recognised in the words of HAProxy 2.6."""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from slackwater.core.config import LbengineSettings
from slackwater.lbengine.backends.haproxy.algorithms import ALGORITHMS
from slackwater.lbengine.backends.haproxy.answers import facts_of
from slackwater.lbengine.backends.haproxy.haproxy import NO_SOCKET, HAProxy
from slackwater.lbengine.backends.haproxy.settings import TCP, HAProxyPool
from slackwater.lbengine.balancer import BalancerError, BalancerUnreachable, Server, Snapshot
from slackwater.lbengine.preflight import FINE_BASELINE, NOTHING_SET, check_servers, names

OWN_WEIGHT = 1
NOBODY = "slackwater.asks.for.the.level"


def check(pool: HAProxyPool, settings: LbengineSettings, without_us: Mapping[str, int] = NOTHING_SET) -> list[str]:
    """Checks each of the pool's HAProxies; returns warnings. Raises BalancerError when the pool cannot be driven.

    If one of several HAProxies does not answer, that is a warning: it is left out while the pool is driven. Nothing is
    changed, except in `act` mode with a hash algorithm. There the only way to learn whether weights can be set is to
    set a weight next to the configured one, and to put it back in the same batch.
    """
    warnings: list[str] = []
    balances: dict[str, str] = {}
    away = _check_processes(pool, settings)
    for path in pool.all_sockets:
        try:
            if path in away:
                raise away[path]
            snapshot, socket_warnings = _check_one(path, pool, settings, without_us)
        except BalancerUnreachable as error:
            away[path] = error
            continue
        warnings += [warning for warning in socket_warnings if warning not in warnings]
        balances[path] = snapshot.balance
    if not balances:
        raise BalancerUnreachable("; ".join(str(error) for error in away.values()))
    warnings += [f"{error}; it is left out until it answers" for error in away.values()]
    if len(set(balances.values())) > 1:
        used = ", ".join(f"`{balance}` behind {path}" for path, balance in balances.items())
        raise BalancerError(f"the HAProxies of a pool must use the same algorithm, these use {used}")
    return warnings


def of_several(facts: Mapping[str, str]) -> str:
    """The problem where this HAProxy is one of several processes, in words with the remedy; empty where it is alone."""
    count, number = facts.get("Nbproc", "1"), facts.get("Process_num", "1")
    if count == "1":
        return ""
    return (
        f"HAProxy runs {count} processes (`nbproc {count}`), each with weights of its own, and this socket reached"
        f" process {number} alone; use threads instead (`nbthread`, and no `nbproc`), or name the admin sockets of all"
        " processes: one in `socket`, the others in `sockets`"
    )


def _check_processes(pool: HAProxyPool, settings: LbengineSettings) -> dict[str, BalancerUnreachable]:
    """Raises BalancerError where one of an HAProxy's processes is not driven (`nbproc`, before HAProxy 2.5).

    Returns the sockets on which nobody answers.
    """
    problem, count = "", "1"
    numbers: list[str] = []
    away: dict[str, BalancerUnreachable] = {}
    for path in pool.all_sockets:
        try:
            if not path.startswith(TCP):
                _check_path(path, path)
            (info,) = HAProxy(path, pool.backend, settings.socket_timeout_s).ask("show info")
        except BalancerUnreachable as error:
            away[path] = error
            continue
        facts = facts_of(info, path)
        if several := of_several(facts):
            problem, count = problem or f"{path}: {several}", facts["Nbproc"]
            numbers.append(facts.get("Process_num", "1"))
    times = Counter(numbers).values()  # each process of each host once
    if problem and not away and not (str(len(times)) == count and len(set(times)) == 1):
        raise BalancerError(problem)
    return away


def _check_one(
    path: str, pool: HAProxyPool, settings: LbengineSettings, without_us: Mapping[str, int]
) -> tuple[Snapshot, list[str]]:
    warnings, where = [], path
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
    common = check_servers(snapshot, pool, where, without_us)
    if pool.weight_delivery == "agent-check":
        _check_agents(snapshot, where)
    warnings += _check_balance(haproxy, snapshot, pool, where)
    return snapshot, warnings + _warnings(snapshot, pool) + common


def _check_path(path: str, where: str) -> None:
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        kind = BalancerUnreachable if isinstance(error, FileNotFoundError) else BalancerError
        raise kind(
            f"{where}: {error.strerror}; expected HAProxy's admin socket (`stats socket {path} level admin`)"
        ) from None
    if not stat.S_ISSOCK(mode):
        raise BalancerError(f"{where}: {NO_SOCKET}")


def _check_agents(snapshot: Snapshot, where: str) -> None:
    active = [server for server in snapshot.servers if not server.backup]
    if deaf := [server.name for server in active if not server.agent_check]:
        raise BalancerError(
            f"{where}: HAProxy asks no agent for the weight of {', '.join(deaf)}; expected `agent-check agent-port PORT"
            " agent-inter 500ms` on each server line, PORT that of `agent.listen` in the nodes' settings"
        )
    if zero := [server.name for server in active if server.configured == 0]:
        raise BalancerError(f"{where}: {', '.join(zero)} is configured with weight 0, of which every share is 0")


def _check_balance(haproxy: HAProxy, snapshot: Snapshot, pool: HAProxyPool, where: str) -> list[str]:
    balance = snapshot.balance
    algorithm = ALGORITHMS.get(balance)
    if algorithm is None:
        raise BalancerError(
            f"{where}: `balance {balance}` is not known here; expected roundrobin, leastconn, random, or a hash with"
            " `hash-type consistent`"
        )
    if algorithm.weights_mean == "none":
        raise BalancerError(f"{where}: `balance {balance}` cannot be driven: {algorithm.note}")
    if algorithm.weights_mean != "keys":
        return []
    if pool.mode == "observe" or pool.weight_delivery == "agent-check":
        remedy = (
            "it is tried when the mode is `act`" if pool.weight_delivery == "socket" else "look at its configuration"
        )
        return [
            f"{where}: `balance {balance}` heeds weights only with `hash-type consistent`, which HAProxy doesn't show;"
            f" {remedy}"
        ]
    if not _takes_weights(haproxy, snapshot.servers[0], pool.backend):
        raise BalancerError(
            f"{where}: `balance {balance}` without `hash-type consistent` takes no weights at run time; add"
            " `hash-type consistent` to the backend"
        )
    return [f"{where}: with `balance {balance}`, {algorithm.note}"]


def _takes_weights(haproxy: HAProxy, server: Server, backend: str) -> bool:
    """Whether HAProxy takes a weight next to the configured one. Every algorithm takes 0 and the configured weight."""
    other = server.configured + 1 if server.configured < 256 else 255
    command = f"set server {backend}/{server.name} weight"
    answer, _ = haproxy.ask(f"{command} {other}", f"{command} {server.weight}")
    return not answer.strip()


def _warnings(snapshot: Snapshot, pool: HAProxyPool) -> list[str]:
    where = f"backend `{pool.backend}`"
    by_socket = pool.weight_delivery == "socket"
    warnings = []

    active = [server for server in snapshot.servers if not server.backup and not server.placeholder]
    if by_socket and (agents := [server for server in active if server.agent_check]):
        warnings.append(
            f"{where}: the agent-check of {names(agents)} sets weights too where it answers with a percentage: a server"
            " that is slow then has its weight back at the next query, and is left alone until it is well. Let the"
            " agent answer without one (`up`)"
        )
    if records := [server for server in active if server.srv_record]:
        warnings.append(
            f"{where}: the weights of {names(records)} come from SRV records; set `resolve-opts ignore-weight` there"
        )
    if snapshot.cookie or any(server.cookie for server in active):
        warnings.append(
            f"{where}: cookie persistence sends known clients to their server even at weight 0, so less load moves"
        )
    fine = [server for server in active if server.configured >= FINE_BASELINE]
    if fine and (usual := [server for server in active if server.configured == OWN_WEIGHT]):
        warnings.append(
            f"{where}: {names(usual)} has weight {OWN_WEIGHT}, HAProxy's own for a server without one, beside"
            f" {fine[0].configured} of {fine[0].name}, and gets next to nothing; one added at runtime has nothing of"
            " `default-server`: say its weight in `add server`"
        )
    if slow_starters := [server for server in active if server.slow_start]:
        warnings.append(
            f"{where}: HAProxy's own slowstart holds {names(slow_starters)} down now; it acts after failed checks only,"
            " and multiplies with the weights set here"
        )
    if by_socket and snapshot.by_concurrency and (endless := [server for server in active if server.maxconn is None]):
        warnings.append(
            f"{where}: no `maxconn` is set for {names(endless)}, so under `balance {snapshot.balance}` a slow server"
            " can only be given less weight or none; with a `maxconn` the second stage could give it fewer requests at"
            " a time"
        )
    return warnings
