"""Requests to lbengine from the web server's threads: one connection to the bus, in an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from slackwater import control
from slackwater.bus.bus import Bus, BusError
from slackwater.config import BusSettings
from slackwater.control import Request

ANSWERS_WITHIN_S = 8.0
SendToEngine = Callable[[str, Request], str]
"""(pool, request) -> lbengine's answer, a sentence. Raises control.Refused, BusError."""


class EngineClient:
    """`client(pool, request)`. The first request makes the connection; `close` ends it."""

    def __init__(self, settings: BusSettings) -> None:
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._bus: Bus | None = None
        self._connecting: asyncio.Lock | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="bus", daemon=True)
        self._thread.start()

    def __call__(self, pool: str, request: Request) -> str:
        sending = asyncio.run_coroutine_threadsafe(self._send(pool, request), self._loop)
        try:
            return sending.result(ANSWERS_WITHIN_S)
        except TimeoutError:
            sending.cancel()
            raise BusError(f"no answer from lbengine within {ANSWERS_WITHIN_S:g} s") from None

    def close(self) -> None:
        """Ends the connection."""
        bus = self._bus
        if bus is not None:
            asyncio.run_coroutine_threadsafe(bus.close(), self._loop).result(ANSWERS_WITHIN_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWERS_WITHIN_S)

    async def _send(self, pool: str, request: Request) -> str:
        if self._connecting is None:
            self._connecting = asyncio.Lock()
        async with self._connecting:
            if self._bus is None:
                self._bus = await Bus.connect(self._settings, "slackwater-web", wait_s=control.WAIT_S)
        return await control.send(self._bus, pool, request)
