"""A bus and a journal for `BusAccess` that only keep what they are given."""

from __future__ import annotations

import asyncio
from typing import Any

from slackwater.core.bus.bus import BusError
from slackwater.core.messages import Change, Message, Order


class PlayedBucket:
    """A store of the bus, in memory. `is_away`: it does not answer."""

    def __init__(self) -> None:
        self.is_away = False
        self._values: dict[str, tuple[bytes, int]] = {}

    async def get(self, key: str) -> tuple[bytes, int] | None:
        await self._answer()
        return self._values.get(key)

    async def put(self, key: str, value: bytes, revision: int) -> int | None:
        await self._answer()
        if self._values.get(key, (b"", 0))[1] != revision:
            return None
        self._values[key] = value, revision + 1
        return revision + 1

    async def _answer(self) -> None:
        await asyncio.sleep(0.0)
        if self.is_away:
            raise BusError("the store does not answer")


class PlayedBus:
    connected = True

    def __init__(self) -> None:
        self.store = PlayedBucket()
        self.orders: list[Order] = []
        self.changes: list[Change] = []
        self.requests: list[dict[str, Any]] = []

    async def bucket(self, name: str) -> PlayedBucket:  # noqa: ARG002
        return self.store

    async def publish(self, message: Message, headers: object = None) -> None:
        if isinstance(message, Order):
            assert headers, "it is signed"
            self.orders.append(message)
        elif isinstance(message, Change):
            self.changes.append(message)

    async def request(self, subject: str, question: dict[str, Any]) -> dict[str, Any]:
        assert subject == "slackwater.request.web"
        self.requests.append(question)
        return {"sentence": "done"}


class PlayedJournal:
    def __init__(self) -> None:
        self.messages: list[Message] = []

    def record(self, *batch: Message, wait: bool = True) -> None:  # noqa: ARG002
        self.messages += batch
