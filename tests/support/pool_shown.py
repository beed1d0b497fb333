"""A pool as a balancer shows it, and Verdicts on it."""

from __future__ import annotations

from lbengine.backends.haproxy.haproxy import Server, Snapshot
from slackwater.messages import State, Verdict


def server(name: str, weight: int, available: bool = True) -> Server:
    return Server(name, "UP", available, False, weight, 100, 0, 0, 0, None, 0, False, False, "")


def snapshot(servers: list[Server], balance: str = "roundrobin") -> Snapshot:
    return Snapshot(1, 1, 1, "2.6", False, balance, "", tuple(servers))


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
