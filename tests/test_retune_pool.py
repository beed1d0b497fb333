"""The second stage of one pool against a site that is played: who is drained, ordered, renewed, put back, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from retune import knowledge
from retune.choreography import NotNow
from retune.knowledge import Value
from retune.memory import Memory
from retune.node import RELEASE
from retune.pool import Pool
from slackwater.config import PoolSettings, RetuneSettings
from slackwater.messages import Change, Cycle, Knobs, KnobState, ServerState, State, Verdict

NODES = ("web1", "web2", "web3")
CHILDREN, FREQUENCY = "php_fpm.max_children", "cpu.frequency"


class PlayedSite:
    """lbengine and the nodes' wsengines: they do what they are asked, and `log` has it in order."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.log: list[str] = []
        self.notes: list[str] = []
        self.drained: set[str] = set()
        self.in_flight: dict[str, int] = {}
        self.values: dict[tuple[str, str], Value] = {}
        self.orders: dict[tuple[str, str], str] = {}
        self.answers: dict[str, Change] = {}
        self.refuses = ""
        self.guard_refuses = False
        self.pool: Pool | None = None
        self._cycles = 0

    def own(self, node: str, knob: str) -> Value:
        return self.values.get((node, knob), 4 if knob == CHILDREN else "schedutil")

    async def ask(self, action: str, node: str, why: str, for_s: float = 0.0) -> None:  # noqa: ARG002
        self.log.append(f"{action} {node}")
        if action == "drain" and not self.guard_refuses:
            self.drained.add(node)
        if action == "undo":
            self.drained.discard(node)

    async def limit(self, node: str, maxconn: int, why: str, for_s: float) -> None:  # noqa: ARG002
        self.log.append(f"limit {node} {maxconn}")

    async def order(self, node: str, knob: str, value: Value, why: str) -> str:
        self.log.append(f"order {node} {knob} {value}" + (" renewed" if why.startswith("renewed") else ""))
        id_ = f"o{len(self.log)}"
        before = self.own(node, knob)
        refused = self.refuses and not why.startswith("renewed")
        if not refused:
            if value == RELEASE:
                self.values.pop((node, knob), None)
                self.orders.pop((node, knob), None)
            else:
                self.values[node, knob] = value
                self.orders[node, knob] = id_
        told = (
            f"refused: {self.refuses}" if refused else ("put back: given back by retune" if value == RELEASE else "ok")
        )
        change = Change(1, f"c{id_}", "web", 0.0, knob, node, before, value, told, "wsengine", not refused, follows=id_)
        self.answers[id_] = change
        if self.pool is not None and not why.startswith("renewed"):
            self.pool.see(change)
        return id_

    async def note(self, node: str, what: str, before: Value | None, after: Value | None, why: str) -> None:
        self.notes.append(f"{node} {what} {before} -> {after}: {why}")

    def server(self, node: str) -> ServerState | None:
        weight = 0 if node in self.drained else 100
        flying = self.in_flight.get(node, 0)
        return ServerState(node, "UP", weight, 100, weight, rps=80.0, in_flight=flying, maxconn=50)

    def cycles(self) -> int:
        self._cycles += 1
        return self._cycles

    def answer(self, order: str) -> Change | None:
        return self.answers.get(order)

    async def wait(self, ready: Callable[[], bool], within_s: float) -> bool:
        for _ in range(20):
            if ready():
                return True
            self.now_s += within_s / 20
            await asyncio.sleep(0)
        return ready()

    # --- what is told to the pool

    def knobs(self, node: str) -> Knobs:
        states = []
        for name, own, more in (
            (CHILDREN, 4, {"lowest": 1, "highest": 32, "reloads": True}),
            (FREQUENCY, "schedutil", {"words": ["performance", "powersave"]}),
        ):
            held = self.orders.get((node, name), "")
            value = self.own(node, name)
            states.append(KnobState(name, value, own, order=held, by="retune" if held else "", **more))
        return Knobs(1, node, "web", 0.0, "any", states)

    def cycle(self, paused: bool = False) -> Cycle:
        servers = [server for node in NODES if (server := self.server(node)) is not None]
        return Cycle(1, "web", 0.0, "act", paused, "roundrobin", "optimal", "", servers)


