"""The states of `hurry-up`."""

from __future__ import annotations

from slackwater.governor.types import Hardware, HotEvent, Observation
from slackwater_lab.governor.policies.hurry_up import HurryUp

HARDWARE = Hardware(2, (1000.0, 2000.0, 2600.0), 1.0, (0.1,) * 3, (1.0, 2.0, 3.0))


def clocks(policy: HurryUp, time_s: float, *events: HotEvent) -> tuple[float, ...]:
    return policy.decide(Observation(time_s, events=events)).clocks_mhz


def test_three_states_by_age_in_the_hot_function() -> None:
    policy = HurryUp(HARDWARE, 1000.0, 2000.0, 2600.0)
    assert policy.start().clocks_mhz == (1000.0, 1000.0)
    assert clocks(policy, 1.05, HotEvent(1, 1.0, True)) == (1000.0, 2000.0)
    assert clocks(policy, 1.40) == (1000.0, 2000.0)
    assert clocks(policy, 1.4501) == (1000.0, 2600.0), "450 ms"
    assert clocks(policy, 1.60, HotEvent(0, 1.58, True)) == (2000.0, 2600.0)
    assert clocks(policy, 1.65, HotEvent(1, 1.61, False)) == (2000.0, 1000.0)


def test_two_states_have_no_age() -> None:
    policy = HurryUp(HARDWARE, 1000.0, None, 2600.0)
    assert clocks(policy, 1.0, HotEvent(0, 0.99, True)) == (2600.0, 1000.0)


def test_a_request_that_came_and_went_between_two_looks_changes_nothing() -> None:
    policy = HurryUp(HARDWARE, 1000.0, 2000.0, 2600.0)
    clocks(policy, 0.5, HotEvent(0, 0.41, True))
    assert clocks(policy, 1.0, HotEvent(0, 0.91, False), HotEvent(0, 0.92, True), HotEvent(0, 0.95, False))[0] == 1000.0


def test_the_first_event_of_an_unknown_core_counts_as_entering() -> None:
    policy = HurryUp(HARDWARE, 1000.0, 2000.0, 2600.0)
    assert clocks(policy, 1.0, HotEvent(0, 0.99, False))[0] == 2000.0
