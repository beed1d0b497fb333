"""The search server of the table `hurry-up`, and the table, small."""

from __future__ import annotations

import numpy as np
import pytest

from slackwater.governor.policies.static import Static
from slackwater.governor.types import Configuration
from slackwater_lab.governor import hurry_up
from slackwater_lab.governor.policies.hurry_up import HurryUp
from slackwater_lab.governor.queues import mmc_wait_s
from slackwater_lab.governor.search import Interval, SearchServer, joules_of, seen

OF = hurry_up.machine("a72")
NEVER = 1e9


def once(cores: int, clients: int, shards: int, work_s: float) -> SearchServer:
    """Each client sends one request: the first at 0.1 s, the next 0.1 s later."""
    return SearchServer(cores, clients, shards, lambda client, now_s: (NEVER if now_s else 0.1 * (client + 1), work_s))


def test_the_mean_wait_of_many_clients_is_that_of_erlang() -> None:
    random = np.random.default_rng(1)
    clients, cores, work_s = 3000, 3, 1e-3
    rate = 0.8 * cores / work_s
    server = SearchServer(
        cores,
        clients,
        1,
        lambda _, now_s: (now_s + float(random.exponential(clients / rate)), float(random.exponential(work_s))),
    )
    server.run(2.0, (1.0,) * cores)
    answered_s = server.run(40.0, (1.0,) * cores).answered_s
    assert np.mean(answered_s) == pytest.approx(mmc_wait_s(cores, rate, work_s) + work_s, rel=0.1)


def test_a_request_is_answered_with_its_last_task_and_each_task_has_its_events() -> None:
    server = once(cores=3, clients=2, shards=5, work_s=0.2)
    done = server.run(1.5, (1.0, 1.0, 0.5))
    assert sum(done.busy_s) == pytest.approx(2.0 + done.busy_s[2] / 2), "at half the clock, twice the time"
    assert len(done.answered_s) == 2
    assert [event.entered for event in done.events].count(True) == 10
    assert [event.entered for event in done.events].count(False) == 10
    assert done.oldest_s == 0.0


def test_a_task_keeps_its_work_over_intervals_and_clocks() -> None:
    server = once(cores=2, clients=1, shards=1, work_s=1.0)
    first = server.run(0.5, (1.0, 1.0))
    assert first.oldest_s == pytest.approx(0.4)
    assert [event.entered for event in first.events] == [True]
    second = server.run(3.0, (0.25, 0.25))
    assert second.answered_s == [pytest.approx(0.4 + 0.6 / 0.25)]
    assert second.awake_s == pytest.approx(0.6 / 0.25)


def test_a_client_waits_for_its_answer() -> None:
    server = SearchServer(1, 1, 1, lambda _, now_s: (now_s + 0.1, 0.5))
    done = server.run(10.0, (1.0,))
    assert len(done.answered_s) == 19, "the first at 0.1 s, then one after the other"
    assert done.answered_s == [pytest.approx(0.5)] * 19


def test_energy_is_that_of_the_socket_awake_and_of_busy_cores_at_their_clocks() -> None:
    action = Static(OF).start()
    assert joules_of(OF, action, Interval(busy_s=[0.0] * 12), 10.0, 20.0) == pytest.approx(10.0 * OF.base_w)
    done = Interval(busy_s=[2.0, *[0.0] * 11], awake_s=2.0)
    more = joules_of(OF, action, done, 10.0, 20.0) - 10.0 * OF.base_w
    assert more == pytest.approx(2.0 * (20.0 + OF.core_w(2600.0, 1.0)))


def test_two_states_are_slower_at_2_ghz_and_hurry_up_is_between() -> None:
    two, three, high = (
        hurry_up.simulate(hurry_up.POLICIES[name](OF), OF, "high", "base", 1, 300.0)
        for name in ("two states, 2000 MHz", "hurry-up", "two states, 2600 MHz")
    )
    assert two.p99_s > three.p99_s > high.p99_s
    assert three.joules < high.joules


def test_hurry_up_speeds_a_long_task_up() -> None:
    policy = HurryUp(OF, 1000.0, 2000.0, 2600.0)
    server = SearchServer(12, 1, 1, lambda _, now_s: (NEVER if now_s else 0.12, 1.0))
    action, clocks = policy.start(), []
    for number in range(1, 27):
        done = server.run(0.05, [clock_mhz / OF.max_mhz for clock_mhz in action.clocks_mhz])
        action = policy.decide(seen(number * 0.05, done, 0.0, 0.05))
        clocks.append(action.clocks_mhz[0])
    assert clocks == [1000.0] * 2 + [2000.0] * 9 + [2600.0] * 13 + [1000.0] * 2, "0.45 s after 0.12 s; done at 1.24 s"


def test_requests_are_the_same_for_all_policies() -> None:
    slow = hurry_up.simulate(Static(OF, Configuration(12, 1000.0)), OF, "low", "base", 1, 200.0)
    fast = hurry_up.simulate(Static(OF), OF, "low", "base", 1, 200.0)
    assert slow.answered_s.mean() == pytest.approx(2.6 * fast.answered_s.mean(), rel=0.15)


def test_the_table_has_a_row_for_each_policy_and_case() -> None:
    figures = hurry_up.compare([1], "a72", seconds=30.0)
    assert {figure.policy for figure in figures} == set(hurry_up.POLICIES)
    assert len({figure.case for figure in figures}) == 6
    assert {figure.policy for figure in figures if figure.case == "3x, low"} == {
        "linux ondemand",
        "hurry-up",
        "slackwater",
    }
