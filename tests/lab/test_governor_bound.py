"""What the best policy costs that does not know the noise beforehand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from slackwater.governor.types import Action, Observation, whole
from slackwater_lab.governor import pareto
from slackwater_lab.governor.causal_bound import LEVELS, least_cost, noisy
from slackwater_lab.governor.queues import Floats

OPTIONS = [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]
"""Capacity, which is the cost too."""


def of_capacity(load: float, loads: Floats) -> Floats:
    return np.full(loads.shape, load)


def test_a_load_that_is_known_costs_the_cheapest_option_of_each_second() -> None:
    loads = noisy(np.array([0.5, 1.5, 2.5]), 0.0, 0.0, 3.0)
    assert loads.shape == (3, LEVELS)
    for unseen_share in (0.0, 0.1, 1.0):
        cost = least_cost(loads, OPTIONS, of_capacity, late_share=0.0, unseen_share=unseen_share)
        assert cost == pytest.approx(2.0, rel=1e-3)


@pytest.mark.parametrize("unseen_share", [0.1, 1.0])
@pytest.mark.parametrize("late_share", [0.0, 0.05, 0.3])
def test_no_plan_for_three_seconds_costs_less(unseen_share: float, late_share: float) -> None:
    loads = noisy(np.array([0.6, 1.2, 1.9]), 0.5, 0.1, 3.0)
    bound = least_cost(loads, OPTIONS, of_capacity, late_share=late_share, unseen_share=unseen_share)
    costs = []
    for plan in itertools.product((1.0, 2.0, 3.0), repeat=len(loads)):
        first = np.array(plan)[:, None]
        if np.mean(loads > first) <= late_share:
            costs.append(np.mean(unseen_share * first + (1.0 - unseen_share) * np.ceil(loads)))
    assert bound <= min(costs) + 1e-3
    assert bound >= 0.7 * min(costs)


def test_what_is_seen_sooner_costs_less_and_a_stricter_target_more() -> None:
    loads = noisy(np.full(5, 1.0), 0.4, 0.1, 3.0)

    def cost(late_share: float, unseen_share: float) -> float:
        return least_cost(loads, OPTIONS, of_capacity, late_share=late_share, unseen_share=unseen_share)

    assert cost(0.01, 0.1) < cost(0.01, 1.0)
    assert cost(0.01, 1.0) > cost(0.1, 1.0)


class KnowsTheCourse:
    """One configuration a second: the cheapest that carries the course and 2.33 deviations of the noise."""

    name = "knows the course"
    period_s = pareto.STEP_S

    def __init__(self, table: pareto.Table) -> None:
        self._table = table

    def start(self) -> Action:
        return self._at(0.0)

    def decide(self, seen: Observation) -> Action:
        return self._at(seen.time_s)

    def _at(self, time_s: float) -> Action:
        most = float(pareto.sine(np.array([np.floor(time_s + 1e-6)]))[0]) + 2.33 * pareto.NOISE
        return whole(self._table.cheapest(min(1.0, most) * self._table.peak_rps))


def test_a_policy_that_knows_the_course_comes_near_the_bound_and_not_beyond() -> None:
    table = pareto.Table("a72")
    load = pareto.loads(1)["sine"]
    run = table.run(KnowsTheCourse(table), load)
    energy, _ = table.causal_bound(1.0)
    assert run.kept_percent > 97.0
    assert energy - 4.0 < 100.0 * table.bound(load)[0] / run.watts < energy
    assert table.causal_bound(pareto.STEP_S)[0] > energy
