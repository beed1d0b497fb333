"""The second stage of two controllers on one bus: only the one whose lbengine leads sends Orders."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from slackwater.core.config import RetuneSettings
from slackwater.core.messages import WSENGINE, Change, Cycle, Knobs, KnobState, Mode, Sample, Sched, State, Verdict
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.orders.access import SILENT_S, BusAccess, NotNow
from slackwater.orders.knobs import REACHES_S
from slackwater.orders.signing import Signer
from slackwater.retune import knowledge
from slackwater.retune.best_values import BestValues
from slackwater.retune.node import BY
from slackwater.retune.pool import RetunedPool
from tests.support.played_bus import PlayedBus, PlayedJournal
from tests.support.played_retune import CPUS, FREQUENCY, NODES, PlayedCluster, play

POOL = HAProxyPool(name="web", backend="web", socket="/s", mode="act")
SETTINGS = RetuneSettings(mode="act", order_key="k", long_after_s=1.0)


class Controller:
    """The second stage of the controller "a"; web1 has a neighbour, as everybody can see."""

    def __init__(self, folder: Path, pool_mode: Mode = "act") -> None:
        pool = msgspec.structs.replace(POOL, mode=pool_mode)
        self.now_s = 1000.0
        self.bus = PlayedBus()
        self.nodes = PlayedCluster()
        signer = Signer(Ed25519PrivateKey.generate())
        self.access = BusAccess(
            pool,
            SETTINGS.lease_s,
            self.bus,  # type: ignore[arg-type]
            PlayedJournal(),  # type: ignore[arg-type]
            signer,
            "a",
            by=BY,
            clock=lambda: self.now_s,
        )
        self.pool = RetunedPool(pool, SETTINGS, knowledge.load(), BestValues(folder), self.access, lambda: self.now_s)
        self.access.pool = self.pool

    async def run(self, seconds: float, *led_by: str, mode: Mode = "act") -> list[str]:
        """The Orders that were sent meanwhile, without their nodes."""
        before = len(self.bus.orders)
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += 0.5
            for controller in led_by:
                self.access.take(cycle(controller, mode))
            for node in NODES:
                state: State = "interference" if node == "web1" else "calm"
                since_s = 0.0 if node == "web1" else 100.0
                self.access.take(Verdict(1, node, "web", 100.0, state, since_s, 0.5, ["run delay"], "m"))
                self.access.take(Sample(1, node, "web", 100.0, "b", 0, 0.2, sched=Sched(cpus=CPUS)))
                self.access.take(self.nodes.knobs(node))
            await self.pool.step()
            await asyncio.sleep(0)
        return [f"{order.knob} {order.value}" for order in self.bus.orders[before:]]


def cycle(controller: str, mode: Mode = "act") -> Cycle:
    servers = PlayedCluster().cycle().servers
    return Cycle(1, "web", 0.0, mode, False, "roundrobin", "optimal", "", servers, controller=controller)


def test_who_stands_by_sends_no_orders_and_asks_for_nothing(tmp_path: Path) -> None:
    async def script() -> None:
        controller = Controller(tmp_path)
        assert await controller.run(20.0, "b") == []
        assert controller.bus.requests == []
        assert f"{FREQUENCY} performance" in await controller.run(2.0, "a")
        assert await controller.run(60.0, "b") == [], "nothing is renewed either"

    play(script())


def test_who_takes_over_goes_on_with_what_the_nodes_have_as_after_a_start(tmp_path: Path) -> None:
    async def script() -> None:
        controller = Controller(tmp_path)
        await controller.run(2.0, "a")
        assert controller.pool.node("web1").held[FREQUENCY].value == "performance"
        await controller.run(5.0, "b")
        await controller.nodes.order("web1", FREQUENCY, "powersave", "by the other one", "second_stage")
        assert controller.pool.nodes == {}
        sent = await controller.run(2.0, "a")
        assert f"{FREQUENCY} powersave" not in sent, "what is renewed is what the node has"
        assert f"{FREQUENCY} performance" in sent

    play(script())


def test_what_is_under_way_is_not_ordered_when_another_one_leads_by_then(tmp_path: Path) -> None:
    async def script() -> None:
        controller = Controller(tmp_path)
        await controller.run(2.0, "a")
        before = len(controller.bus.orders)
        controller.access.take(cycle("b"))
        for ask in (
            controller.access.order("web1", FREQUENCY, "powersave", "late", "second_stage"),
            controller.access.request("drain", "web1", "late", for_s=5.0),
        ):
            with pytest.raises(NotNow, match="does not drive"):
                await ask
        assert len(controller.bus.orders) == before

    play(script())


def test_an_order_is_lost_when_a_later_report_neither_has_it_in_force_nor_waiting(tmp_path: Path) -> None:
    async def script() -> None:
        controller = Controller(tmp_path)
        await controller.run(2.0, "a")
        access = controller.access
        order = await access.order("web1", FREQUENCY, "powersave", "a test", "second_stage")

        def report(after_s: float, waiting: list[str] | None, in_force: str = "") -> None:
            controller.now_s += after_s
            state = KnobState(FREQUENCY, "performance", order=in_force)
            access.take(Knobs(1, "web1", "web", 0.0, "any", [state], waiting=waiting))

        report(0.1, [])
        assert not access.is_lost(order), "the report may be older than the Order"
        report(REACHES_S, [order])
        assert not access.is_lost(order)
        report(1.0, [], in_force=order)
        assert not access.is_lost(order)
        report(1.0, None)
        assert not access.is_lost(order), "a report without `waiting` does not tell"
        report(1.0, [])
        assert access.is_lost(order)
        assert not access.is_lost("of another controller")

    play(script())


def test_without_cycles_nothing_is_ordered(tmp_path: Path) -> None:
    async def script() -> None:
        controller = Controller(tmp_path)
        await controller.run(2.0, "a")
        controller.now_s += SILENT_S
        with pytest.raises(NotNow, match="does not drive"):
            await controller.access.order("web1", FREQUENCY, "powersave", "late", "second_stage")

    play(script())


def test_who_only_observes_does_not_stand_by(tmp_path: Path) -> None:
    async def script() -> None:
        controller = Controller(tmp_path, "observe")
        await controller.run(2.0, "a", "b", mode="observe")
        controller.access.take(cycle("b"))
        assert set(controller.pool.nodes) == set(NODES)

    play(script())


def test_a_pool_that_is_switched_to_observe_leaves_the_knobs_to_the_controller_that_leads(tmp_path: Path) -> None:
    async def script() -> None:
        controller = Controller(tmp_path)
        assert f"{FREQUENCY} performance" in await controller.run(2.0, "a")
        controller.access.take(cycle("a", "observe"))
        await controller.nodes.order("web1", FREQUENCY, "performance", "by the other one", "second_stage")
        before = len(controller.bus.orders)
        for _ in range(60):
            controller.access.take(cycle("b"))
            await controller.run(0.5, "a", mode="observe")
        assert controller.bus.orders[before:] == []

    play(script())


def test_a_pool_that_is_switched_to_observe_gives_everything_back(tmp_path: Path) -> None:
    async def script() -> None:
        controller = Controller(tmp_path)
        assert f"{FREQUENCY} performance" in await controller.run(2.0, "a")
        assert await controller.run(60.0, "a", mode="observe") == [f"{FREQUENCY} baseline"]

    play(script())


def test_who_stands_by_keeps_no_answers(tmp_path: Path) -> None:
    async def script() -> None:
        controller = Controller(tmp_path)
        await controller.run(2.0, "a")
        order = controller.bus.orders[-1]
        answer = Change(1, "c", "web", 0.0, order.knob, order.node, None, order.value, "words", WSENGINE, True)
        answer.cause, answer.follows = "ordered", order.id
        controller.access.take(answer)
        assert controller.access.answer(order.id) is not None
        controller.access.take(cycle("b"))
        assert controller.access.answer(order.id) is None

    play(script())


def test_a_node_that_appears_during_a_step_is_no_error(tmp_path: Path) -> None:
    async def script() -> None:
        controller = Controller(tmp_path)
        await controller.run(2.0, "a")
        order = controller.access.order

        async def meanwhile(*arguments: Any) -> str:
            controller.pool.node("web9")
            return await order(*arguments)

        controller.access.order = meanwhile  # type: ignore[method-assign, assignment]
        controller.pool.node("web1").held.clear()
        await controller.pool.step()
        assert "web9" in controller.pool.nodes

    play(script())
