"""What a Cycle says beside weights, with a balancer that is only played."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from slackwater.core.config import LbengineSettings
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import Cycle, Verdict, WeightsMean
from slackwater.lbengine import service
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.lbengine.balancer import Balancer, Snapshot
from slackwater.lbengine.engine import Engine
from slackwater.lbengine.hooks import Hooks
from slackwater.lbengine.service import Driver
from slackwater_lab.played_verdict import verdict
from tests.support.pool_shown import server, snapshot

POOL = HAProxyPool(name="web", backend="web", socket="/unused")


class Played(Balancer):
    """A balancer with one server."""

    def __init__(self, balance: str) -> None:
        self.balance = balance
        self.reads = 0

    def read(self) -> Snapshot:
        self.reads += 1
        return snapshot([server("host1", 100), server("host2", 100)], self.balance)

    def set_weights(self, weights: Mapping[str, int]) -> None:
        raise AssertionError(f"nothing is to be set: {weights}")


@pytest.mark.parametrize(
    ("balance", "weights_mean"),
    [
        ("roundrobin", "share"),
        ("wrr", "share"),
        ("random", "draws"),
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
    with Journal.open(journal_path(tmp_path)) as journal:
        engine = Engine(POOL, LbengineSettings(), tmp_path, journal, balancer=Played(balance))
        engine.cycle(1000.0)
        cycle = engine.outbox[-1]
        assert isinstance(cycle, Cycle)
        assert (cycle.balance, cycle.weights_mean) == (balance, weights_mean)
        journal.record(cycle)
        assert journal.latest_cycle("web") == cycle


@pytest.mark.parametrize(
    ("verdicts", "rests"),
    [
        ([verdict("host1", "calm"), verdict("host2", "calm")], True),
        ([verdict("host1", "calm")], True),
        ([], False),
        ([verdict("host1", "calm"), verdict("host2", "interference")], False),
        ([verdict("host1", "calm"), verdict("host2", "unknown", rps=None)], False),
        ([verdict("host1", "calm"), verdict("host2", "calm", rps=None)], False),
    ],
)
def test_it_is_at_rest_while_all_are_calm_and_see_their_own_requests(
    verdicts: list[Verdict], rests: bool, tmp_path: Path
) -> None:
    with Journal.open(journal_path(tmp_path)) as journal:
        engine = Engine(POOL, LbengineSettings(), tmp_path, journal, balancer=Played("roundrobin"))
        for verdict in verdicts:
            engine.inbox.put(verdict, 1000.0)
        engine.cycle(1000.1)
        assert engine.at_rest == rests
        engine.stand_by("another drives it", False)
        engine.cycle(1000.2)
        assert not engine.at_rest, "another may be gone any moment"


def test_an_engine_at_rest_turns_seldom_and_at_once_when_a_state_changes(tmp_path: Path) -> None:
    async def story(journal: Journal) -> None:
        settings = LbengineSettings(cycle_s=0.02)
        balancer = Played("roundrobin")
        driver = Driver(
            Engine(POOL, settings, tmp_path, journal, balancer=balancer),
            POOL,
            settings.cycle_s,
            Hooks([], 1.0, tmp_path / "h"),
        )
        beats = 0

        def beat() -> None:
            nonlocal beats
            beats += 1

        driver.beat = beat
        stop = asyncio.Event()
        driver._take(verdict("host1", "calm"))
        driving = asyncio.create_task(driver.drive(stop))
        while not driver.engine.at_rest:
            await asyncio.sleep(0.001)
        turns, before = balancer.reads, beats
        while beats < before + 10:
            await asyncio.sleep(0.001)
        assert balancer.reads == turns, "it shows that it works without a look at the balancer"
        driver._take(verdict("host1", "overload"))
        while balancer.reads == turns:
            await asyncio.sleep(0.001)
        assert not driver.engine.at_rest
        stop.set()
        await driving

    with Journal.open(journal_path(tmp_path)) as journal:
        asyncio.run(asyncio.wait_for(story(journal), 60.0))


def test_who_switches_a_pool_to_act_is_told_what_check_warns_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "check", lambda *_: ["the weights of host1 are too small"])

    async def story(journal: Journal) -> None:
        engine = Engine(POOL, LbengineSettings(), tmp_path, journal, balancer=Played("roundrobin"))
        driver = Driver(engine, POOL, 0.2, Hooks([], 1.0, tmp_path / "h"))
        answer = await driver._control({"action": "mode", "mode": "act", "by": "anna"})
        assert answer is not None
        assert answer["sentence"].startswith("warning: the weights of host1 are too small; web: mode is act by anna")
        driver._thread.shutdown()

    with Journal.open(journal_path(tmp_path)) as journal:
        asyncio.run(asyncio.wait_for(story(journal), 60.0))
