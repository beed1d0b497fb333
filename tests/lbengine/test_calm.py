"""How long requests take in a calm pool: learnt from what the balancer holds, and only while all servers are calm."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.core.config import LbengineSettings
from slackwater.core.messages import State
from slackwater.lbengine.baseline import Baseline
from slackwater.lbengine.decision.calm import LONGEST_S, MEMORY_S, MOST_SPEED, Calm
from slackwater.lbengine.decision.position import Position
from slackwater.lbengine.decision.state import PoolState, PoolView
from slackwater.lbengine.decision.step import step
from tests.support.pool_shown import POOL, server, snapshot, verdict

NAMES = ("host1", "host2", "host3")


def seen(calm: Calm, held: float, seconds: int, began_s: float = 0.0) -> Calm:
    for second in range(seconds):
        calm = calm.after(began_s + second, held, 100.0)
    return calm


def test_before_the_first_request_no_time_is_known() -> None:
    assert Calm().wait_s is None
    assert Calm().after(0.0, 5.0, 100.0).wait_s is None, "no time has passed"


def test_requests_held_over_requests_a_second_are_the_mean_time() -> None:
    assert seen(Calm(), 2.0, 60).wait_s == pytest.approx(0.02)


def test_a_pool_that_becomes_slower_is_noticed_within_the_memory() -> None:
    calm = seen(Calm(), 1.0, 60)
    assert seen(calm, 4.0, round(3 * MEMORY_S), began_s=60.0).wait_s == pytest.approx(0.04, rel=0.1)


def test_time_that_nobody_looked_at_counts_as_one_second_at_most() -> None:
    calm = seen(Calm(), 2.0, 60)
    assert calm.after(10_000.0, 40.0, 100.0).held < calm.held + 40.0 * LONGEST_S


def queued(speed: float, servers: int = 3, capacity_rps: float = 250.0, rps: float = 100.0) -> float:
    """Requests in a pool of processor-sharing servers that a balancer visits in turn."""
    busy = rps / capacity_rps / speed
    return servers * (busy + (1.0 + 1.0 / servers) / 2.0 * busy**2 / (1.0 - busy))


@pytest.mark.parametrize("speed", [1.0, 1.4, 2.5])
def test_the_speed_follows_from_the_requests_that_are_held(speed: float) -> None:
    calm = Calm()
    for second in range(60):
        calm = calm.after(second, queued(speed), 300.0)
    assert calm.speed(3, 750.0) == pytest.approx(speed, rel=0.1)


def test_before_anything_was_seen_a_server_is_as_fast_as_its_capacity() -> None:
    assert Calm().speed(3, 750.0) == 1.0


def test_one_look_at_a_pool_that_is_just_empty_is_not_believed() -> None:
    assert Calm().after(0.0, 0, 300.0).after(0.2, 0, 300.0).speed(3, 750.0) < 1.3


@given(
    st.lists(st.tuples(st.floats(0.0, 2.0), st.integers(0, 10_000), st.floats(0.0, 1e4)), max_size=50),
    st.integers(1, 100),
    st.floats(1e-3, 1e5),
)
def test_whatever_is_seen_the_speed_is_within_its_bounds(
    looks: list[tuple[float, int, float]], servers: int, capacity_rps: float
) -> None:
    calm, now_s = Calm(), 0.0
    for passed_s, held, rps in looks:
        now_s += passed_s
        calm = calm.after(now_s, held, rps)
    assert 1.0 <= calm.speed(servers, capacity_rps) <= MOST_SPEED


@pytest.mark.parametrize("state", ["calm", "interference", "overload", "all_slow", "unknown"])
def test_nothing_is_learnt_from_a_pool_that_is_not_calm(state: State) -> None:
    """host1 has this state; each second the servers answer 100 requests each, and hold one."""
    pool = PoolState(
        "acting",
        baselines={name: Baseline(100, 100) for name in NAMES},
        positions={name: Position(100) for name in NAMES},
    )
    verdicts = {name: verdict(name, state if name == "host1" else "calm", 0.0, 250.0) for name in NAMES}
    for second in range(40):
        servers = [replace(server(name, 100), requests=100 * second + 1, in_flight=1) for name in NAMES]
        view = PoolView(now_s=float(second), snapshot=replace(snapshot(servers), counts="requests"), verdicts=verdicts)
        pool, _ = step(pool, view, POOL, LbengineSettings())
    if state == "calm":
        assert pool.calm.wait_s == pytest.approx(0.01, rel=0.1)
    else:
        assert pool.calm == Calm()
