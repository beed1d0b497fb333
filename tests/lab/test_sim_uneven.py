"""Servers of unequal size in the simulator, without any neighbour."""

from __future__ import annotations

import numpy as np
import pytest

from slackwater.core.config import DetectorSettings
from slackwater.detector.service import choose_model
from slackwater_lab.sim.requests import Simulation
from slackwater_lab.sim.setup import Setup, SimulationError

SIZES = (0.3, 0.4, 0.5)


def test_sizes_are_shares_of_the_pool_and_of_its_quota() -> None:
    setup = Setup(servers=3, sizes=SIZES, capacity_rps=100.0, quota_cores=0.4)
    assert setup.capacities() == pytest.approx([75.0, 100.0, 125.0])
    assert setup.quotas() == pytest.approx(SIZES)
    assert Setup(servers=3).capacities() == pytest.approx([250.0] * 3)
    with pytest.raises(SimulationError, match="sizes"):
        Setup(servers=2, sizes=SIZES)


@pytest.mark.parametrize("balance", ["roundrobin", "random2"])
def test_weights_by_capacity_make_unequal_servers_answer_sooner(balance: str) -> None:
    setup = Setup(
        servers=3, sizes=SIZES, quota_cores=0.4, noisy=0.0, balance=balance, load=0.7, seconds=30.0, warm_up_s=80.0
    )
    static, even = (
        Simulation(setup, "static", None),
        Simulation(setup, "slackwater-even", choose_model(DetectorSettings())),
    )
    before, after = static.run(), even.run()
    weights = even.driver.weights[0]
    assert np.all(np.diff(weights) > 0), weights
    assert weights[2] == 100
    assert after.felt["p99_ms"] is not None
    assert before.felt["p99_ms"] is not None
    assert after.felt["p99_ms"] < 0.9 * before.felt["p99_ms"]