class Story:
    def __init__(self, folder: Path, **settings: Any) -> None:
        given: dict[str, Any] = {"mode": "act", "order_key": "k", "leave_after_s": 5.0, **settings}
        self.site = PlayedSite()
        self.folder = folder
        self.settings = msgspec.convert(given, RetuneSettings)
        self.paused = False
        self.states: dict[str, tuple[State, float]] = {}
        self.p95_ms: Callable[[str], float] = lambda _: 20.0
        self.deaf: set[str] = set()
        self.start()

    def start(self) -> Pool:
        """A new controller, as after a restart."""
        settings = PoolSettings(name="web", backend="web", socket="/s", mode="act")
        rules = knowledge.load()
        self.pool = Pool(settings, self.settings, rules, Memory(self.folder), self.site, lambda: self.site.now_s)
        self.site.pool = self.pool
        return self.pool

    async def run(self, seconds: float) -> list[str]:
        """Time passes; what was done meanwhile."""
        before = len(self.site.log)
        until_s = self.site.now_s + seconds
        while self.site.now_s < until_s:
            self.site.now_s += 0.5
            self.pool.see(self.site.cycle(self.paused))
            for node in NODES:
                state, severity = self.states.get(node, ("calm", 0.0))
                since = 0.0 if state == "calm" else 1.0
                verdict = Verdict(1, node, "web", 2.0, state, since, severity, ["run delay"], "m", rps=80.0)
                self.pool.see(msgspec.structs.replace(verdict, capacity_rps=300.0, rt_p95_ms=self.p95_ms(node)))
                if node not in self.deaf:
                    self.pool.see(self.site.knobs(node))
            await self.pool.turn()
            for _ in range(40):
                await asyncio.sleep(0)
        return self.site.log[before:]


def play(tell: Coroutine[Any, Any, None]) -> None:
    asyncio.run(tell)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def of(log: list[str]) -> list[str]:
    """Without the limits and renewals."""
    return [line for line in log if not line.startswith("limit") and "renewed" not in line and "undo limit" not in line]


def test_an_episode_that_lasts_is_limited_first_then_drained_ordered_and_given_back(folder: Path) -> None:
    async def tell() -> None:
        story = Story(folder)
        story.states["web1"] = ("interference", 0.5)
        assert await story.run(28.0) == []
        log = await story.run(8.0)
        assert log[0] == "limit web1 38"
        assert of(log) == [
            f"order web1 {FREQUENCY} performance",
            "drain web1",
            f"order web1 {CHILDREN} 16",
            "undo web1",
        ]
        assert "limit web1 38" in await story.run(25.0)
        story.states.clear()
        log = await story.run(12.0)
        assert of(log) == [
            f"order web1 {FREQUENCY} baseline",
            "drain web1",
            f"order web1 {CHILDREN} baseline",
            "undo web1",
        ]
        assert "undo limit web1" in log
        assert story.site.values == {}

    play(tell())


def test_leases_are_renewed_well_before_their_end(folder: Path) -> None:
    async def tell() -> None:
        story = Story(folder, lease_s=60.0)
        story.states["web1"] = ("interference", 0.5)
        await story.run(40.0)
        log = await story.run(61.0)
        renewals = [line for line in log if "renewed" in line]
        assert renewals.count(f"order web1 {CHILDREN} 16 renewed") == 3
        assert of(log) == []

    play(tell())


def test_one_node_of_a_pool_at_a_time(folder: Path) -> None:
    async def tell() -> None:
        story = Story(folder)
        story.states = dict.fromkeys(NODES, ("interference", 0.5))
        log = [line for line in of(await story.run(60.0)) if FREQUENCY not in line]
        assert sorted(line.split()[1] for line in log if line.startswith("drain")) == list(NODES)
        for at, line in enumerate(log):
            if line.startswith("drain"):
                node = line.split()[1]
                assert log[at + 1 : at + 3] == [f"order {node} {CHILDREN} 16", f"undo {node}"]

    play(tell())


