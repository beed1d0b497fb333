"""The tables `heimdall`, `estimators` and `core-switch`, small."""

from __future__ import annotations

import numpy as np

from slackwater.detector.tail.data import Rows
from slackwater.governor.policies.core_switch import CoreSwitch
from slackwater.governor.policies.slackwater import Slackwater
from slackwater.governor.policies.static import Static
from slackwater_lab.governor import core_switch, heimdall, heimdall_table
from slackwater_lab.governor.estimators import online, some

OF = heimdall.machine("a72")


def test_static_meets_the_target_at_the_knee_and_the_slowest_configuration_does_not() -> None:
    static = heimdall.run(Static(OF), OF, 1, np.full(3, heimdall.MOST_RPS))
    assert (static.p95_ms < heimdall.TARGET_MS).all()
    assert static.p95_ms.min() > 0.8
    idle = heimdall.run(Static(OF), OF, 1, np.zeros(1))
    assert np.isnan(idle.p95_ms).all()
    assert idle.guarantee_percent == 100.0


def test_our_policy_saves_and_keeps_the_target_in_a_short_trace() -> None:
    load = heimdall.trace(2)
    static, ours = (heimdall.run(policy, OF, 1, load) for policy in (Static(OF), Slackwater(OF, heimdall.TARGET_MS)))
    assert ours.watts.mean() < static.watts.mean()
    assert ours.guarantee_percent >= 80.0
    assert heimdall.bound_w(OF, load) < ours.watts.mean()


def test_the_table_has_a_row_for_each_policy() -> None:
    rows = {name: heimdall_table.ROWS[name] for name in ("static", "heracles", "slackwater")}
    figures = heimdall_table.compare([1], "a72", step_s=1, rows=rows)
    assert {figure.policy for figure in figures if figure.case == "alone"} == {"bound", *rows}


def made() -> Rows:
    """Four configurations of 50 rows; the p95 is the same in all seconds of one."""
    numbers = np.repeat(np.arange(4), 50)
    inputs = np.stack([np.full(200, 10.0), 1.0 + numbers % 2, numbers, np.zeros(200)], axis=1).astype(float)
    return Rows(inputs, np.asarray(0.55 + 0.12 * numbers, dtype=np.float64), numbers)


def test_some_configurations_have_each_number_of_cores_and_their_first_rows() -> None:
    chosen = some(made(), 2, 0.2, np.random.default_rng(1))
    assert len(chosen.p95_ms) == 20
    assert set(chosen.inputs[:, 1]) == {1.0, 2.0}


def test_a_second_iteration_is_predicted_better_than_the_first() -> None:
    cold, warm = online(OF, made(), 0, 1), online(OF, made(), 1, 1)
    assert warm[0] > cold[0]
    assert warm[1] < cold[1]
    often = np.mean([online(OF, made(), 10, seed)[0] for seed in range(1, 6)])
    assert 92.0 < often < 99.0, "a twentieth of the estimates is drawn at random, and one of ten of these is right"


def test_the_state_of_the_reinforcement_learner_is_the_second_before() -> None:
    rows = made()
    before = np.random.default_rng(1).integers(0, 2, 200)
    inputs = rows.inputs.copy()
    inputs[:, 0] = 5.0 + 5.0 * before
    p95_ms = np.concatenate([[0.6], 0.6 + 0.3 * before[:-1]])
    assert online(OF, Rows(inputs, p95_ms, rows.configuration), 10, 1)[0] > 85.0


def test_core_switch_leaves_three_cores_to_the_jobs_most_of_the_time() -> None:
    machine = core_switch.machine("a72")
    work_s = {"ferret": 30.0, "fft": 10.0}
    run = core_switch.run(CoreSwitch(machine), machine, 2, 1, work_s)
    assert set(run.jobs_s) == set(work_s)
    assert 40.0 <= sum(run.jobs_s.values()) < 60.0
    assert run.two_cores_percent < 50.0
    assert core_switch.run(core_switch.ours(machine), machine, 10, 1, work_s).misses_percent <= 25.0
