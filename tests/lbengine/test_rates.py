"""The pool's rates: the balancer's where it counts requests, else the nodes'."""

from __future__ import annotations

from typing import Literal

import pytest

from slackwater.lbengine.balancer import Server, Snapshot
from slackwater.lbengine.decision.rates import Rates


def snapshot(requests: int, counts: Literal["requests", "connections"], third_weight: int = 0) -> Snapshot:
    servers = tuple(
        Server(name=name, weight=weight, requests=requests)
        for name, weight in (("a", 20), ("b", 20), ("c", third_weight))
    )
    return Snapshot(balance="wrr", weights_mean="share", servers=servers, counts=counts)


def test_counted_requests_are_believed_before_the_nodes() -> None:
    rates = Rates()
    rates = rates.after(0.0, snapshot(0, "requests"), {"a": 7.0})
    assert (rates.rps, rates.total_rps) == (None, 7.0)
    rates = rates.after(1.0, snapshot(50, "requests"), {"a": 7.0})
    assert (rates.rps, rates.total_rps) == ({"a": 50.0, "b": 50.0, "c": 50.0}, 150.0)
    rates = rates.after(2.0, snapshot(0, "requests"), {"a": 7.0}, restarted=True)
    assert (rates.rps, rates.total_rps) == (None, 150.0)


def test_counted_connections_are_not_requests_so_the_nodes_give_the_rate() -> None:
    rates = Rates()
    for now_s in (0.0, 1.0):
        rates = rates.after(now_s, snapshot(int(50 * now_s), "connections"), {"a": 30.0, "b": 40.0})
    assert (rates.rps, rates.total_rps, rates.errors) == ({"a": 30.0, "b": 40.0}, 70.0, None)


def test_a_server_with_weight_whose_node_is_silent_leaves_the_last_known_rate() -> None:
    rates = Rates()
    rates = rates.after(0.0, snapshot(0, "connections", 20), {"a": 30.0, "b": 40.0})
    assert (rates.rps, rates.total_rps) == (None, None)
    rates = rates.after(1.0, snapshot(0, "connections", 20), {"a": 30.0, "b": 40.0, "c": 10.0})
    rates = rates.after(2.0, snapshot(0, "connections", 20), {"a": 30.0, "b": 40.0})
    assert (rates.rps, rates.total_rps) == (None, 80.0)


def test_a_queue_is_what_is_in_flight_beyond_calm() -> None:
    rates = Rates()
    for look in range(6):
        flying = Server(name="a", weight=20, requests=20 * look, in_flight=5)
        shown = Snapshot(balance="leastconn", weights_mean="concurrency", servers=(flying,))
        rates = rates.after(0.2 * look, shown, {})
    assert rates.queue_at("a", 0.01).mean == pytest.approx(5.0 - 100.0 * 0.01)
    assert rates.queue_at("a", 0.2).mean == pytest.approx(5.0 - 100.0 * 0.2), "it holds less than a calm server"
    assert rates.queue_at("b", 0.01).mean == rates.queue_at("b", 0.01).variance == 0.0
    assert rates.queue_at("a", None) == rates.queue_at("a", 0.0) == (0.0, 0.0)


def test_long_requests_make_looks_at_a_queue_tell_of_each_other() -> None:
    rates = Rates(rps={"a": 100.0}, looks=tuple((0.1 * look, {"a": 2}) for look in range(10)))
    in_calm = [100.0 * calm_s for calm_s in (0.01, 0.1, 1.0)]
    variances = [rates.queue_at("a", calm_s).variance for calm_s in (0.01, 0.1, 1.0)]
    independent = [mean * (1.0 + mean) / variance for mean, variance in zip(in_calm, variances, strict=True)]
    assert independent == pytest.approx([10.0, 1.0 / (6.0 * 0.1), 1.0])
