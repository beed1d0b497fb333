"""A virtual machine's neighbour is outside of its kernel: users feel it first, and their wait is believed by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from slackwater.core.messages import Sample, Verdict
from slackwater.detector.explain import NOT_IN_IT, TAIL_ALONE
from slackwater.detector.features.features import requests_load
from slackwater.detector.judge import Judge
from tests.support.balancers_samples import states
from tests.support.detector_frames import frame
from tests.support.judges import new_judge
from tests.support.seeds import seeds
from tests.support.synthetic_guest import LOUD, PERIOD_S, QUICK_PAGES, Guests

Change = Callable[[Sample], None]


def verdicts_of(judge: Judge, guests: Guests, ticks: int, change: Change | None = None) -> list[Verdict]:
    """The Verdicts about `LOUD`, whose Samples are changed."""
    verdicts: list[Verdict] = []
    for now_s, samples in guests.ticks(ticks):
        for sample in samples:
            if sample.node == LOUD and change is not None:
                change(sample)
        verdicts += judge.tick(now_s, samples)
    return [verdict for verdict in verdicts if verdict.node == LOUD]


def calm_guests(seed: int) -> tuple[Judge, Guests]:
    judge, guests = new_judge(), Guests(QUICK_PAGES, "hidden", seed)
    assert set(states(verdicts_of(judge, guests, 300))) == {"calm"}
    return judge, guests


def users_wait(sample: Sample) -> None:
    """Requests take eight times as long, and nothing in the machine tells why."""
    assert sample.traffic is not None
    times = {
        "rt_mean_ms": 8.0 * (sample.traffic.rt_mean_ms or 0.0),
        "rt_p50_ms": 8.0,
        "rt_p95_ms": 8.0 * (sample.traffic.rt_p95_ms or 0.0),
    }
    sample.traffic = msgspec.structs.replace(sample.traffic, **times)


def dear(sample: Sample) -> None:
    """The same beside a neighbour whose time is booked on the web server, which seems to use all of the machine."""
    users_wait(sample)
    assert sample.sched is not None
    assert sample.cpu is not None
    sample.sched = msgspec.structs.replace(sample.sched, cpu_s_per_s=1.0)
    sample.cpu = msgspec.structs.replace(sample.cpu, utilisation=1.0)


def test_the_third_feature_of_a_machine_is_how_long_users_wait_and_of_a_cgroup_how_far_a_cause_is_felt() -> None:
    cgroup = frame([80.0], [0.3], run_delay_per_cpu=1.0, rt_p95=27.0)
    machine = frame([80.0], [0.3], run_delay_per_cpu=1.0, rt_p95=27.0, steal=1.0)
    assert cgroup.matrix[0].round(6).tolist() == [0.0, 0.0, 0.0]
    assert machine.matrix[0].round(6).tolist() == [0.0, 0.0, 3.0]
    one_client = dataclasses.replace(machine, tail_alone=np.array([True]))
    assert one_client.matrix[0].tolist() == [0.0, 0.0, 0.0]


def test_a_machines_load_is_what_its_requests_cost_in_calm_and_what_it_measures_where_that_is_not_known() -> None:
    assert requests_load(np.array([1.0, 0.3, 0.8]), np.array([0.2, 0.3, np.nan])).tolist() == [0.2, 0.3, 0.8]


@pytest.mark.parametrize("seed", seeds(3))
def test_a_machine_whose_users_alone_show_it_is_slow_without_a_cause(seed: int) -> None:
    judge, guests = calm_guests(seed)
    verdicts = verdicts_of(judge, guests, 20, users_wait)
    words = [verdict.state for verdict in verdicts]
    assert words == sorted(words), "calm, then slow"
    assert words.index("slow") * PERIOD_S <= 1.0
    last = verdicts[-1]
    assert (last.source, last.resource) == ("monitor", None)
    assert "times as long as usual, unlike on the other servers" in last.path[0]
    assert NOT_IN_IT in last.path
    assert verdicts_of(judge, guests, 50)[-1].state == "calm"


@pytest.mark.parametrize("seed", seeds(3))
def test_time_that_is_booked_on_the_web_server_does_not_excuse_the_neighbour_that_took_it(seed: int) -> None:
    judge, guests = calm_guests(seed)
    verdicts = verdicts_of(judge, guests, 20, dear)
    assert set(states(verdicts)) <= {"calm", "slow", "interference"}, "never overload"
    assert next(number for number, verdict in enumerate(verdicts) if verdict.state != "calm") * PERIOD_S <= 1.0


def full_of_others(sample: Sample) -> None:
    """A program of the machine's own uses all CPU time that the web server leaves."""
    assert sample.cpu is not None
    sample.cpu = msgspec.structs.replace(sample.cpu, utilisation=1.0)


def beside_them(sample: Sample) -> None:
    users_wait(sample)
    full_of_others(sample)


@pytest.mark.parametrize("seed", seeds(3))
def test_a_machines_own_backup_is_no_neighbour(seed: int) -> None:
    """What else it runs is seen within half a second, and users wait a little later."""
    judge, guests = calm_guests(seed)
    verdicts = verdicts_of(judge, guests, 3, full_of_others) + verdicts_of(judge, guests, 60, beside_them)
    assert set(states(verdicts)) == {"calm", "overload"}
    assert verdicts[-1].state == "overload"


@pytest.mark.parametrize("seed", seeds(3))
def test_the_word_is_slow_until_a_cause_shows_and_each_episode_begins_without_one(seed: int) -> None:
    judge, guests = calm_guests(seed)
    for _ in range(2):
        slow = verdicts_of(judge, guests, 15, users_wait)[-1]
        assert slow.state == "slow"
        named = verdicts_of(judge, guests, 15, dear)
        words = [verdict.state for verdict in named]
        assert words == sorted(words, reverse=True), "slow, then interference"
        assert named[-1].state == "interference"
        assert named[-1].since_unix_s > slow.since_unix_s, "the word has a time of its own"
        assert verdicts_of(judge, guests, 5, users_wait)[-1].state == "interference", "what was seen is not forgotten"
        assert verdicts_of(judge, guests, 100)[-1].state == "calm"


@pytest.mark.parametrize("seed", seeds(3))
def test_a_client_with_slow_requests_makes_no_slow_machine(seed: int) -> None:
    """On one connection a request of 150 ms follows the other."""

    def one_client(sample: Sample) -> None:
        assert sample.traffic is not None
        answers = (sample.traffic.rps or 0.0) * PERIOD_S
        mean_ms = ((answers - 1.0) * (sample.traffic.rt_mean_ms or 0.0) + 150.0) / answers
        sample.traffic = msgspec.structs.replace(
            sample.traffic, rt_mean_ms=mean_ms, rt_p50_ms=1.5, rt_p95_ms=150.0, in_flight=1
        )

    judge, guests = calm_guests(seed)
    verdicts = verdicts_of(judge, guests, 100, one_client)
    assert set(states(verdicts)) == {"calm"}
    assert sum(TAIL_ALONE in verdict.path for verdict in verdicts) > 20


@pytest.mark.parametrize("seed", seeds(3))
def test_what_slows_all_machines_makes_none_of_them_slow(seed: int) -> None:
    judge, guests = calm_guests(seed)
    words: set[str] = set()
    for now_s, samples in guests.ticks(100):
        for sample in samples:
            users_wait(sample)
        words |= {verdict.state for verdict in judge.tick(now_s, samples)}
    assert words == {"calm", "all_slow"}
