"""The policies in the lab that retune web servers, through a real wsengine in each host."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
import uuid

from evaluation.actors import BUS, MONITOR, READY_S, Passive, stop_programs
from evaluation.policies import INTERVAL_S, POLICIES, Look, Seen
from lab.all_noisy import RetuningController
from lab.balancer import BASE_WEIGHT
from lab.controller import BUS_LISTEN, POOL, STATE_DIR, Controller
from lab.paths import LabError
from lab.record import Listener
from lab.retunable import KEY_FILE, make_keys, start_wsengines
from lab.spawn import wait_until
from slackwater.bus import Bus
from slackwater.messages import VERSION, Order, Verdict
from slackwater.signing import Signer

WSENGINE = "slackwater-wsengine of "
RESTORE_S = 25.0
"""A wsengine that is stopped puts everything back first."""
BOUNDS = {
    "php_fpm": {"max_children": "[1, 64]"},
    "apache": {"max_request_workers": "[64, 512]", "keepalive_timeout": "[1, 120]"},
}
LEASE_S = 30.0
LONG_AFTER_S = 10.0
"""`ice` enters its second stage after so long, so that it also shows in scenarios of 20 s."""


class TwoStages(Passive):
    """ICE: the real controller with the threshold law, and the second stage with its knowledge base."""

    def begin(self) -> None:
        shutil.rmtree(STATE_DIR, ignore_errors=True)
        make_keys()
        controller = RetuningController(self.lab, LONG_AFTER_S, law="ice")
        self.stack.callback(stop_programs, self.lab, MONITOR)
        self.stack.callback(controller.stop)
        controller.start()
        self.stack.callback(stop_programs, self.lab, WSENGINE, RESTORE_S)
        start_wsengines(self.lab, POOL, BUS_LISTEN, BOUNDS)
        self.listener = self.stack.enter_context(Listener(BUS))

    def check(self) -> None:
        if self.listener is not None:
            self.listener.check()


class Retuning(Passive):
    """IC²: Verdicts of our detector, Orders by the policy's own decision, no weights and no drains."""

    def begin(self) -> None:
        shutil.rmtree(STATE_DIR, ignore_errors=True)
        make_keys()
        controller = Controller(self.lab, "observe")
        self.stack.callback(stop_programs, self.lab, MONITOR)
        self.stack.callback(controller.stop)
        controller.start()
        self.listener = self.stack.enter_context(Listener(BUS))
        self._verdicts = self.stack.enter_context(Listener(BUS, "verdict"))
        knobs = self.stack.enter_context(Listener(BUS, "knobs"))
        self.stack.callback(stop_programs, self.lab, WSENGINE, RESTORE_S)
        start_wsengines(self.lab, POOL, BUS_LISTEN, BOUNDS)
        names = {host.name for host in self.lab.hosts}
        wait_until(lambda: knobs.nodes() >= names, "Knobs of all hosts", READY_S, watch=self.lab.programs)
        self._over = threading.Event()
        self._error: Exception | None = None
        thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self.stack.callback(thread.join, READY_S)
        self.stack.callback(self._over.set)
        thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self._give_orders())
        except Exception as error:
            self._error = error

    async def _give_orders(self) -> None:
        decide = POLICIES[self.name].make()
        signer = Signer.load(KEY_FILE)
        bus = await Bus.connect(BUS, self.name)
        given: dict[tuple[str, str], tuple[int, float]] = {}
        """Node and knob -> value, and when it was last asked for."""
        try:
            while not await asyncio.to_thread(self._over.wait, INTERVAL_S):
                now_s = time.monotonic()
                answer = decide(self._look(now_s))
                wanted = {(node, knob): value for node, all_ in answer.knobs.items() for knob, value in all_.items()}
                for key, value in wanted.items():
                    if key not in given or given[key][0] != value or now_s - given[key][1] >= LEASE_S / 3:
                        given[key] = value, now_s
                        await bus.publish(order(*key, value), headers=signer.headers)
                for key in given.keys() - wanted.keys():
                    del given[key]
                    await bus.publish(order(*key, "baseline"), headers=signer.headers)
        finally:
            await bus.flush()
            await bus.close()

    def _look(self, now_s: float) -> Look:
        latest: dict[str, Verdict] = {one.node: one for one in list(self._verdicts.heard)}
        return Look(now_s, [Seen(host.name, BASE_WEIGHT, verdict=latest.get(host.name)) for host in self.lab.hosts])

    def check(self) -> None:
        if self.listener is not None:
            self.listener.check()
        if self._error is not None:
            raise LabError(f"the policy {self.name} stopped: {self._error!r}")


def order(node: str, knob: str, value: int | str) -> Order:
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
        by="wsengine-only",
    )
