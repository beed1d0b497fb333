"""A node that lies: what somebody can send who has taken over a web server, in valid messages."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from random import Random

import msgspec

from slackwater.core.bus.bus import Bus, BusError
from slackwater.core.config import BusSettings
from slackwater.core.messages import VERSION, Change, Knobs, Message, Sample, Verdict
from slackwater.core.messages.knobs import KnobState
from slackwater_lab.cluster.bus import POOL

PER_S = {"lies": 20, "forgery": 20, "flood": 3000}
BURST_S = 0.05
YEAR_S = 365 * 86_400.0


class Hostile:
    """Publishes through a node's link as its monitor and wsengine until it is stopped; `attack` is a key of PER_S."""

    def __init__(self, monitor: BusSettings, wsengine: BusSettings, node: str, attack: str, seed: int) -> None:
        self._parts = monitor, wsengine
        self._node = node
        self._attack = attack
        self._random = Random(seed)
        self._over = threading.Event()
        self._seq = 0
        self._thread = threading.Thread(target=self._run, name="hostile", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(10.0)

    def _run(self) -> None:
        asyncio.run(self._publish())

    async def _publish(self) -> None:
        parts: list[Bus] = []
        try:
            for settings in self._parts:
                parts.append(await Bus.connect(settings, f"hostile {self._node}"))
            while not self._over.is_set():
                for _ in range(max(1, round(PER_S[self._attack] * BURST_S))):
                    message = self.message()
                    await parts[0 if isinstance(message, Sample) else 1].publish(message)
                await asyncio.sleep(BURST_S)
        except BusError:  # the bus may be away too
            pass
        finally:
            for bus in parts:
                await bus.close()

    def message(self) -> Message:
        """The next message: a lie about this node or about others, or one of a flood."""
        if self._attack == "forgery":
            return self._random.choice((self._forged_change, self._forged_verdict, self._forged_knobs))()
        return self._lie()

    def _lie(self) -> Sample:
        self._seq += 1
        ahead_s = self._random.choice((0.0, 0.0, 0.0, 86_400.0, YEAR_S, -YEAR_S))
        lie = {
            "v": VERSION,
            "node": self._node if self._attack == "lies" else f"{self._node}-{self._seq % 500}",
            "pool": POOL,
            "time_unix_s": max(0.0, time.time() + ahead_s),
            "boot_id": "another",
            "seq": self._seq,
            "period_s": 0.2,
            "cpu": {"scope": "cgroup", "utilisation": self._random.choice((0.0, 1.0, 1e9)), "steal": 1.0},
        }
        return msgspec.convert(lie, Sample)

    def _forged_change(self) -> Change:
        return Change(
            v=VERSION,
            id=uuid.uuid4().hex,
            pool=POOL,
            time_unix_s=self._random.choice((0.0, time.time(), time.time() + YEAR_S)),
            what=self._random.choice(("weight", "restore", "pause", "php_fpm.max_children")),
            target=self._node,
            before=100,
            after=self._random.choice((0, 1, 100, "\x1b[2J")),
            why="a lie",
            by=self._random.choice(("lbengine", "serve", "root", "wsengine")),
            applied=True,
        )

    def _forged_verdict(self) -> Verdict:
        others = {
            "v": VERSION,
            "node": self._random.choice(("host1", "host2", "host3")),
            "pool": POOL,
            "time_unix_s": time.time(),
            "state": "interference",
            "since_unix_s": time.time() - 5.0,
            "severity": 1.0,
            "path": ["a lie"],
            "model": "a lie",
        }
        return msgspec.convert(others, Verdict)

    def _forged_knobs(self) -> Knobs:
        state = KnobState("php_fpm.max_children", 64, 4, 1, 64, order="a lie", by="retune", left_s=1e6)
        return Knobs(VERSION, self._node, POOL, time.time(), "a lie", [state])
