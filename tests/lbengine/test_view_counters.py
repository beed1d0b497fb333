"""What a balancer's counters say of each server, look by look."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.lbengine.balancer import Server, Snapshot
from slackwater.lbengine.view.counters import LEAST_LOOKS, WINDOW_S, RecentCounters


def snapshot(
    *servers: Server, pid: int = 1, uptime_s: int = 9, counts: Literal["requests", "connections"] = "requests"
) -> Snapshot:
    return Snapshot(
        balance="roundrobin", weights_mean="share", servers=servers, pid=pid, uptime_s=uptime_s, counts=counts
    )


def server(requests: int, in_flight: int = 0, errors: int = 0, name: str = "a") -> Server:
    return Server(name=name, weight=100, requests=requests, in_flight=in_flight, errors=errors)


def test_rates_are_of_the_time_since_the_look_before() -> None:
    counters = RecentCounters().after(0.0, snapshot(server(100, 4)))
    assert not counters.counted
    counters = counters.after(0.5, snapshot(server(150, 14, errors=3)))
    (seen,) = counters.counted.values()
    assert (seen.rps, seen.errors_per_s, seen.in_flight, seen.period_s) == (80.0, 6.0, 14, 0.5)


def test_the_mean_follows_from_the_requests_in_flight_and_their_rate() -> None:
    counters, answered = RecentCounters(), 0
    for look in range(40):
        answered += 10
        held = 3 if look % 2 else 5
        counters = counters.after(look * 0.1, snapshot(server(answered + held, held)))
    mean_ms = counters.counted["a"].rt_mean_ms
    assert mean_ms is not None
    assert abs(mean_ms - 40.0) < 1.0


def test_refused_requests_are_no_answers_so_a_server_that_refuses_does_not_look_fast() -> None:
    """HAProxy counts each try as a request, and it ends at once."""
    counters = RecentCounters()
    for look in range(40):
        half = Server(name="a", weight=100, requests=20 * look + 4, in_flight=4, errors=10 * look, unanswered=10 * look)
        none = Server(name="b", weight=100, requests=20 * look, errors=20 * look, unanswered=20 * look)
        counters = counters.after(look * 0.1, snapshot(half, none))
    half_seen, none_seen = counters.counted["a"], counters.counted["b"]
    assert half_seen.rps == pytest.approx(100.0)
    assert half_seen.errors_per_s == pytest.approx(100.0)
    assert half_seen.rt_mean_ms == pytest.approx(40.0, rel=0.1)
    assert (none_seen.rps, none_seen.rt_mean_ms) == (0.0, None)
    assert none_seen.errors_per_s == pytest.approx(200.0)


def test_few_looks_and_no_answers_give_no_mean() -> None:
    counters = RecentCounters()
    for look in range(LEAST_LOOKS):
        counters = counters.after(look * 0.1, snapshot(server(10 * look + 2, 2)))
    assert counters.counted["a"].rt_mean_ms is None
    for look in range(LEAST_LOOKS, 40):
        counters = counters.after(look * 0.1, snapshot(server(10 * LEAST_LOOKS + 2, 2)))
    seen = counters.counted["a"]
    assert (seen.rt_mean_ms, seen.rps, seen.in_flight) == (None, 0.0, 2)


def test_a_balancer_that_was_made_anew_is_counted_from_there() -> None:
    counters = RecentCounters().after(0.0, snapshot(server(1000)))
    counters = counters.after(1.0, snapshot(server(20), pid=2, uptime_s=0))
    assert not counters.counted
    counters = counters.after(2.0, snapshot(server(50), pid=2, uptime_s=1))
    assert counters.counted["a"].rps == 30.0


def test_a_server_that_was_removed_and_added_again_is_counted_from_there() -> None:
    counters = RecentCounters().after(0.0, snapshot(server(1000), server(50, name="b")))
    counters = counters.after(1.0, snapshot(server(3), server(60, name="b")))
    assert {name: seen.rps for name, seen in counters.counted.items()} == {"b": 10.0}
    counters = counters.after(2.0, snapshot(server(8)))
    assert {name: seen.rps for name, seen in counters.counted.items()} == {"a": 5.0}


def test_answers_count_as_lately_until_two_looks_have_seen_none() -> None:
    counters, lately = RecentCounters(), []
    for look, (requests, held) in enumerate([(5, 0), (9, 0), (9, 0), (12, 3), (12, 3), (12, 2), (12, 2), (12, 2)]):
        counters = counters.after(look * 1.0, snapshot(server(requests, held)))
        lately += [seen.answered_lately for seen in counters.counted.values()]
    assert lately == [True, True, False, False, True, True, False], "requests that wait are no answers"


def test_connections_are_no_requests() -> None:
    counters = RecentCounters().after(0.0, snapshot(server(10, 2), counts="connections"))
    counters = counters.after(1.0, snapshot(server(20, 3), counts="connections"))
    seen = counters.counted["a"]
    assert (seen.rps, seen.errors_per_s, seen.rt_mean_ms, seen.in_flight) == (None, None, None, None)
    assert seen.count == 10, "connections that the balancer sent it, however many are open"


def test_rare_looks_give_a_mean_too() -> None:
    counters = RecentCounters()
    for look in range(LEAST_LOOKS + 2):
        counters = counters.after(look * WINDOW_S, snapshot(server(100 * look + 4, 4)))
    assert counters.counted["a"].rt_mean_ms == pytest.approx(80.0)


def test_a_server_whose_counters_cannot_be_read_has_no_figures() -> None:
    broken = Server(name="a", weight=100, uncounted="expected a number for stot")
    counters = RecentCounters().after(0.0, snapshot(broken)).after(1.0, snapshot(broken))
    assert not counters.counted


@given(
    st.lists(
        st.tuples(st.floats(0.0, 3.0), st.integers(0, 50), st.integers(0, 9), st.booleans()), min_size=2, max_size=60
    )
)
def test_whatever_the_counters_do_no_figure_is_negative_and_old_looks_are_forgotten(
    steps: list[tuple[float, int, int, bool]],
) -> None:
    counters, now_s, requests = RecentCounters(), 0.0, 0
    for after_s, more, held, falls in steps:
        now_s += after_s
        requests = 0 if falls else requests + more
        counters = counters.after(now_s, snapshot(server(requests, min(held, requests))))
        for seen in counters.counted.values():
            assert (seen.rps or 0.0) >= 0.0
            assert (seen.rt_mean_ms or 0.0) >= 0.0
        times = [count.time_s for count in counters._looks["a"]]
        assert len(times) <= LEAST_LOOKS + 1 or times[1] > now_s - WINDOW_S
