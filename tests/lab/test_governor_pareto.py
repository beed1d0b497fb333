"""The ladders and the timing of `pareto`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slackwater.governor.power import hardware
from slackwater.governor.types import Configuration, Hardware, Observation
from slackwater_lab.governor.policies.pareto import Pareto, batch_ladder, energy_ladder, inferred_ladder

HARDWARE = Hardware(
    2, (1000.0, 2000.0, 3000.0), base_w=1.0, idle_w=(1.0,) * 3, busy_w=(1.0, 3.0, 6.0), turbo=True, smt_gain=1.3
)


def seen(time_s: float, delay_ms: float, busy: float) -> Observation:
    return Observation(time_s, 1.0, queue_delay_ms=delay_ms, busy_shares=(busy,))


def test_the_energy_ladder_is_cores_then_threads_then_clocks() -> None:
    assert energy_ladder(HARDWARE) == [
        Configuration(1, 1000.0),
        Configuration(2, 1000.0),
        Configuration(2, 1000.0, smt=True),
        Configuration(2, 2000.0, smt=True),
        Configuration(2, 3000.0, smt=True),
    ]


def test_the_batch_ladder_is_pairs_at_the_nominal_clock_then_the_turbo() -> None:
    assert batch_ladder(HARDWARE) == [
        Configuration(1, 2000.0, smt=True),
        Configuration(2, 2000.0, smt=True),
        Configuration(2, 3000.0, smt=True),
    ]


@pytest.mark.parametrize(("curve", "ladder"), [("steep", energy_ladder), ("flat", batch_ladder)])
def test_the_inferred_ladder_takes_low_clocks_first_only_where_they_save(
    curve: str, ladder: Callable[[Hardware], list[Configuration]]
) -> None:
    machine = hardware(curve, 4, (1000.0, 1500.0, 2000.0), busy_w=4.0, base_w=1.0, idle_w=1.0)
    assert inferred_ladder(machine) == ladder(machine)


def test_steps_down_rest_four_seconds_and_steps_up_come_at_once() -> None:
    policy = Pareto(HARDWARE, energy_ladder(HARDWARE))
    policy.start()
    clocks = [policy.decide(seen(0.1 * number, 0.0, 0.1)).clocks_mhz[0] for number in range(1, 42)]
    assert clocks[0] == 2000.0, "one rung"
    assert clocks[38] == 2000.0
    assert clocks[40] == 1000.0, "four seconds later the next"
    assert policy.decide(seen(5.0, 0.4, 1.0)).clocks_mhz[0] == 1000.0, "less than 2 s after a step down"
    assert policy.decide(seen(6.2, 0.4, 1.0)).clocks_mhz[0] == 2000.0
    assert policy.decide(seen(6.3, 0.4, 1.0)).clocks_mhz[0] == 2000.0, "less than 0.2 s after a step up"
    assert policy.decide(seen(6.4, 0.4, 1.0)).clocks_mhz[0] == 3000.0


def test_no_step_down_where_the_rung_is_needed() -> None:
    policy = Pareto(HARDWARE, energy_ladder(HARDWARE))
    for number in range(1, 100):
        assert policy.decide(seen(float(number), 0.0, 0.89)).clocks_mhz[0] == 3000.0
    assert policy.decide(seen(100.0, 0.0, 0.87)).clocks_mhz[0] == 2000.0, "idle for more than 1.2 times the turbo"
