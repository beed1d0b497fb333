"""Collects messages from the lab's bus."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from slackwater.core.bus.bus import Bus
from slackwater_lab.cluster import bus
from slackwater_lab.cluster.background import Background


class BusListener(Background):
    """Collects messages of a kind from the bus, of all pools."""

    def __init__(self, kind: str = "sample") -> None:
        super().__init__("listening to the bus")
        self.heard: list[Any] = []
        self.received_unix_s: list[float] = []
        """Receive time of each message, by this machine's clock."""
        self._kind = kind

    def _run(self) -> None:
        asyncio.run(self._listen())

    async def _listen(self) -> None:
        connection = await Bus.connect(bus.SITE.controller_bus, "lab-record")
        await connection.subscribe(self._kind, self._take)
        await asyncio.to_thread(self._end.wait)
        await connection.close()

    def _take(self, message: Any) -> None:
        self.received_unix_s.append(time.time())
        self.heard.append(message)

    def nodes(self) -> set[str]:
        """The nodes that sent messages. Raises LabError when the bus cannot be listened to."""
        self.check()
        return {message.node for message in list(self.heard)}
