"""The second stage of one pool over a played cluster, with a clock of its own: no waiting, no processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec

from slackwater.core.config import RetuneSettings
from slackwater.core.messages import (
    Change,
    ChangeCause,
    Cycle,
    Knobs,
    KnobState,
    Mode,
    Sample,
    Sched,
    ServerState,
    State,
    Verdict,
)
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.orders.knobs import RELEASE, Value
from slackwater.retune import knowledge
from slackwater.retune.best_values import BestValues
from slackwater.retune.pool import RetunedPool

NODES = ("web1", "web2", "web3")
CHILDREN, FREQUENCY = "php_fpm.max_children", "cpu.frequency"
CPUS = 4


class PlayedCluster:
    """lbengine and the nodes' wsengines: they do what they are asked, and `log` has it in order."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.log: list[str] = []
        self.logged_s: list[float] = []
        """When each line of `log` was written."""
        self.notes: list[str] = []
        self.causes: list[tuple[str, str, ChangeCause]] = []
        """Node, knob and cause of each Order."""
        self.drained: set[str] = set()
        self.moved: set[str] = set()
        """Servers that the law has relieved."""
        self.in_flight: dict[str, int] = {}
        self.values: dict[tuple[str, str], Value] = {}
        self.orders: dict[tuple[str, str], str] = {}
        self.answers: dict[str, Change] = {}
        self.sent: dict[str, float] = {}
        """Id of each Order since the controller's last start, and when it was sent."""
        self.refuses = ""
        self.guard_refuses = False
        self.loses_orders = False
        """Wsengines are started anew as soon as they have an Order."""
        self.is_silent = False
        """No Cycle comes any more; the last one, of long ago, showed every server without weight."""
        self.kept = 0
        """The weight that the others cannot carry of a server that is drained."""
        self.on_its_way: list[Change] = []
        """Changes that the pool has not seen yet."""
        self.by = "retune"
        """The giver of the Orders in force."""
        self.reloads = True
        """Another number of children needs a reload."""
        self._cycles = 0

    def _write(self, line: str) -> None:
        self.log.append(line)
        self.logged_s.append(self.now_s)

    def own(self, node: str, knob: str) -> Value:
        return self.values.get((node, knob), 4 if knob == CHILDREN else "schedutil")

    async def request(self, action: str, node: str, why: str, **fields: float | str) -> None:  # noqa: ARG002
        what = fields.get("what", "drain")
        if action == "limit":
            self._write(f"limit {node} {fields['maxconn']}")
        else:
            self._write(f"{action} {node}" if what == "drain" else f"{action} {what} {node}")
        if action == "drain" and not self.guard_refuses:
            self.drained.add(node)
        if action == "undo" and what == "drain":
            self.drained.discard(node)

    async def order(self, node: str, knob: str, value: Value, why: str, cause: ChangeCause) -> str:
        self.causes.append((node, knob, cause))
        self._write(f"order {node} {knob} {value}" + (" renewed" if why.startswith("renewed") else ""))
        id_ = f"o{len(self.log)}"
        self.sent[id_] = self.now_s
        if self.loses_orders:
            return id_
        before = self.own(node, knob)
        refused = self.refuses and not why.startswith("renewed")
        if not refused:
            if value == RELEASE:
                self.values.pop((node, knob), None)
                self.orders.pop((node, knob), None)
            else:
                self.values[node, knob] = value
                self.orders[node, knob] = id_
        came_to: ChangeCause = "refused" if refused else "given_back" if value == RELEASE else "ordered"
        after = self.own(node, knob)
        change = Change(1, f"c{id_}", "web", 0.0, knob, node, before, after, "words", "wsengine", not refused)
        change.cause, change.follows = came_to, id_
        self.answers[id_] = change
        if not why.startswith("renewed"):
            self.on_its_way.append(change)
        return id_

    async def note(
        self, node: str, what: str, before: Value | None, after: Value | None, why: str, cause: ChangeCause
    ) -> None:
        assert cause == "second_stage"
        self.notes.append(f"{node} {what} {before} -> {after}: {why}")

    def server(self, node: str) -> ServerState | None:
        drained = node in self.drained
        weight = self.kept if drained or self.is_silent else 30 if node in self.moved else 100
        return ServerState(
            node,
            "up",
            weight,
            100,
            weight,
            rps=80.0,
            in_flight=self.in_flight.get(node, 0),
            maxconn=50,
            why="words",
            cause="drained" if drained else "calm",
        )

    def cycles(self) -> int:
        self._cycles += not self.is_silent
        return self._cycles

    def sent_s(self, order: str) -> float | None:
        return self.sent.get(order)

    def answer(self, order: str) -> Change | None:
        return self.answers.get(order)

    def is_lost(self, order: str) -> bool:
        return self.loses_orders and order not in self.answers

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
            (CHILDREN, 4, {"lowest": 1, "highest": 32, "reloads": self.reloads}),
            (FREQUENCY, "schedutil", {"words": ["performance", "powersave"]}),
        ):
            held = self.orders.get((node, name), "")
            value = self.own(node, name)
            states.append(KnobState(name, value, own, order=held, by=self.by if held else "", **more))
        return Knobs(1, node, "web", 0.0, "any", states)

    def cycle(self, paused: bool = False, mode: Mode = "act") -> Cycle:
        servers = [server for node in NODES if (server := self.server(node)) is not None]
        return Cycle(1, "web", 0.0, mode, paused, "roundrobin", "optimal", "", servers)


