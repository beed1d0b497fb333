"""What the balancer sees of a node whose own traffic cannot be read."""

from __future__ import annotations

import numpy as np

from slackwater.core.messages import Cycle, ServerState
from slackwater.detector.features.balancer_latency import FRESH_S, BalancerLatency, response_times_ms
from tests.support.judges import new_judge
from tests.support.synthetic_cluster import Cluster


def test_a_cycle_shows_nodes_response_times_where_there_are_requests() -> None:
    servers = [
        ServerState("s1", "up", 100, 100, 100, rps=80.0, balancer_rt_mean_ms=4.0),
        ServerState("web2", "up", 100, 100, 100, rps=80.0, balancer_rt_mean_ms=5.0),
        ServerState("drained", "up", 0, 100, 0, rps=0.0, balancer_rt_mean_ms=90.0),
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
    latency.resize(1)
    blind, seeing = (
        {"traffic.rt_mean_ms": np.array([rt_ms]), "traffic.rt_p95_ms": np.array([np.nan])} for rt_ms in (np.nan, 2.0)
    )
    assert np.isnan(latency.column(0.0, here, blind)), "nothing was reported yet"
    latency.report(0.0, 0, 7.0)
    assert latency.column(FRESH_S, here, blind) == 7.0
    assert np.isnan(latency.column(FRESH_S + 0.1, here, blind))
    assert np.isnan(latency.column(0.1, here, seeing))
    latency.forget(0)
    assert np.isnan(latency.column(0.1, here, blind)), "the slot is another node's now"
