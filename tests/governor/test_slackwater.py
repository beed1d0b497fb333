"""Our own policy: safe at first, fast when it must be, still during interference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slackwater.governor.policies.slackwater import Slackwater
from slackwater.governor.tail_model import FULL, TailModel
from slackwater.governor.types import Action, Configuration, Hardware, Observation

ONE = np.ones(1)
"""Core, of one configuration."""
HARDWARE = Hardware(3, (500.0, 1000.0, 2000.0), base_w=1.0, idle_w=(0.2, 0.3, 0.5), busy_w=(0.5, 1.2, 4.0))
TARGET_MS = 10.0


def speed(action: Action) -> float:
    return sum(action.clocks_mhz) / 2000.0


def drive(
    policy: Slackwater,
    seconds: range,
    demand: float,
    *,
    interference: bool = False,
    oldest_ms: float = 1.0,
    slow: range = range(0),
) -> list[Action]:
    """Seconds of a service that needs so much work, in cores at the highest clock, as M/M/1 queues would answer.

    In those of `slow` it needs 1.4 times the work, and answers too late whatever it has.
    """
    actions = [policy.start()] if seconds.start == 0 else [policy.decide(Observation(float(seconds.start)))]
    for second in seconds:
        now = actions[-1]
        busy = min(0.99, (1.4 if second in slow else 1.0) * demand / speed(now))
        p95_ms = 0.5 + 0.6 / (now.clocks_mhz[0] / 2000.0 * (1.0 - busy))
        if second in slow:
            p95_ms = 3.0 * TARGET_MS
        actions.append(
            policy.decide(
                Observation(
                    second + 1.0,
                    100.0,
                    p95_ms,
                    p95_ms,
                    0.0,
                    oldest_ms,
                    (busy,) * len(now.cores),
                    interference=interference,
                )
            )
        )
    return actions


def test_it_begins_with_all_there_is_and_goes_down_only_as_far_as_the_target_allows() -> None:
    actions = drive(Slackwater(HARDWARE, TARGET_MS, period_s=1.0), range(30), 0.5)
    assert speed(actions[0]) == 3.0
    assert 0.5 < speed(actions[-1]) < 1.1
    for action in actions:
        busy = 0.5 / speed(action)
        assert 0.5 + 0.6 / (action.clocks_mhz[0] / 2000.0 * (1.0 - busy)) <= TARGET_MS


def test_an_old_request_brings_all_there_is_at_once() -> None:
    for at_s in (20.5, 21.0):
        policy = Slackwater(HARDWARE, TARGET_MS, period_s=1.0)
        drive(policy, range(20), 0.5)
        late = Observation(at_s, 100.0, 15.0, oldest_ms=21.0, busy_shares=(1.0,))
        assert speed(policy.decide(late)) == 3.0, "also where a second ends"


def test_a_request_whose_answer_was_never_seen_is_no_queue() -> None:
    actions = drive(Slackwater(HARDWARE, TARGET_MS, period_s=1.0), range(30), 0.5, oldest_ms=30_000.0)
    assert speed(actions[-1]) < 1.1


def test_more_work_than_planned_for_makes_a_new_plan_before_the_second_is_over() -> None:
    policy = Slackwater(HARDWARE, TARGET_MS, period_s=0.1)
    for tick in range(1, 300):
        action = policy.decide(Observation(tick / 10, 100.0, 2.0, busy_shares=(0.5,) * 3))
    before = speed(action)
    for tick in range(300, 304):
        action = policy.decide(Observation(tick / 10, 200.0, 2.0, busy_shares=(0.99,) * len(action.cores)))
    assert speed(action) > before


def quick(policy: Slackwater, demands: list[float]) -> list[Action]:
    """Seconds that need so much work, and answer at once as long as they have it."""
    actions = [policy.start()]
    for second, demand in enumerate(demands):
        now = actions[-1]
        busy = min(1.0, demand / speed(now))
        actions.append(policy.decide(Observation(second + 1.0, 100.0, 0.1, busy_shares=(busy,) * len(now.cores))))
    return actions


def test_a_load_within_limits_gets_no_reserve_beyond_them() -> None:
    policy = Slackwater(
        HARDWARE, TARGET_MS, period_s=1.0, candidates=[Configuration(cores, 2000.0) for cores in (1, 2)]
    )
    random = np.random.default_rng(1)
    demands = [level * random.uniform(0.95, 1.01) for level in random.choice([0.3, 0.6, 0.95], 100) for _ in range(3)]
    actions = quick(policy, demands)
    assert {len(action.cores) for action in actions[100:]} == {1}, "0.96 of a core is enough for all"


def test_a_load_that_grows_beyond_all_that_was_seen_gets_a_reserve() -> None:
    demands = [0.2 * 1.05**second for second in range(45)]
    actions = quick(Slackwater(HARDWARE, TARGET_MS, period_s=1.0), demands)
    assert all(speed(action) > demand for action, demand in zip(actions, demands, strict=False))
    assert speed(actions[20]) < 1.0, "which is not all there is"


def test_during_interference_nothing_is_lowered() -> None:
    policy = Slackwater(HARDWARE, TARGET_MS, period_s=1.0)
    loud = drive(policy, range(20), 0.5, interference=True)
    assert {speed(action) for action in loud} == {3.0}
    calm = drive(policy, range(20, 40), 0.5)
    assert speed(calm[-1]) < 3.0, "afterwards it is"


def test_what_a_neighbour_takes_is_bought_back() -> None:
    policy = Slackwater(HARDWARE, TARGET_MS, period_s=1.0)
    before = drive(policy, range(30), 0.5)[-1]
    for second in range(31, 41):
        # The cores work at the same share of the time, yet each request takes too long.
        busy = 0.5 / speed(before)
        late = Observation(second + 1.0, 100.0, 1.2 * TARGET_MS, busy_shares=(busy,) * len(before.cores))
        after = policy.decide(replace(late, interference=True))
    assert speed(after) > speed(before)


def test_what_was_seen_bounds_what_was_not() -> None:
    model = TailModel()
    assert np.isinf(model.upper(ONE, np.array([1.0]), np.array([0.1]))).all(), "nothing is known"
    for _ in range(200):
        model.learn(1, 1.0, 0.5, 0.2)
        model.missed(False)
    clock_shares, utilisations = np.array([1.0, 0.5, 1.0, 1.0, 0.5]), np.array([0.5, 0.5, 0.75, FULL, 0.0])
    same, slower, fuller, full, alone = model.upper(np.ones(5), clock_shares, utilisations)
    assert same == pytest.approx(0.2, rel=0.1)
    assert slower == pytest.approx(2 * same), "half the clock, at most twice the time"
    assert fuller == pytest.approx(2 * same)
    assert np.isinf(full)
    assert alone == pytest.approx(2 * same), "nobody waits, and half the clock is half the clock"


def test_fewer_cores_even_out_less() -> None:
    model = TailModel()
    model.learn(4, 1.0, 0.5, 0.2)
    four, single, eight = model.upper(np.array([4.0, 1.0, 8.0]), np.ones(3), np.full(3, 0.5))
    assert single == pytest.approx(2 * four), "square-root staffing"
    assert eight == four


@pytest.mark.parametrize("slow_s", [2, 30])
def test_a_slow_start_rules_nothing_out_for_good(slow_s: int) -> None:
    # The first second is not learnt from. With more work than later: no later second, with all there is, is like these.
    policy = Slackwater(HARDWARE, TARGET_MS, period_s=1.0)
    actions = drive(policy, range(3600), 0.5, slow=range(slow_s))
    assert {speed(action) for action in actions[: slow_s + 1]} == {3.0}
    assert speed(actions[-1]) < 1.1


def test_what_was_seen_long_ago_counts_for_less_than_the_bound_of_what_is_seen_now() -> None:
    model = TailModel()
    for _ in range(60):
        model.learn(1, 1.0, 0.5, 0.2)
        model.learn(1, 1.0, 0.75, 2.0)
    slow = ONE, np.array([1.0]), np.array([0.75])
    (at_once,) = model.upper(*slow)
    for _ in range(4 * 3600):
        model.forget(1.0)
        model.learn(1, 1.0, 0.5, 0.2)
    (later,) = model.upper(*slow)
    assert at_once > 1.0
    assert later < 1.0


def test_with_nothing_seen_for_long_nothing_is_known() -> None:
    model = TailModel()
    model.learn(1, 1.0, 0.5, 0.2)
    model.forget(30 * 86400.0)
    assert np.isinf(model.upper(ONE, np.array([1.0]), np.array([0.1]))).all()


def test_a_miss_widens_the_margin_and_time_narrows_it() -> None:
    model = TailModel(miss_share=0.01)
    before = model.z
    model.missed(True)
    assert model.z > before
    for _ in range(99):
        model.missed(False)
    assert model.z == pytest.approx(before)
