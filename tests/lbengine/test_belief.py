"""What the balancer's own counts say of a server whose node reports a neighbour."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.lbengine.decision import belief
from slackwater.lbengine.decision.loads import Load, calm_capacity

CALM_RPS = 250.0


def claimed(capacity_rps: float, stderr_rps: float = 10.0, probability: float = 0.97, served_rps: float = 60.0) -> Load:
    return Load(
        "a",
        100,
        100,
        reduce=True,
        slow=True,
        capacity_rps=capacity_rps,
        capacity_stderr_rps=stderr_rps,
        rps=100.0,
        served_rps=served_rps,
        probability=probability,
    )


def believed_rps(load: Load, looks: list[int], each_s: float = 0.0, speed: float = 1.0) -> float:
    belief_now = belief.believed(load, looks, CALM_RPS, 0.08, each_s, speed)
    assert belief_now.capacity_rps is not None
    return belief_now.capacity_rps


def test_a_loss_that_the_queue_does_not_show_is_hardly_believed() -> None:
    """The node lies, or its detector is wrong: it answers a request in 4 ms as the others do."""
    assert believed_rps(claimed(20.0, served_rps=100.0), [0, 1, 0, 0, 1, 0, 0, 1]) > 150.0


def test_a_loss_that_the_queue_shows_is_believed() -> None:
    claim = claimed(125.0, 60.0, 0.9)
    assert believed_rps(claim, [2, 4, 7, 9, 12, 14]) < 125.0


def test_a_queue_that_is_short_for_a_slow_server_is_long_for_a_fast_one() -> None:
    claim = msgspec.structs.replace(claimed(60.0, probability=0.5), rps=50.0, served_rps=50.0)
    looks = [1, 0, 1, 0, 1, 0, 1, 0]
    assert believed_rps(claim, looks, speed=4.0) < believed_rps(claim, looks, speed=1.0)


def test_requests_that_wait_for_what_all_servers_share_are_no_queue() -> None:
    each_s = belief.shortest_s({"a": [59, 61], "b": [48, 52]}, {"a": 140.0, "b": 140.0})
    assert each_s == pytest.approx(50 / 140)
    claim = msgspec.structs.replace(claimed(100.0, 60.0), rps=140.0)
    assert believed_rps(claim, [50] * 5, each_s) > believed_rps(claim, [50] * 5) + 50.0


def test_without_looks_the_report_stands() -> None:
    assert belief.believed(claimed(20.0), [], CALM_RPS, 0.08, 0.0, 1.0) == claimed(20.0)


def test_a_server_answers_no_less_than_it_answers_now() -> None:
    assert claimed(50.0, served_rps=90.0).sure_rps == 90.0


@given(
    st.lists(st.integers(0, 500), min_size=1, max_size=20),
    st.floats(0.001, 1e4),
    st.floats(0.0, 1e4),
    st.floats(0.0, 1e4),
    st.floats(0.0, 1e4),
    st.floats(0.0, 1.0),
    st.floats(1.0, 8.0),
)
def test_whatever_is_counted_and_claimed_the_belief_is_a_number(
    looks: list[int], rps: float, capacity_rps: float, stderr_rps: float, served_rps: float, p: float, speed: float
) -> None:
    load = msgspec.structs.replace(claimed(capacity_rps, stderr_rps, p, served_rps), rps=rps)
    belief_now = belief.believed(load, looks, CALM_RPS, 0.08, 0.0, speed)
    assert 0.0 <= (belief_now.capacity_rps or 0.0) < math.inf
    assert 0.0 <= belief_now.capacity_stderr_rps < math.inf


def test_a_capacity_with_an_error_as_large_as_itself_is_no_division_by_zero() -> None:
    loads = [claimed(125.0), Load("b", 100, 100, capacity_rps=300.0, capacity_stderr_rps=300.0, rps=100.0)]
    per_weight, error = calm_capacity(loads, [125.0, 300.0])
    belief_now = belief.believed(loads[0], [1, 2], 100 * per_weight, error, 0.0, 1.0)
    assert 0.0 < (belief_now.capacity_rps or 0.0) < math.inf
