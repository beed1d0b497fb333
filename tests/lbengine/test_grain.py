"""The steps of weights where a balancer serves them in runs."""

from __future__ import annotations

import pytest

from slackwater.lbengine.laws.grain import grain


@pytest.mark.parametrize(
    ("baselines", "step"),
    [
        ([100, 100, 100], 5),
        ([20, 20], 1),
        ([40, 20], 2),
        ([100, 51], 1),
        ([1, 1], 1),
        ([65535, 65535], 1285),
        ([], 1),
    ],
)
def test_the_grain_divides_all_and_leaves_steps_of_a_twentieth(baselines: list[int], step: int) -> None:
    assert grain(baselines) == step