def test_without_room_in_the_rest_of_the_pool_it_begins_at_once(folder: Path) -> None:
    async def tell() -> None:
        story = Story(folder)
        story.states = dict.fromkeys(NODES, ("interference", 0.5))
        assert any(line.startswith("drain") for line in await story.run(9.0))

    play(tell())


def test_a_node_that_the_guard_does_not_let_be_drained_is_not_reloaded(folder: Path) -> None:
    async def tell() -> None:
        story = Story(folder)
        story.site.guard_refuses = True
        story.states["web1"] = ("interference", 0.5)
        log = await story.run(45.0)
        assert "drain web1" in log
        assert not [line for line in log if CHILDREN in line]
        assert "undo web1" in log

    play(tell())


def test_requests_that_never_end_hold_a_reload_up_for_drain_s_only(folder: Path) -> None:
    async def tell() -> None:
        story = Story(folder, drain_s=5.0)
        story.site.in_flight["web1"] = 3
        story.states["web1"] = ("interference", 0.5)
        assert f"order web1 {CHILDREN} 16" in await story.run(45.0)

    play(tell())


def test_a_refusal_is_not_repeated_in_the_same_episode(folder: Path) -> None:
    async def tell() -> None:
        story = Story(folder)
        story.site.refuses = "php-fpm's configuration does not pass its test"
        story.states["web1"] = ("interference", 0.5)
        log = await story.run(120.0)
        assert [line for line in log if CHILDREN in line] == [f"order web1 {CHILDREN} 16"]
        story.states.clear()
        await story.run(20.0)
        story.site.refuses = ""
        story.states["web1"] = ("interference", 0.5)
        assert f"order web1 {CHILDREN} 16" in await story.run(45.0)

    play(tell())


def test_what_an_operator_changed_is_theirs_until_the_episode_is_over(folder: Path) -> None:
    async def tell() -> None:
        story = Story(folder)
        story.states["web1"] = ("interference", 0.5)
        await story.run(40.0)
        why = "put back: the site's own pm.max_children is 3 now, it was 4: theirs holds"
        del story.site.orders["web1", CHILDREN], story.site.values["web1", CHILDREN]
        story.pool.see(Change(1, "c", "web", 0.0, CHILDREN, "web1", 16, 3, why, "wsengine", True))
        assert not [line for line in await story.run(90.0) if CHILDREN in line]

    play(tell())


def test_what_a_crashed_wsengine_put_back_is_turned_again(folder: Path) -> None:
    async def tell() -> None:
        story = Story(folder)
        story.states["web1"] = ("interference", 0.5)
        await story.run(40.0)
        del story.site.orders["web1", CHILDREN], story.site.values["web1", CHILDREN]
        why = "put back: the last run did not end well"
        story.pool.see(Change(1, "c", "web", 0.0, CHILDREN, "web1", 16, 4, why, "wsengine", True))
        assert f"order web1 {CHILDREN} 16" in await story.run(60.0)

    play(tell())


def test_a_restarted_controller_takes_up_what_is_turned_without_a_reload(folder: Path) -> None:
    async def tell() -> None:
        story = Story(folder)
        story.states["web1"] = ("interference", 0.5)
        await story.run(40.0)
        story.start()
        log = await story.run(10.0)
        assert of(log) == []
        assert f"order web1 {CHILDREN} 16 renewed" in log
        story.states.clear()
        assert f"order web1 {CHILDREN} baseline" in await story.run(20.0)

    play(tell())


def test_a_pause_gives_everything_back_and_turns_nothing(folder: Path) -> None:
    async def tell() -> None:
        story = Story(folder)
        story.states["web1"] = ("interference", 0.5)
        await story.run(40.0)
        story.paused = True
        log = await story.run(30.0)
        assert f"order web1 {CHILDREN} baseline" in log
        assert not [line for line in log if line.startswith(("drain", "limit"))]

    play(tell())


