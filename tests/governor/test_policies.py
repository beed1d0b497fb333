"""What each policy does with what it sees."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from slackwater.core.config.node_changes import NODE_POLICIES, GovernorPolicy
from slackwater.detector.features.columns import Floats
from slackwater.detector.tail.data import Rows
from slackwater.detector.tail.table import TabularLearner
from slackwater.governor.policies.core_switch import CoreSwitch
from slackwater.governor.policies.linux import Linux
from slackwater.governor.policies.parties import Parties
from slackwater.governor.policies.pegasus import Pegasus
from slackwater.governor.policies.table import POLICIES
from slackwater.governor.types import Hardware, Observation, Policy
from slackwater_lab.governor.policies.heimdall import Heimdall, choose
from slackwater_lab.governor.policies.heimdall_rl import HeimdallRl
from slackwater_lab.governor.policies.heracles import Heracles
from slackwater_lab.governor.policies.hipster import Hipster, ordered

HARDWARE = Hardware(
    3, tuple(100.0 * step for step in range(1, 11)), 1.0, (0.1,) * 10, tuple(0.01 * step**2 for step in range(1, 11))
)


def seen(time_s: float, p95_ms: float = 1.0, rps: float = 100.0, watts: float = 1.0, busy: float = 0.5) -> Observation:
    return Observation(time_s, rps, p95_ms, busy_shares=(busy,) * 3, power_w=watts)


def settings(policy: Policy, *observations: Observation) -> list[tuple[int, float]]:
    """Cores and clock after each."""
    policy.start()
    return [(len(action.cores), action.clocks_mhz[0]) for action in map(policy.decide, observations)]


def test_ondemand_jumps_to_the_highest_clock_and_is_proportional_below() -> None:
    actions = settings(Linux(HARDWARE), seen(0.1, busy=0.96), seen(0.2, busy=0.5), seen(0.3, busy=0.0))
    assert actions == [(3, 1000.0), (3, 600.0), (3, 100.0)]


def test_schedutil_keeps_a_quarter_of_headroom() -> None:
    actions = settings(Linux(HARDWARE, "schedutil"), seen(0.1, busy=0.4), seen(0.2, busy=1.0))
    assert actions == [(3, 500.0), (3, 700.0)], "1.25 x 0.4 of 1000; then 1.25 x 500, next clock up"


def test_with_a_clock_for_each_core_the_busiest_does_not_decide_for_all() -> None:
    policy = Linux(HARDWARE, per_core=True)
    policy.start()
    assert policy.decide(Observation(0.1, busy_shares=(0.96, 0.5, 0.0))).clocks_mhz == (1000.0, 600.0, 100.0)


def test_heimdall_takes_the_highest_prediction_below_the_slack_point() -> None:
    watts = np.array([1.0, 2.0, 3.0, 4.0])
    assert choose(np.array([2.0, 0.95, 0.85, 0.5]), 1.0, watts) == 2
    assert choose(np.array([0.8, 0.8, 0.8, 0.5]), 1.0, watts) == 0, "of equals the least power"
    assert choose(np.array([4.0, 1.5, 1.2, 1.3]), 1.0, watts) == 2, "none: the lowest prediction"


class Known:
    """An estimator that knows: twice the clock, half the time."""

    name = "known"

    def fit(self, rows: Rows) -> None:  # noqa: ARG002
        raise AssertionError("it is fitted already")

    def predict_ms(self, inputs: Floats) -> Floats:
        return np.asarray(inputs[:, 0] / (inputs[:, 1] * (inputs[:, 2] + 1)))


def test_heimdall_follows_the_load() -> None:
    actions = settings(Heimdall("heimdall", HARDWARE, 1.0, Known()), seen(1.0, rps=1e3), seen(2.0, rps=20e3))
    assert actions[0] == (1, 200.0)
    assert actions[1][0] * actions[1][1] == pytest.approx(2400.0), "three cores at 800 MHz: 0.83 of the target"


def test_the_learner_goes_on_learning_from_what_is_in_use() -> None:
    table = TabularLearner(0.5, 1.1, 1)
    table.fit(Rows(np.array([[0.1, 3.0, 1000.0, 0.0]]), np.array([0.6]), np.zeros(1, dtype=np.int64)))
    policy = HeimdallRl(HARDWARE, 1.1, table)
    before = table.predict_ms(np.array([[0.1, 3.0, 1000.0, 0.0]]))[0]
    policy.start()
    for second in range(200):
        policy._now = HARDWARE.highest
        policy.decide(seen(float(second), p95_ms=1.0))
    assert table.predict_ms(np.array([[0.1, 3.0, 1000.0, 0.0]]))[0] == pytest.approx(0.95, abs=0.07) != before


def test_hipster_orders_by_power_or_by_work_per_joule() -> None:
    by_power = [HARDWARE.power_w(configuration, 1.0) for configuration in ordered(HARDWARE, "energy")]
    assert by_power == sorted(by_power)
    assert ordered(HARDWARE, "ips")[0].clock_mhz == 100.0, "a lower clock does more per joule"


def test_hipster_steps_while_it_learns_and_then_takes_the_best_entry() -> None:
    policy = Hipster(HARDWARE, 1.0, 100.0, "energy", learn_s=20.0, up=0.8, down=0.3)
    order = [(configuration.cores, configuration.clock_mhz) for configuration in ordered(HARDWARE, "energy")]
    down = settings(policy, *[seen(float(second), 0.1) for second in range(1, 4)])
    assert [order.index(configuration) for configuration in down] == [len(order) - 2, len(order) - 3, len(order) - 4]
    up = [policy.decide(seen(4.0, 0.9))]
    assert order.index((len(up[0].cores), up[0].clocks_mhz[0])) == len(order) - 3
    known = policy.decide(seen(21.0, 0.5))
    assert (len(known.cores), known.clocks_mhz[0]) in order[-5:], "one that it has tried"
    unknown = policy.decide(seen(22.0, 0.5, rps=10.0))
    assert (len(unknown.cores), unknown.clocks_mhz[0]) == order[-1], "a load it has not seen"


def test_heracles_plays_ping_pong_and_suspends_after_a_miss() -> None:
    policy = Heracles(HARDWARE, 1.0, 1000.0)
    actions = settings(policy, *[seen(float(second), 0.5 if second % 4 == 2 else 0.9) for second in range(1, 15)])
    assert {cores for cores, _ in actions} == {2, 3}
    assert settings(policy, seen(15.0, 1.5), seen(100.0, 0.1), seen(134.0, 0.1)) == [(3, 1000.0)] * 3
    assert settings(policy, seen(136.0, 0.1))[0][0] == 2


def test_heracles_lowers_the_clock_near_the_highest_power() -> None:
    policy = Heracles(HARDWARE, 1.0, 1000.0)
    actions = settings(policy, seen(2.0, 0.9, watts=HARDWARE.power_w(HARDWARE.highest, 1.0)), seen(4.0, 0.9, watts=1.0))
    assert [clock for _, clock in actions] == [900.0, 1000.0]


def test_pegasus_steps_by_distance_and_rests_at_the_top() -> None:
    policy = Pegasus(HARDWARE, 1.0)
    low = settings(policy, *[seen(float(second), 0.5) for second in range(1, 41)])[-1]
    assert low[1] < 500.0
    assert settings(policy, seen(41.0, 1.4))[0] == (3, 1000.0), "far above the target: all there is"
    late = settings(policy, *[seen(float(second), 3.0) for second in range(42, 72)])
    assert late[-1] == (3, 1000.0)
    assert settings(policy, seen(300.0, 0.1))[0] == (3, 1000.0), "five minutes of rest"


def test_parties_undoes_a_step_down_that_came_too_near() -> None:
    policy = Parties(HARDWARE, 1.0, seed=0)
    first, second = settings(policy, seen(0.5, 0.5), seen(1.0, 0.99))
    assert first != (3, 1000.0)
    assert second == (3, 1000.0)
    later = settings(policy, *[seen(1.5 + number / 2, 0.5) for number in range(5)])
    assert later[-1][0] == 3 or later[-1][1] == 1000.0, "the resource that came too near rests"


def test_core_switch_goes_up_at_once_and_down_after_four_seconds() -> None:
    policy = CoreSwitch(HARDWARE)
    assert len(policy.start().cores) == 1

    def half_a_second(begin_s: float, *shares: float) -> int:
        for number in range(5):
            action = policy.decide(Observation(begin_s + number / 10, busy_shares=shares))
        return len(action.cores)

    assert half_a_second(0.1, 0.94) == 1
    assert half_a_second(0.6, 0.96) == 2
    assert half_a_second(1.1, 0.5, 0.5) == 2, "not yet"
    assert half_a_second(5.0, 0.8, 0.7) == 2, "above 140%"
    assert half_a_second(6.0, 0.6, 0.7) == 1


def test_core_switch_stays_on_the_only_core() -> None:
    policy = CoreSwitch(Hardware(1, (1000.0,), 1.0, (0.1,), (1.0,)))
    assert {len(policy.decide(Observation(number / 10, busy_shares=(1.0,))).cores) for number in range(20)} == {1}


def test_the_table_has_every_policy_of_the_setting_but_those_that_run_on_the_node() -> None:
    assert {*POLICIES} == {*get_args(GovernorPolicy)} - {*NODE_POLICIES}