class Story:
    def __init__(self, folder: Path, **settings: Any) -> None:
        given: dict[str, Any] = {"mode": "act", "order_key": "k", "leave_after_s": 5.0, **settings}
        self.site = PlayedCluster()
        self.folder = folder
        self.settings = msgspec.convert(given, RetuneSettings)
        self.paused = False
        self.mode: Mode = "act"
        """Mode of the Cycles."""
        self.states: dict[str, tuple[State, float]] = {}
        self.p95_ms: Callable[[str], float] = lambda _: 20.0
        self.capacity_rps = 300.0
        self.deaf: set[str] = set()
        self.start()

    def start(self) -> RetunedPool:
        """A new controller, as after a restart."""
        settings = HAProxyPool(name="web", backend="web", socket="/s", mode="act")
        rules = knowledge.load()
        self.pool = RetunedPool(
            settings,
            self.settings,
            rules,
            BestValues(self.folder),
            self.site,  # type: ignore[arg-type]
            lambda: self.site.now_s,
        )
        self.site.sent.clear()
        return self.pool

    async def run(self, seconds: float) -> list[str]:
        """Time passes; what was done meanwhile."""
        before = len(self.site.log)
        until_s = self.site.now_s + seconds
        while self.site.now_s < until_s:
            self.site.now_s += 0.5
            self.pool.see(self.site.cycle(self.paused, self.mode))
            changes, self.site.on_its_way = self.site.on_its_way, []
            for change in changes:
                self.pool.see(change)
            for node in NODES:
                state, severity = self.states.get(node, ("calm", 0.0))
                since = 0.0 if state == "calm" else 1.0
                verdict = Verdict(1, node, "web", 2.0, state, since, severity, ["run delay"], "m", rps=80.0)
                self.pool.see(
                    msgspec.structs.replace(verdict, capacity_rps=self.capacity_rps, rt_p95_ms=self.p95_ms(node))
                )
                self.pool.see(Sample(1, node, "web", 0.0, "b", 0, 0.2, sched=Sched(cpus=CPUS)))
                if node not in self.deaf:
                    self.pool.see(self.site.knobs(node))
            await self.pool.step()
            for _ in range(40):
                await asyncio.sleep(0)
        return self.site.log[before:]


def play(script: Coroutine[Any, Any, None]) -> None:
    asyncio.run(script)
