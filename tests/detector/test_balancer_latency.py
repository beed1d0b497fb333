"""What the balancer sees of a node whose own traffic cannot be read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from slackwater.core.messages import Cycle, Sample, ServerState
from slackwater.detector.features.balancer_latency import FRESH_S, BalancerLatency, response_times_ms
from tests.support.balancers_samples import outside
from tests.support.judges import new_judge
from tests.support.synthetic_cluster import Cluster


def test_a_cycle_shows_nodes_response_times_where_there_are_requests() -> None:
    servers = [
        ServerState("s1", "up", 100, 100, 100, rps=80.0, balancer_rt_mean_ms=4.0),
        ServerState("web2", "up", 100, 100, 100, rps=80.0, balancer_rt_mean_ms=5.0),
        ServerState("idle", "up", 100, 100, 100, rps=0.0, balancer_rt_mean_ms=90.0),
        ServerState("tried", "up", 10, 100, 10, rps=12.0, balancer_rt_mean_ms=3.0),
        ServerState("lvs", "up", 100, 100, 100, rps=80.0),
    ]
    cycle = Cycle(1, "web", 1.0, "act", False, "roundrobin", "optimal", "", servers)
    assert response_times_ms(cycle, {"s1": "web1"}) == {"web1": 4.0, "web2": 5.0}


def states(told_ms: float | None, traffic: bool = False) -> set[str]:
    """What host1 is called beside a neighbour, when the balancer says that its requests take so long."""
    judge = new_judge()
    cluster = Cluster(traffic=traffic, sched=False, rich=True, seed=5)
    states = []
    for now_s, samples in cluster.run(40.0):
        loud = now_s > 30.0
        cluster.hosts["host1"].neighbour = 0.9 * loud
        if told_ms is not None:
            judge.report_balancer_latency(
                now_s, {"host1": told_ms if loud else 3.0, "host2": 3.1, "host3": 2.9, "other": 1.0}
            )
        states += [verdict.state for verdict in judge.tick(now_s, samples) if verdict.node == "host1" and loud]
    return set(states)


def test_it_bears_a_cause_out_and_is_none_itself() -> None:
    assert states(60.0) == {"calm", "interference"}
    assert states(None) == {"calm", "interference"}, "nobody sees the requests: the cause is believed"
    assert states(3.0) == {"calm"}, "nobody feels it"


def test_it_speaks_only_of_now_and_only_for_nodes_without_traffic_of_their_own() -> None:
    latency, here = BalancerLatency(), np.array([0])
    latency.resize(2)
    blind, seeing = ({"traffic.rps": np.array([rps])} for rps in (np.nan, 0.0))
    assert np.isnan(latency.column(0.0, here, blind)), "nothing was reported yet"
    latency.report(0.0, {0: 7.0})
    assert latency.column(FRESH_S, here, blind) == 7.0
    assert np.isnan(latency.column(FRESH_S + 0.1, here, blind))
    assert np.isnan(latency.column(0.1, here, seeing)), "its Sample knows that nothing was answered"
    latency.report(0.1, {1: 5.0})
    assert np.isnan(latency.column(0.2, here, blind)), "the last Cycle does not name it: it was lowered"
    latency.report(0.2, {0: 7.0})
    latency.forget(0)
    assert np.isnan(latency.column(0.3, here, blind)), "the slot is another node's now"


@pytest.mark.parametrize("seen", [outside, lambda sample: sample], ids=["by its balancer", "by its monitor"])
def test_the_balancers_mean_is_no_answer_of_a_drained_server(seen: Callable[[Sample], Sample]) -> None:
    """Trials with a few slow requests. The balancer's mean over the last 1024 is of the calm before."""
    judge, cluster = new_judge(), Cluster(seed=3)
    host, weight, rates = cluster.hosts["host1"], 100, [83.0] * 5
    for number in range(300):
        since_s = 0.2 * number - 22.0
        host.neighbour = 0.9 * (since_s >= -2.0)
        if since_s >= 0.0:
            is_tried = since_s % 3.0 > (1.5 if since_s < 3.0 else 2.5)
            host.rps, weight = 15.0 * is_tried, 10 * is_tried
        rates = [*rates[1:], host.rps]
        shown = ServerState("host1", "up", weight, 100, weight, rps=sum(rates) / 5, balancer_rt_mean_ms=2.0)
        cycle = Cycle(1, "web", 1.0, "act", False, "roundrobin", "optimal", "", [shown])
        judge.report_balancer_latency(cluster.now_s, response_times_ms(cycle, {}))
        for now_s, samples in cluster.run(0.2):
            for verdict in judge.tick(now_s, [seen(sample) for sample in samples]):
                if since_s >= 0.0 and verdict.node == "host1":
                    assert verdict.state in ("slow", "interference"), f"{since_s:.1f} s after the drain"
