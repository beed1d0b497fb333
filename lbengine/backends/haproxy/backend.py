"""HAProxy as a backend of lbengine."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from slackwater.core.config import PoolSettings
from slackwater.core.machine import kernel_id
from slackwater.lbengine.backends.haproxy import measured
from slackwater.lbengine.backends.haproxy.agent_check import AgentCheck
from slackwater.lbengine.backends.haproxy.fleet import haproxy_of
from slackwater.lbengine.backends.haproxy.preflight import check
from slackwater.lbengine.backends.haproxy.settings import TCP, HAProxyPool
from slackwater.lbengine.backends.haproxy.site import SiteConfiguration
from slackwater.lbengine.backends.haproxy.survey import access_of
from slackwater.lbengine.balancer import Backend, Balancer, Snapshot, Target


def _open(pool: HAProxyPool, timeout_s: float) -> Balancer:
    haproxy = haproxy_of(pool.backend, pool.all_sockets, timeout_s)
    return haproxy if pool.weight_delivery == "socket" else AgentCheck(haproxy)


def _targets(pool: HAProxyPool) -> list[Target]:
    return [_target(path, pool.backend) for path in pool.all_sockets]


def _target(path: str, backend: str) -> Target:
    """A backend behind one admin socket. A socket with a path can be reached from this host only."""
    is_remote = path.startswith(TCP)
    real = path if is_remote else os.path.realpath(path)
    return Target(
        place=f"backend `{backend}` behind {path}",
        lock=f"slackwater/{real}/{backend}",
        lease=(backend, path if is_remote else _socket_id(real)),
        is_remote=is_remote,
    )


def _socket_id(path: str) -> str:
    """An id of the socket, the same for all containers on this kernel that share it, whatever its path is there.

    It is made of the folder, since HAProxy makes the socket anew, but not its folder. The path alone is not enough:
    each container may have an HAProxy of its own behind the same path.
    """
    folder, name = os.path.split(path)
    try:
        status = Path(folder).stat()
    except OSError:
        return f"{kernel_id()}:{path}"
    return f"{kernel_id()}:{status.st_dev}:{status.st_ino}:{name}"


def _rest(pool: HAProxyPool, other: PoolSettings) -> HAProxyPool | None:
    if not isinstance(other, HAProxyPool) or other.backend != pool.backend:
        return pool
    first, *more = [socket for socket in pool.all_sockets if socket not in other.all_sockets] or [""]
    return msgspec.structs.replace(pool, socket=first, sockets=more) if first else None


def _lacks(pool: HAProxyPool) -> list[str]:
    local = [path for path in pool.all_sockets if not path.startswith(TCP)]
    return [text for path in local for text in access_of(path, SiteConfiguration()).lacks()]


def _advice(pool: HAProxyPool, snapshot: Snapshot) -> tuple[str, str] | None:
    return measured.advice(snapshot.balance, pool.backend, measured.read())


HAPROXY = Backend(
    settings=HAProxyPool, open=_open, check=check, targets=_targets, rest=_rest, lacks=_lacks, advice=_advice
)
