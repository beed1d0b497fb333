"""Asks lbengine from the web server's threads: one connection to the bus, in an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from slackwater import control
from slackwater.bus.bus import Bus, BusError
from slackwater.config import BusSettings
from slackwater.control import Request

ANSWERS_WITHIN_S = 8.0
Ask = Callable[[str, Request], str]
"""(pool, request) -> what lbengine did, in a sentence. Raises control.Refused, BusError."""


class Asker:
    """`asker(pool, request)`. The connection is made when the first thing is asked; `close` ends it."""

    def __init__(self, settings: BusSettings) -> None:
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._bus: Bus | None = None
        self._connecting: asyncio.Lock | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="bus", daemon=True)
        self._thread.start()

    def __call__(self, pool: str, request: Request) -> str:
        asking = asyncio.run_coroutine_threadsafe(self._ask(pool, request), self._loop)
        try:
            return asking.result(ANSWERS_WITHIN_S)
        except TimeoutError:
            asking.cancel()
            raise BusError(f"no answer from lbengine within {ANSWERS_WITHIN_S:g} s") from None

    def close(self) -> None:
        """Ends the connection."""
        bus = self._bus
        if bus is not None:
            asyncio.run_coroutine_threadsafe(bus.close(), self._loop).result(ANSWERS_WITHIN_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWERS_WITHIN_S)

    async def _ask(self, pool: str, request: Request) -> str:
        if self._connecting is None:
            self._connecting = asyncio.Lock()
        async with self._connecting:
            if self._bus is None:
                self._bus = await Bus.connect(self._settings, "slackwater-web", wait_s=control.WAIT_S)
        return await control.ask(self._bus, pool, request)
