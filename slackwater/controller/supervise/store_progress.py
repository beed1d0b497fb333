"""Observes whether the private nats-server answers about the leases' store: it may greet clients while its store hangs.

nats-server 2.9.10 waits for ever for a lock that it holds itself once it could not write to a full disk.
"""

from __future__ import annotations

import asyncio
import threading

from slackwater.core.bus.bus import Bus, BusError
from slackwater.core.config import BusSettings

ASK_EVERY_S = 1.0
ANSWERS_WITHIN_S = 3.0


class StoreProgress:
    """Counts each answer about the store as progress. It asks in a thread of its own, so `is_made` never blocks."""

    def __init__(self, settings: BusSettings, bucket: str) -> None:
        """`settings`: how the controller logs in. `bucket`: any answer about it counts, also that there is none."""
        self._settings = settings
        self._subject = f"$JS.API.STREAM.INFO.KV_{bucket}"
        self._answered = threading.Event()
        self._over: threading.Event | None = None

    def is_made(self) -> bool:
        """Whether there was an answer since the last call."""
        if self._over is None:
            self._over = threading.Event()
            run = self._ask(self._over)
            threading.Thread(target=lambda: asyncio.run(run), name="store progress", daemon=True).start()
        answered = self._answered.is_set()
        self._answered.clear()
        return answered

    def close(self) -> None:
        """Tells the thread to end, and does not wait for it."""
        if self._over is not None:
            self._over.set()
            self._over = None

    async def _ask(self, over: threading.Event) -> None:
        bus: Bus | None = None
        while not over.is_set():
            try:
                if bus is None:
                    bus = await Bus.connect(self._settings, "slackwater-serve", wait_s=ANSWERS_WITHIN_S)
                await bus.request(self._subject, {}, timeout_s=ANSWERS_WITHIN_S)
            except BusError:  # what is silent for too long is killed: nothing is decided here
                pass
            else:
                self._answered.set()
            await asyncio.to_thread(over.wait, ASK_EVERY_S)
        if bus is not None:
            await bus.close()