def test_in_observe_it_only_says_what_it_would_do(folder: Path) -> None:
    async def tell() -> None:
        story = Story(folder, mode="observe")
        story.states["web1"] = ("interference", 0.5)
        assert await story.run(90.0) == []
        assert story.site.notes == [
            f"web1 {CHILDREN} 4 -> 16: interference: run delay, for 30 s; severity 50%",
            f"web1 {FREQUENCY} schedutil -> performance: interference: run delay, for 30 s; severity 50%",
        ]

    play(tell())


def test_a_node_whose_wsengine_is_silent_is_left_alone(folder: Path) -> None:
    async def tell() -> None:
        story = Story(folder)
        story.deaf.add("web1")
        story.states["web1"] = ("interference", 0.5)
        assert not [line for line in await story.run(60.0) if line.startswith(("drain", "order"))]

    play(tell())


def test_the_frequency_goes_down_when_calm_with_latency_to_spare_and_up_again_at_once(folder: Path) -> None:
    async def tell() -> None:
        story = Story(folder, calm_frequency="powersave", calm_below_p95_ms=50.0)
        assert await story.run(55.0) == []
        log = await story.run(10.0)
        assert log == [f"order {node} {FREQUENCY} powersave" for node in NODES]
        story.p95_ms = lambda node: 80.0 if node == "web2" else 20.0
        assert await story.run(2.0) == [f"order web2 {FREQUENCY} baseline"]
        story.states["web1"] = ("interference", 0.5)
        assert f"order web1 {FREQUENCY} baseline" in await story.run(2.0)
        assert f"order web1 {FREQUENCY} performance" in await story.run(40.0)

    play(tell())


def test_the_frequency_is_left_alone_by_default(folder: Path) -> None:
    async def tell() -> None:
        assert await Story(folder).run(200.0) == []

    play(tell())


def test_a_search_tries_keeps_what_is_better_remembers_it_and_begins_there_the_next_time(folder: Path) -> None:
    best = 12

    async def tell() -> None:
        story = Story(folder, policy="search", search_measure_s=10.0)

        def p95_ms(node: str) -> float:
            children = story.site.own(node, CHILDREN)
            assert isinstance(children, int)
            return 50.0 + 10.0 * abs(children - best)

        story.p95_ms = p95_ms
        story.states["web1"] = ("interference", 0.5)
        log = await story.run(600.0)
        tried = [line.split()[-1] for line in log if CHILDREN in line and "renewed" not in line]
        assert tried[0] == "16", "the knowledge base's value is tried first"
        assert tried[-1] == str(story.site.own("web1", CHILDREN))
        found = story.site.own("web1", CHILDREN)
        assert isinstance(found, int)
        assert abs(found - best) <= 4
        assert Memory(folder).get("any", 0.5) == {CHILDREN: found}
        story.states.clear()
        await story.run(30.0)
        story.states["web2"] = ("interference", 0.5)
        log = await story.run(60.0)
        assert next(line for line in log if CHILDREN in line) == f"order web2 {CHILDREN} {found}"

    play(tell())


def test_a_search_that_finds_nothing_better_leaves_everything_as_it_was(folder: Path) -> None:
    async def tell() -> None:
        story = Story(folder, policy="search", search_measure_s=10.0)
        story.states["web1"] = ("interference", 0.5)
        await story.run(600.0)
        assert story.site.own("web1", CHILDREN) == 4
        assert CHILDREN not in {knob for _, knob in story.site.values}

    play(tell())


def test_nobody_to_drain_is_said_and_nothing_is_ordered(folder: Path) -> None:
    async def tell() -> None:
        story = Story(folder)

        async def ask(action: str, node: str, why: str, for_s: float = 0.0) -> None:  # noqa: ARG001
            raise NotNow("nobody answers")

        story.site.ask = ask  # type: ignore[method-assign]
        story.states["web1"] = ("interference", 0.5)
        assert not [line for line in await story.run(60.0) if CHILDREN in line]

    play(tell())
