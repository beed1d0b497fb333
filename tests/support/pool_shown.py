"""A pool as a balancer shows it, and Verdicts on it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from slackwater.core.config import LbengineSettings, PoolSettings
from slackwater.core.messages import State, Verdict
from slackwater.lbengine.backends.haproxy.algorithms import weights_mean
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.lbengine.backends.ipvs.schedulers import SCHEDULERS
from slackwater.lbengine.balancer import Server, Snapshot
from slackwater.lbengine.baseline import Baseline
from slackwater.lbengine.decision.decide import Decisions, decide
from slackwater.lbengine.decision.position import Position
from slackwater.lbengine.decision.rates import Rates
from slackwater.lbengine.decision.state import PoolState, PoolView

POOL = HAProxyPool(name="web", backend="web", socket="/none", mode="act")


def server(name: str, weight: int, available: bool = True) -> Server:
    return Server(name=name, condition="up" if available else "down", weight=weight, configured=100)


def snapshot(servers: Sequence[Server] = (), balance: str = "roundrobin") -> Snapshot:
    """Under HAProxy's algorithm or IPVS's scheduler of that name."""
    scheduler = SCHEDULERS.get(balance)
    return Snapshot(
        balance=balance,
        weights_mean=weights_mean(balance) if scheduler is None else scheduler.weights_mean,
        serves_in_runs=scheduler is not None and scheduler.serves_in_runs,
        servers=tuple(servers),
    )


def verdict(name: str, state: State, severity: float, capacity_rps: float | None) -> Verdict:
    return Verdict(
        v=1,
        node=name,
        pool="web",
        time_unix_s=0.0,
        state=state,
        since_unix_s=0.0,
        severity=severity,
        path=["because"],
        model="test",
        capacity_rps=capacity_rps,
    )


def decided(
    shown: Snapshot,
    positions: Mapping[str, Position],
    verdicts: Mapping[str, Verdict],
    *,
    now_s: float,
    pool: PoolSettings = POOL,
    baselines: Mapping[str, Baseline] | None = None,
    externally_controlled: Collection[str] = (),
    waiting: bool = False,
    rates: Mapping[str, float] | None = None,
    total_rps: float | None = None,
    served: Mapping[str, float] | None = None,
    failing: Mapping[str, float] | None = None,
    errors: Mapping[str, float] | None = None,
    **overrides: Any,
) -> Decisions:
    """What is decided for a pool that shows this; every baseline weight is 100 unless `baselines` says otherwise.

    `failing`: the share that servers fail of their requests, well above their peers.
    """
    fails = {
        name: msgspec.structs.replace(verdicts[name], failed_share=share, peers_failed_share=0.0)
        for name, share in (failing or {}).items()
    }
    state = PoolState(
        "acting",
        baselines=baselines or {server.name: Baseline(100, 100) for server in shown.servers},
        positions=positions,
        externally_controlled=frozenset(externally_controlled),
        rates=Rates(rps=rates, total_rps=total_rps, served=served, errors=errors),
        started_s=now_s if waiting else None,
    )
    view = PoolView(now_s=now_s, snapshot=shown, verdicts={**verdicts, **fails}, **overrides)
    return decide(state, view, pool, LbengineSettings())
