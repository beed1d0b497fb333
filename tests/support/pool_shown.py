"""A pool as a balancer shows it, and Verdicts on it."""

from __future__ import annotations

from collections.abc import Sequence

from lbengine.backends.haproxy.algorithms import weights_mean
from lbengine.backends.ipvs.schedulers import SCHEDULERS
from lbengine.balancer import Server, Snapshot
from slackwater.messages import State, Verdict


def server(name: str, weight: int, available: bool = True) -> Server:
    return Server(name=name, available=available, weight=weight, configured=100)


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
