"""One schedule of the lease and takeover protocols: faults by the seed, and what must hold all the time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec

from slackwater.core import messages
from slackwater.core.bus.bus import STORE_ANSWERS_WITHIN_S
from slackwater.core.messages import Order, State
from slackwater.lbengine.leadership.lease import LEASE_S, RENEW_S, Record
from slackwater.lbengine.service import ASK_AGAIN_S
from slackwater.orders.access import SILENT_S
from slackwater_lab.played_verdict import verdict
from tests.simulation.balancer import BASELINE, SERVERS, HAProxy, Write
from tests.simulation.controllers import SETTINGS, Controller, Machine
from tests.simulation.network import Broker, Link
from tests.simulation.node import Node
from tests.simulation.second_stage import KEY, SecondStage
from tests.simulation.world import NO_FAULT, Process, World

FAULTS_FROM_S, HEALED_S, CALM_S, END_S = 0.9, 4.5, 6.0, 11.0
"""Faults between the first two; the neighbour of host1 is gone at the third. All must be well at the last."""
WELL_FOR_S = 1.0
"""A schedule ends early when all has been well for this time."""
CLONES_EVERY = 11
"""One in this many schedules has two machines that are copies of one, with its state folder."""
WITH_SECOND_STAGE = 0.3
"""Share of the schedules in which controllers have a second stage."""
VERDICTS_EVERY_S = 0.5
LOOK_EVERY_S = 0.25
TAKEN_OVER_WITHIN_S = LEASE_S + 2 * RENEW_S + ASK_AGAIN_S + STORE_ANSWERS_WITHIN_S
"""A death is seen after 2.4 s; one that starts then may have to ask the store twice."""
NOBODY_DECIDES_S = SETTINGS.lease_s + 3 * SETTINGS.cycle_s
"""Without Verdicts all weights are at the baseline after this time."""


class BrokenError(Exception):
    """An invariant does not hold."""


class Takeover:
    """The site of one schedule."""

    def __init__(self, world: World, disk: Path) -> None:
        self.world = world
        self.broker = Broker(world)
        self.broker.written = self._record_written
        self.haproxy = HAProxy(world)
        self.haproxy.written = self._weight_written
        self.holder: Process | None = None
        """Who holds the lease, by the record."""
        self.renewed_s = 0.0
        self.state: State = "calm"
        self.broken: list[str] = []
        self.controllers = self._controllers(disk)
        self.second_stages: list[SecondStage] = []
        self.nodes: list[Node] = []
        if world.random.random() < WITH_SECOND_STAGE:
            self._add_second_stages()
        self._led_s: dict[str, float] = {}
        """Controller -> when it had the lease last."""
        self._well_since_s = END_S
        self._without_verdicts_since_s: dict[str, float] = {}

    def run(self) -> None:
        """Raises BrokenError."""
        world = self.world
        world.at(0.0, self._publish_verdicts)
        world.at(0.6, self._set_state, "interference")
        world.at(CALM_S, self._set_state, "calm")
        for started in self._started:
            world.at(world.random.random() * 0.8, started.start)
        self._plan_faults()
        world.at(HEALED_S, self._heal)
        while world.now_s < END_S and not self.broken and world.now_s - self._well_since_s < WELL_FOR_S:
            world.run(world.now_s + LOOK_EVERY_S)
            self._look()
        if not self.broken:
            self._look_at_end()
        if self.broken:
            raise BrokenError(self.broken[0])

    # --- the site

    def _controllers(self, disk: Path) -> list[Controller]:
        random = self.world.random
        first, second = Machine("A", "machine A"), Machine("B", "machine B")
        if self.world.seed % CLONES_EVERY == 0:
            second = Machine("B", "machine A", boot=first.boot + 1000)
            for name in "AB":
                (disk / name).mkdir(parents=True)
                (disk / name / "id").write_text(f"{self.world.seed:032x}\n")
        match random.choices(["machines", "containers", "processes", "one"], [60, 15, 10, 15])[0]:
            case "containers":
                second = Machine("B", "machine A", pid_namespace=2)
            case "processes":
                second = first
            case "one":
                return [Controller(self.world, "A", first, disk / "A", self.broker, self.haproxy, self._clock())]
        return [
            Controller(self.world, name, on, disk / name, self.broker, self.haproxy, self._clock())
            for name, on in (("A", first), ("B", second))
        ]

    @property
    def _started(self) -> list[Controller | SecondStage]:
        return [*self.controllers, *self.second_stages]

    def _add_second_stages(self) -> None:
        """Adds the second stages, and the model of a wsengine in the node that has the neighbour."""
        self.broker.ordered = self._order_sent
        self.nodes = [Node(self.world, SERVERS[0], self.broker, KEY.public_key(), self._order_replaced)]
        for controller in self.controllers:
            wall_offset_s = 0.2 * self.world.random.random()
            self.second_stages.append(
                SecondStage(
                    self.world, controller.name, controller.disk, self.broker, controller.link, wall_offset_s,
                    controller.clock_offset_s,
                )
            )  # fmt: skip

    def _clock(self) -> float:
        return self.world.random.choice([0.0, 1.7, 1e3, 1e6 * self.world.random.random()])

    def _set_state(self, state: State) -> None:
        self.state = state
        self.world.tell("detector", f"host1: {state}")

    def _publish_verdicts(self) -> None:
        """Publishes Verdicts as a detector beside the broker would."""
        for node in SERVERS:
            state: State = self.state if node == SERVERS[0] else "calm"
            self.broker.publish(f"slackwater.verdict.web.{node}", messages.encode(verdict(node, state)), {})
        self.world.at(self.world.now_s + VERDICTS_EVERY_S, self._publish_verdicts)

    # --- faults

    def _plan_faults(self) -> None:
        random = self.world.random
        for _ in range(random.choice((1, 1, 2, 2, 3, 4))):
            at_s = FAULTS_FROM_S + (HEALED_S - FAULTS_FROM_S - 0.5) * random.random()
            self.world.at(at_s, self._fault)

    def _fault(self) -> None:
        """Something happens to a controller, often to the one that leads, or to all."""
        random = self.world.random
        leading = [
            controller
            for controller in self.controllers
            if controller.process is not None and controller.process is self.holder
        ]
        hit = random.choice(leading if leading and random.random() < 0.6 else self.controllers)
        for_s = random.choice((0.3, 1.0, 2.0, 4.0)) * (0.5 + random.random())
        faults: list[tuple[int, Callable[[], None]]] = [
            (4, partial(self._at_some_step, hit, partial(self._crash, hit, for_s))),
            (1, partial(self._crash, hit, for_s, reboot=True)),
            (4, partial(self._at_some_step, hit, partial(self._freeze, hit, for_s))),
            (2, partial(self._stop, hit)),
            (4, partial(self._change_link, [hit], for_s)),
            (2, partial(self._change_link, self.controllers, for_s)),
            (1, self._restart_haproxy),
            (1, partial(self._hide_haproxy, hit, for_s)),
            (1, partial(self._slow_haproxy, for_s)),
        ]
        if self.nodes:
            second = random.choice(self.second_stages)
            faults += [
                (2, partial(self._at_some_step, second, partial(self._crash, second, for_s))),
                (2, partial(self._at_some_step, second, partial(self._freeze_second_stage, second, for_s))),
                (1, partial(self._change_link, self.nodes, for_s)),
                (6, partial(self._mix_up_orders, for_s)),
            ]
        random.choices([fault for _, fault in faults], [weight for weight, _ in faults])[0]()

    def _at_some_step(self, hit: Controller | SecondStage, happens: Callable[[], None]) -> None:
        """Has something happen at an await of its own."""
        if hit.process is not None:
            hit.process.at_step = (hit.process.steps + self.world.random.randrange(1, 40), happens)

    def _crash(self, hit: Controller | SecondStage, for_s: float, *, reboot: bool = False) -> None:
        if reboot and isinstance(hit, Controller):
            hit.reboot()
            for second in self.second_stages:
                if second.name == hit.name:
                    self._crash(second, for_s)
        else:
            hit.crash()
        self.world.at(min(self.world.now_s + for_s, HEALED_S), hit.start)

    def _freeze(self, hit: Controller, for_s: float) -> None:
        for_s = min(for_s, HEALED_S - self.world.now_s)
        if hit.process is not None and for_s > 0.0:
            self.world.tell(hit.process.name, f"is frozen for {for_s:.2f} s")
            hit.process.freeze(for_s)
            hit.held_up_s = hit.well_since_s = self.world.now_s + for_s

    def _freeze_second_stage(self, hit: SecondStage, for_s: float) -> None:
        for_s = min(for_s, HEALED_S - self.world.now_s)
        if hit.process is not None and for_s > 0.0:
            self.world.tell(hit.process.name, f"is frozen for {for_s:.2f} s")
            hit.process.freeze(for_s)

    def _stop(self, hit: Controller) -> None:
        self.world.tell(hit.name, "gets SIGTERM")
        hit.stop()

    def _change_link(self, hit: Sequence[Controller | Node], for_s: float) -> None:
        random = self.world.random
        changed, words = random.choices(
            [
                (Link(sends=False, receives=False), "is cut off"),
                (Link(sends=False), "is not heard"),
                (Link(receives=False), "hears nothing"),
                (Link(lost=0.3, doubled=0.2), "loses and doubles messages"),
                (Link(slow_s=random.choice((0.4, 1.2, 3.0))), "has a slow link: messages overtake each other"),
            ],
            [3, 2, 2, 1, 2],
        )[0]
        for controller in hit:
            self.world.tell(controller.name, f"{words} for {for_s:.2f} s")
            self._set_link(controller, changed)
            self.world.at(min(self.world.now_s + for_s, HEALED_S), self._set_link, controller, Link())

    def _mix_up_orders(self, for_s: float) -> None:
        """Orders overtake each other on their way to the nodes, and some come twice."""
        for node in self.nodes:
            self.world.tell(node.name, f"gets messages late and twice for {for_s:.2f} s")
            self._set_link(node, Link(doubled=0.2, slow_s=3.0))
            self.world.at(min(self.world.now_s + for_s, HEALED_S), self._set_link, node, Link())

    def _set_link(self, hit: Controller | Node, link: Link) -> None:
        for name in link.__dataclass_fields__:
            setattr(hit.link, name, getattr(link, name))
        hit.held_up_s = max(hit.held_up_s, self.world.now_s)

    def _restart_haproxy(self) -> None:
        self.world.tell("haproxy", "is started anew")
        self.haproxy.restart()

    def _hide_haproxy(self, hit: Controller, for_s: float) -> None:
        self.world.tell(hit.name, f"does not reach HAProxy for {for_s:.2f} s")
        self.haproxy.unreachable.add(hit.name)
        self.world.at(min(self.world.now_s + for_s, HEALED_S), self.haproxy.unreachable.discard, hit.name)

    def _slow_haproxy(self, for_s: float) -> None:
        self.world.tell("haproxy", f"is slow for {for_s:.2f} s")
        self.haproxy.slow_s = 0.3
        self.world.at(min(self.world.now_s + for_s, HEALED_S), setattr, self.haproxy, "slow_s", 0.0)

    def _heal(self) -> None:
        self.world.tell("world", "all faults are over")
        linked: list[Controller | Node] = [*self.controllers, *self.nodes]
        for link in linked:
            self._set_link(link, Link())
        for started in self._started:
            if started.process is not None:
                started.process.at_step = NO_FAULT
            started.start()

    # --- invariants

    def _break(self, breach: str) -> None:
        self.world.tell("BROKEN", breach)
        self.broken.append(breach)

    def _record_written(self, by: Process, value: bytes) -> None:
        record = msgspec.json.decode(value, type=Record)
        holder = by if record.holder else None
        if holder is not self.holder:
            self.world.tell(by.name, "has the lease" if holder else "gives the lease back")
        self.holder, self.renewed_s = holder, self.world.now_s
        self._led_s.update(
            {controller.name: self.world.now_s for controller in self.controllers if controller.process is by}
        )
        wrong = {name: weight.weight for name, weight in (record.baseline or {}).items() if weight.weight != BASELINE}
        if wrong:
            self._break(f"{by.name} takes lowered weights for the baseline: {wrong}")

    def _weight_written(self, write: Write) -> None:
        self.world.tell(write.by.name, f"sets {write.server} {write.before} -> {write.after}")
        other_leads = self.holder is not None and self.holder is not write.by and self.holder.is_alive
        if other_leads and not (write.after > write.before and self._was_held_up(write.by)):
            self._break(f"two act: {write.by.name} sets {write.server} to {write.after} under the lease of another")
        if not any(self.haproxy.weights.values()):
            self._break("all weights are 0")

    def _order_sent(self, by: Process, order: Order) -> None:
        """Only by a second stage whose lbengine leads, or led when its last Cycle came; recorded before."""
        second = next(controller for controller in self.second_stages if controller.process is by)
        controller = next(controller for controller in self.controllers if controller.name == second.name)
        self.world.tell(by.name, f"orders {order.knob} {order.value} of {order.node}")
        if order.id not in second.records.ids:
            self._break(f"{by.name} sends an Order that it has not recorded")
        leads = self.holder is not None and self.holder is controller.process
        led_s = self.world.now_s if leads else self._led_s.get(controller.name, -1e9)
        most_s = SILENT_S + max(0.0, TAKEN_OVER_WITHIN_S - (self.world.now_s - controller.held_up_s))
        if self.holder is not None and self.world.now_s - led_s > most_s:
            self._break(f"{by.name} stands by, and orders {order.knob} {order.value}")

    def _order_replaced(self, before: Order, after: Order) -> None:
        if after.time_unix_s < before.time_unix_s:
            self._break(f"{after.node}: an Order of before ({after.value}) replaces a later one ({before.value})")

    def _was_held_up(self, process: Process) -> bool:
        """It may not know that somebody else leads: then it may still raise weights, as if nobody did."""
        controller = next(controller for controller in self.controllers if controller.process is process)
        return self.world.now_s - controller.held_up_s < TAKEN_OVER_WITHIN_S

    def _look(self) -> None:
        now_s = self.world.now_s
        for started in self._started:
            if started.process is not None and started.process.failures:
                self._break(f"{started.process.name} failed: {started.process.failures[0]!r}")
        for controller in self.controllers:
            process = controller.process
            if process is not None and process is self.holder:
                self._led_s[controller.name] = now_s
            if controller.link != Link():
                controller.held_up_s = max(controller.held_up_s, now_s)
            if process is None or process.is_frozen or not controller.is_connected:
                controller.well_since_s = now_s
            controller.well_since_s = max(controller.well_since_s, controller.held_up_s)
        self._look_for_owner()
        self._look_at_baseline()
        if now_s < CALM_S or list(self._not_well()):
            self._well_since_s = END_S
        else:
            self._well_since_s = min(self._well_since_s, now_s)

    def _look_for_owner(self) -> None:
        """The lease is renewed, or taken over, while somebody could."""
        now_s = self.world.now_s
        able = [controller for controller in self.controllers if now_s - controller.well_since_s > TAKEN_OVER_WITHIN_S]
        if able and now_s - self.renewed_s > TAKEN_OVER_WITHIN_S:
            self._break(f"nobody has renewed the lease for {now_s - self.renewed_s:.1f} s, and {able[0].name} could")

    def _look_at_baseline(self) -> None:
        """Without Verdicts the weights go back, as far as who set them lives and reaches HAProxy."""
        now_s = self.world.now_s
        for controller in self.controllers:
            process = controller.process
            deaf = (
                process is not None
                and process is self.holder
                and not process.is_frozen
                and not controller.link.receives
                and controller.name not in self.haproxy.unreachable
            )
            if not deaf or process is None:
                self._without_verdicts_since_s.pop(controller.name, None)
                continue
            since_s = self._without_verdicts_since_s.setdefault(controller.name, now_s)
            if now_s - since_s > NOBODY_DECIDES_S and any(
                weight != BASELINE for weight in self.haproxy.weights.values()
            ):
                self._break(f"{process.name} hears nothing for {now_s - since_s:.1f} s, weights {self.haproxy.weights}")

    def _look_at_end(self) -> None:
        for breach in self._not_well():
            self._break(breach)

    def _not_well(self) -> Iterator[str]:
        """What must not be at the end."""
        leading = [controller.name for controller in self.controllers if controller.owner == "ours"]
        if len(leading) != 1:
            yield f"at the end these lead: {', '.join(leading) or 'nobody'}"
        if any(weight != BASELINE for weight in self.haproxy.weights.values()):
            yield f"the weights at the end are {self.haproxy.weights}"
        for node in self.nodes:
            if node.lease is not None:
                yield f"at the end {node.name} still has {node.lease.value}, by {node.lease.order.reason}"
