"""The policies in the lab that retune web servers, through a real wsengine in each host."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
import uuid
from collections.abc import Mapping

from slackwater.core.bus.bus import Bus
from slackwater.core.config import Law
from slackwater.core.messages import VERSION, WSENGINE, Change, Mode, Order, Verdict
from slackwater.orders.signing import Signer
from slackwater_lab.cluster.balancer import BASE_WEIGHT
from slackwater_lab.cluster.bus import POOL, SITE, forget
from slackwater_lab.cluster.bus_listener import BusListener
from slackwater_lab.cluster.controller import CONTROLLER_FILE, Controller
from slackwater_lab.cluster.lab import Lab
from slackwater_lab.cluster.load import Demand
from slackwater_lab.cluster.retunable import KEY_FILE, make_keys, start_wsengines
from slackwater_lab.cluster.spawn import wait_until
from slackwater_lab.experiment.decisions import INTERVAL_S, Look, Seen, WebServerOnly
from slackwater_lab.experiment.policy_runners import MONITOR, READY_S, PolicyRunner, Working
from slackwater_lab.experiment.steady import WARM_UP_S, stop_programs

NAME = "wsengine-only"
PROGRAM_OF = "slackwater-wsengine of "
RESTORE_S = 25.0
"""A wsengine that is stopped puts everything back first."""
BOUNDS = {
    "php_fpm": {"max_children": "[1, 64]"},
    "apache": {"max_request_workers": "[64, 512]", "keepalive_timeout": "[1, 120]"},
}
LEAVE_AFTER_S = 5.0
MANY = 1_000_000
LEASE_S = 30.0
LONG_AFTER_S = 5.0
"""`ice` enters its second stage after this time, so that it also shows in scenarios of 10 s."""


class RetuningController(Controller):
    """The controller in `act` mode, with the second stage; it enters after the phase without it has been measured."""

    def __init__(self, lab: Lab, no_room_after_s: float, law: Law = "optimal", **settings: str | float) -> None:
        """`settings` are further ones of `[retune]`."""
        rows: dict[str, str | float] = {
            "mode": "act",
            "order_key": str(KEY_FILE),
            "no_room_after_s": no_room_after_s,
            "long_after_s": no_room_after_s,
            "leave_after_s": LEAVE_AFTER_S,
            "lease_s": 20.0,
            "reload_min_interval_s": 3.0,
            **settings,
        }
        self._retune = "\n[retune]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in rows.items())
        super().__init__(lab, "act", law)

    def write(self, mode: Mode) -> None:
        super().write(mode)
        with CONTROLLER_FILE.open("a") as file:
            file.write(self._retune)

    def knob_changes(self, since_unix_s: float) -> dict[str, Change]:
        """The last Change of each node's wsengine since then."""
        if self.journal is None:
            return {}
        changes = reversed(self.journal.changes(POOL, MANY, since_unix_s))
        return {change.target: change for change in changes if change.by == WSENGINE and change.applied}

    def orders(self, since_unix_s: float) -> list[Change]:
        """The second stage's Orders since then, the first one first."""
        if self.journal is None:
            return []
        changes = reversed(self.journal.changes(POOL, MANY, since_unix_s))
        return [change for change in changes if change.by == "retune" and change.what.startswith("order ")]


class TwoStageRunner(PolicyRunner):
    """ICE: the real controller with the threshold law, and the second stage with its knowledge base."""

    learns = True

    def learn_s(self, _demand: Demand) -> float:
        return WARM_UP_S

    def begin(self) -> None:
        forget()
        make_keys()
        controller = RetuningController(self.lab, LONG_AFTER_S, law="ice")
        self.stack.callback(stop_programs, self.lab, MONITOR)
        self.stack.callback(controller.stop)
        controller.start()
        self.stack.callback(stop_programs, self.lab, PROGRAM_OF, RESTORE_S)
        start_wsengines(self.lab, POOL, BOUNDS)
        self.listen()
        self.changes = self.stack.enter_context(BusListener("change"))


class Orders:
    """Gives a policy's Orders, repeats each after a third of its lease, and takes them back."""

    def __init__(self, by: str) -> None:
        self._by = by
        self._given: dict[tuple[str, str], tuple[int, float]] = {}
        """Node and knob -> value, and when it was last asked for."""

    def due(self, knobs: Mapping[str, Mapping[str, int]], now_s: float) -> list[Order]:
        """The Orders to give now, so that each node's knobs become these and all others what they were."""
        wanted = {(node, knob): value for node, values in knobs.items() for knob, value in values.items()}
        due = []
        for key, value in wanted.items():
            before, at_s = self._given.get(key, (None, -math.inf))
            if before != value or now_s - at_s >= LEASE_S / 3:
                self._given[key] = value, now_s
                due.append(order(*key, value, self._by))
        for key in self._given.keys() - wanted.keys():
            del self._given[key]
            due.append(order(*key, "baseline", self._by))
        return due


class WebServerRunner(PolicyRunner):
    """IC²: Verdicts of our detector, Orders by the policy's own decision, no weights and no drains."""

    learns = True

    def learn_s(self, _demand: Demand) -> float:
        return WARM_UP_S

    def begin(self) -> None:
        forget()
        make_keys()
        controller = Controller(self.lab, "observe")
        self.stack.callback(stop_programs, self.lab, MONITOR)
        self.stack.callback(controller.stop)
        controller.start()
        self.listen()
        self.changes = self.stack.enter_context(BusListener("change"))
        knobs = self.stack.enter_context(BusListener("knobs"))
        self.stack.callback(stop_programs, self.lab, PROGRAM_OF, RESTORE_S)
        start_wsengines(self.lab, POOL, BOUNDS)
        names = {host.name for host in self.lab.hosts}
        wait_until(lambda: knobs.nodes() >= names, "Knobs of all hosts", READY_S, watch=self.lab.programs)
        give_orders = Working(f"the policy {NAME}", lambda over: asyncio.run(self._give_orders(over)))
        self.working = self.stack.enter_context(give_orders)

    async def _give_orders(self, over: threading.Event) -> None:
        decide, orders = WebServerOnly(), Orders(NAME)
        signer = Signer.load(KEY_FILE)
        bus = await Bus.connect(SITE.controller_bus, NAME)
        try:
            while not await asyncio.to_thread(over.wait, INTERVAL_S):
                now_s = time.monotonic()
                for new_order in orders.due(decide(self._look(now_s)).knobs, now_s):
                    await bus.publish(new_order, headers=signer.headers)
        finally:
            await bus.flush()
            await bus.close()

    def _look(self, now_s: float) -> Look:
        latest: dict[str, Verdict] = {verdict.node: verdict for verdict in self.verdicts or ()}
        return Look(now_s, [Seen(host.name, BASE_WEIGHT, verdict=latest.get(host.name)) for host in self.lab.hosts])


def order(node: str, knob: str, value: int | str, by: str) -> Order:
    """An Order of now, for `LEASE_S`."""
    return Order(
        v=VERSION,
        id=uuid.uuid4().hex,
        node=node,
        pool=POOL,
        time_unix_s=time.time(),
        knob=knob,
        value=value,
        lease_s=LEASE_S,
        reason="interference, says the detector" if value != "baseline" else "no interference any more",
        by=by,
    )
