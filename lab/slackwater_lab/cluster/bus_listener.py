"""Collects messages from the lab's bus."""

from __future__ import annotations

import asyncio
import threading
import time
from types import TracebackType
from typing import Any, Self

from slackwater.core.bus.bus import Bus
from slackwater_lab.cluster import bus
from slackwater_lab.cluster.paths import LabError


class BusListener:
    """Collects messages of a kind from the bus, of all pools, in a thread of its own."""

    def __init__(self, kind: str = "sample") -> None:
        self.heard: list[Any] = []
        self.received_unix_s: list[float] = []
        """When each was heard, by this machine's clock."""
        self._kind = kind
        self._error: Exception | None = None
        self._end: asyncio.Event | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._listen())
        except Exception as error:
            self._error = error

    async def _listen(self) -> None:
        self._end = asyncio.Event()
        connection = await Bus.connect(bus.SITE.controller_bus, "lab-record")
        await connection.subscribe(self._kind, self._take)
        await self._end.wait()
        await connection.close()

    def _take(self, message: Any) -> None:
        self.received_unix_s.append(time.time())
        self.heard.append(message)

    def check(self) -> None:
        if self._error:
            raise LabError(f"the bus cannot be listened to: {self._error}")

    def nodes(self) -> set[str]:
        """Who was heard."""
        self.check()
        return {message.node for message in list(self.heard)}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._end is not None:
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(5.0)
