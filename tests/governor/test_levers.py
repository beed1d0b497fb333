"""What the governor can set on a node: configurations, and the knobs' values for each."""

from __future__ import annotations

import pytest

from slackwater.core.config import GovernorSettings
from slackwater.core.messages import Knobs, KnobState
from slackwater.governor.levers import CORES, QUOTA, Levers, levers
from slackwater.governor.types import Configuration
from slackwater.orders.knobs import FREQUENCY

SETTINGS = GovernorSettings(clocks_mhz=[800.0, 1600.0, 2400.0], quota_shares=[0.5, 1.0])


def levers_of(*states: KnobState, settings: GovernorSettings = SETTINGS, cores: int = 2) -> Levers:
    node_levers = levers(settings, Knobs(1, "web1", "web", 1e9, "any", list(states)), cores)
    assert node_levers is not None
    return node_levers


def frequency(lowest: int = 800_000, highest: int = 2_400_000) -> KnobState:
    return KnobState(FREQUENCY, "schedutil", "schedutil", lowest, highest)


@pytest.mark.parametrize(
    "states",
    [
        [KnobState(CORES, 4, 4, 1, 4)],
        [KnobState(CORES, 4, 4, 2, 8), frequency()],
        [KnobState(QUOTA, 200, 200, 10, 200)],
        [KnobState(CORES, 4, 4, 1, 4), KnobState(QUOTA, 400, 400, 10, 400)],
        [KnobState(CORES, 2, 2, 1, 2), KnobState(QUOTA, 120, 120, 10, 200)],
    ],
)
def test_what_is_in_force_is_what_was_set(states: list[KnobState]) -> None:
    node_levers = levers_of(*states)
    assert node_levers.hardware.highest in node_levers.candidates
    assert node_levers.values(node_levers.hardware.highest) == {}, "the highest is the node as it is without us"
    assert len(
        {tuple(sorted(node_levers.values(configuration).items())) for configuration in node_levers.candidates}
    ) == len(node_levers.candidates)
    for configuration in node_levers.candidates:
        assert node_levers.in_force(node_levers.values(configuration)) == configuration


def test_the_nodes_own_limits_hold() -> None:
    node_levers = levers_of(KnobState(CORES, 4, 4, 2, 8), frequency(lowest=1_500_000))
    assert {(configuration.cores, configuration.clock_mhz) for configuration in node_levers.candidates} == {
        (cores, mhz) for cores in (2, 3, 4) for mhz in (1600.0, 2400.0)
    }, "no core more than the site gave it either"
    assert node_levers.values(Configuration(3, 1600.0)) == {CORES: 3, FREQUENCY: 1_600_000}
    assert node_levers.nearest(Configuration(1, 800.0)) == Configuration(2, 1600.0)


def test_a_clock_is_better_than_a_quota_which_stands_in_for_one() -> None:
    quota = KnobState(QUOTA, 200, 200, 10, 200)
    assert levers_of(quota, frequency()).clock_knob == FREQUENCY
    assert levers_of(quota, KnobState(FREQUENCY, why="no cpufreq", cause="unreadable")).clock_knob == QUOTA
    assert levers_of(quota, frequency(), settings=GovernorSettings()).clock_knob == QUOTA, "no clocks are named"


def test_a_quota_is_of_the_cores_that_are_left() -> None:
    node_levers = levers_of(KnobState(CORES, 2, 2, 1, 2), KnobState(QUOTA, 120, 120, 10, 200))
    half = Configuration(1, 500.0)
    assert node_levers.values(half) == {CORES: 1, QUOTA: 30}
    assert node_levers.capacity_cores(half) == pytest.approx(0.3)
    assert node_levers.capacity_cores(Configuration(1, 1000.0)) == 1.0
    assert node_levers.capacity_cores(node_levers.hardware.highest) == pytest.approx(1.2)


def test_a_quota_saves_no_watts_and_a_clock_does() -> None:
    by_quota = levers_of(KnobState(QUOTA, 200, 200, 10, 200))
    assert by_quota.watts(Configuration(2, 500.0), 0.4) == by_quota.watts(by_quota.hardware.highest, 0.4)
    by_clock = levers_of(frequency())
    assert by_clock.watts(Configuration(2, 800.0), 0.4) < by_clock.watts(by_clock.hardware.highest, 0.4)


def test_without_a_knob_there_is_nothing_to_set() -> None:
    def levers_or_none(*states: KnobState, settings: GovernorSettings = SETTINGS) -> Levers | None:
        return levers(settings, Knobs(1, "web1", "web", 1e9, "any", list(states)), 2)

    assert levers_or_none() is None
    assert levers_or_none(KnobState("php_fpm.max_children", 4, 4, 1, 8)) is None
    assert levers_or_none(KnobState(CORES, why="no cgroup", cause="unreadable")) is None
    assert levers_or_none(KnobState(CORES, 4, 4, 1, 4), settings=GovernorSettings(knobs=["cpu.quota"])) is None
