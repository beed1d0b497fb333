"""What a Cycle says beside weights, with a balancer that is only played."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from lbengine.backends.haproxy.settings import HAProxyPool
from lbengine.balancer import Balancer, Snapshot
from lbengine.engine import Engine
from slackwater.config import LbengineSettings
from slackwater.journal.journal import Journal, journal_path
from slackwater.messages import Cycle, WeightsMean
from tests.support.pool_shown import server, snapshot


class Played(Balancer):
    """A balancer with one server."""

    def __init__(self, balance: str) -> None:
        self.balance = balance

    def read(self) -> Snapshot:
        return snapshot([server("host1", 100)], self.balance)

    def set_weights(self, weights: Mapping[str, int]) -> None:
        raise AssertionError(f"nothing is to be set: {weights}")


@pytest.mark.parametrize(
    ("balance", "weights_mean"),
    [
        ("roundrobin", "share"),
        ("wrr", "share"),
        ("leastconn", "concurrency"),
        ("wlc", "concurrency"),
        ("sed", "concurrency"),
        ("source", "keys"),
        ("mh", "keys"),
        ("first", "none"),
        ("newrr", None),
    ],
)
def test_a_cycle_says_what_weights_mean_and_the_journal_keeps_it(
    balance: str, weights_mean: WeightsMean | None, tmp_path: Path
) -> None:
    pool = HAProxyPool(name="web", backend="web", socket="/unused")
    with Journal.open(journal_path(tmp_path)) as journal:
        engine = Engine(pool, LbengineSettings(), tmp_path, journal, balancer=Played(balance))
        engine.cycle(1000.0)
        cycle = engine.outbox[-1]
        assert isinstance(cycle, Cycle)
        assert (cycle.balance, cycle.weights_mean) == (balance, weights_mean)
        journal.record(cycle)
        assert journal.latest_cycle("web") == cycle
