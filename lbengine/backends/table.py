"""The table of balancers: each word of the setting `balancer` and the backend that it names.

Importing it declares the balancers' settings to `slackwater.core.config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slackwater.core.config import LbengineSettings, PoolSettings, ShownServer, declare
from slackwater.lbengine.backends.haproxy.backend import HAPROXY
from slackwater.lbengine.backends.ipvs.backend import IPVS
from slackwater.lbengine.backends.keepalived.backend import KEEPALIVED
from slackwater.lbengine.balancer import Backend, Balancer, BalancerError, Snapshot, Target
from slackwater.lbengine.baseline import BaselineError, BaselineStore

_ALL: tuple[Backend[Any], ...] = (
    HAPROXY,
    IPVS,
    KEEPALIVED,
)
BACKENDS = {backend.settings.word(): backend for backend in _ALL}


def balancer_of(pool: PoolSettings, timeout_s: float) -> Balancer:
    """The pool's balancer, which may take `timeout_s` for an answer. Opens no connection yet."""
    return BACKENDS[pool.balancer].open(pool, timeout_s)


def _look(pool: PoolSettings, timeout_s: float) -> dict[str, ShownServer] | str:
    try:
        snapshot = balancer_of(pool, timeout_s).read()
    except BalancerError as error:
        return str(error)
    return {server.name: ShownServer(server.condition, server.weight, server.in_flight) for server in snapshot.servers}


declare((backend.settings for backend in _ALL), _look)


def targets_of(pool: PoolSettings) -> list[Target]:
    """The things that the pool drives and that only one lbengine may drive."""
    return BACKENDS[pool.balancer].targets(pool)


def rest_of(pool: PoolSettings, other: PoolSettings) -> PoolSettings | None:
    """The things that the pool drives and the `other` one, at another place, does not, as a pool; None: none."""
    return BACKENDS[pool.balancer].rest(pool, other)


def lacks(pool: PoolSettings) -> list[str]:
    """The rights and programs that the controller's user lacks on this host to drive the pool, in words with the
    remedy."""
    return BACKENDS[pool.balancer].lacks(pool)


def advice(pool: PoolSettings, snapshot: Snapshot) -> tuple[str, str] | None:
    """(measurement, remedy) where another balance algorithm than that of `snapshot` works better; None where not."""
    return BACKENDS[pool.balancer].advice(pool, snapshot)


def check(pool: PoolSettings, settings: LbengineSettings, state_dir: str | Path | None = None) -> list[str]:
    """Checks the pool's balancer; returns warnings. Raises BalancerError when the pool cannot be driven.

    `state_dir`: the folder with the stored baseline, needed where the present weights may be ours. Nothing is changed,
    except where the backend's own check says so.
    """
    try:
        for name, backend in BACKENDS.items():
            if name != pool.balancer and (claim := backend.claim(pool)):
                raise BalancerError(claim)
        warnings = BACKENDS[pool.balancer].check(pool, settings, _without_us(pool, state_dir))
    except BalancerError as error:
        raise type(error)(f"pool `{pool.name}`: {error}") from None
    return [f"pool `{pool.name}`: {text}" for text in warnings]


def _without_us(pool: PoolSettings, state_dir: str | Path | None) -> Mapping[str, int]:
    if state_dir is None:
        return {}
    try:
        stored = BaselineStore(Path(state_dir), pool).load()
    except BaselineError:  # the process that drives the pool reports it
        return {}
    return {name: baseline.weight for name, baseline in (stored or {}).items()}
