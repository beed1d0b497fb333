"""Hardware, configurations and actions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slackwater.governor.types import Action, Configuration, Hardware

ONE = Hardware(2, (1000.0, 2000.0), base_w=1.0, idle_w=(0.5, 1.0), busy_w=(1.0, 4.0), smt_gain=1.3)


def test_power_is_base_and_static_and_busy() -> None:
    assert ONE.power_w(Configuration(2, 1000.0), 0.5) == pytest.approx(1.0 + 2 * (0.5 + 0.5))
    assert ONE.power_w(ONE.highest, 1.0) == pytest.approx(1.0 + 2 * 5.0)


def test_speed_counts_cores_clock_and_the_second_thread() -> None:
    assert ONE.speed(Configuration(2, 1000.0)) == pytest.approx(1.0)
    assert ONE.speed(ONE.highest) == pytest.approx(2.6)
    assert len(ONE.configurations()) == 8


@pytest.mark.parametrize("change", [{"clocks_mhz": (2000.0, 1000.0)}, {"idle_w": (1.0,)}, {"clocks_mhz": ()}])
def test_impossible_hardware_is_refused(change: dict[str, tuple[float, ...]]) -> None:
    with pytest.raises(ValueError, match="expected"):
        replace(ONE, **change)  # type: ignore[arg-type]


def test_an_action_has_a_clock_for_each_core() -> None:
    with pytest.raises(ValueError, match="a clock for each"):
        Action((0, 1), (1000.0,))
    with pytest.raises(ValueError, match="one or more cores"):
        Action((), ())
