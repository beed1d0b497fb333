"""A weak neighbour that lasts: which ticks show it, how many are needed, and what is none of it."""

from __future__ import annotations

import numpy as np
import pytest

from detector.classify.persistence import NEEDED, OF, Persistence
from detector.classify.thresholds import SELF_INFLICTED_LOAD, explain_weak_signal, find_deviations
from detector.features.signals import INDEX, MIN_CPU_S, SIGNALS, leave_out_idle
from tests.support.cluster_frames import frame

NONE = np.zeros((1, len(SIGNALS)), dtype=bool)
"""Leaves no signal out."""


def test_a_sign_counts_when_it_shows_now_and_in_most_of_the_last_ticks() -> None:
    persistence = Persistence()
    persistence.resize(2)
    slots = np.arange(2)
    counts = [persistence.step(slots, np.array([tick % 2 == 0, True])).tolist() for tick in range(OF)]
    assert [one for one, _ in counts] == [1, 0, 2, 0, 3, 0, 4]
    assert [other for _, other in counts] == [1, 2, 3, 4, 5, 6, 7]
    assert counts[NEEDED - 1][1] == NEEDED
    persistence.forget(1)
    assert persistence.step(np.array([1]), np.array([True])).tolist() == [1]
    assert persistence.step(slots, np.array([False, False])).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("peak", "signals", "weak_signal"),
    [
        (0.5, {"run_delay_per_cpu": 2.3, "rt_mean": 2.1}, True),
        (0.5, {"steal": 2.3, "rt_mean": 2.1}, True),
        (0.5, {"run_delay_per_cpu": 2.3, "rt_routes": 2.1, "rt_mean": 1.0}, True),
        (0.5, {"run_delay_per_cpu": 2.3, "rt_routes": 1.0, "rt_mean": 2.1}, False),
        (0.5, {"run_delay_per_cpu": 2.3, "rt_balancer": 2.1}, True),
        (SELF_INFLICTED_LOAD, {"run_delay_per_cpu": 2.3, "rt_mean": 2.1}, False),
        (0.5, {"run_delay_per_cpu": 2.3, "rt_mean": 1.9}, False),
        (0.5, {"run_delay_per_cpu": 2.1, "rt_mean": 2.1}, False),
        (0.5, {"rt_mean": 9.0}, False),
    ],
)
def test_who_waits_a_little_and_makes_users_wait_shows_it_but_not_by_its_own_doing(
    peak: float, signals: dict[str, float], weak_signal: bool
) -> None:
    assert find_deviations(frame(peak, **signals)).weak_signal_without(NONE).tolist() == [weak_signal]


def test_peers_that_wait_as_long_leave_nothing_to_show() -> None:
    alike = frame(0.5, run_delay_per_cpu=2.3, rt_mean=2.1)
    alike.peers[:] = np.where(np.isnan(alike.peers), np.nan, 1.0)
    assert not find_deviations(alike).weak_signal_without(NONE).any()


def test_a_cause_that_is_left_out_is_no_cause() -> None:
    left_out = NONE.copy()
    left_out[0, INDEX["run_delay_per_cpu"]] = True
    assert not find_deviations(frame(0.5, run_delay_per_cpu=2.3, rt_mean=2.1)).weak_signal_without(left_out).any()
    assert (
        find_deviations(frame(0.5, run_delay_per_cpu=2.3, steal=2.3, rt_mean=2.1)).weak_signal_without(left_out).all()
    )


def test_without_a_signal_the_others_count_where_users_feel_it() -> None:
    left_out = NONE.copy()
    left_out[0, INDEX["run_delay_per_cpu"]] = True
    felt = find_deviations(frame(0.5, run_delay_per_cpu=2.6, steal=9.0, late=4.0, rt_mean=4.0))
    assert felt.affects_users_without(left_out).all()
    unfelt = find_deviations(frame(0.5, run_delay_per_cpu=2.6, steal=9.0, late=4.0, rt_mean=1.0))
    assert unfelt.interfering.all()
    assert not unfelt.affects_users_without(left_out).any()


def test_it_is_reported_with_its_limits() -> None:
    first, second = explain_weak_signal(frame(0.5, run_delay_per_cpu=2.3, rt_mean=2.1), 0)
    assert first.startswith("run delay per CPU second 2.3 is 2.3x its calm baseline (>= 2.2x)")
    assert second.startswith("mean response time 2.1 ms is 2.1x its calm baseline (>= 2x)")


@pytest.mark.parametrize(
    ("signals", "strong"),
    [
        ({"run_delay_per_cpu": 10.0, "late": 12.0}, True),
        ({"run_delay_per_cpu": 5.0, "rt_mean": 5.0}, False),
        ({"run_delay_per_cpu": 400.0}, False),
        ({"run_delay_per_cpu": 40.0, "rt_mean": 3.0}, True),
    ],
)
def test_a_tick_is_strong_when_two_groups_together_are_far_beyond_their_limits(
    signals: dict[str, float], strong: bool
) -> None:
    assert find_deviations(frame(0.3, **signals)).strong.tolist() == [strong]


def test_run_delay_without_cpu_time_to_speak_of_is_absent() -> None:
    cpu_s = np.array([MIN_CPU_S / 2, MIN_CPU_S, np.nan])
    columns = {"sched.cpu_s_per_s": cpu_s, "sched.run_delay_per_cpu_s": np.full(3, 9.0)}
    leave_out_idle(columns)
    np.testing.assert_array_equal(columns["sched.run_delay_per_cpu_s"], [np.nan, 9.0, 9.0])


def test_the_throttled_share_of_a_quota_is_no_evidence() -> None:
    assert not SIGNALS[INDEX["throttled"]].evidence
    assert not find_deviations(frame(0.3, throttled=10.0, rt_mean=9.0)).interfering.any()
