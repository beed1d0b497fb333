"""A bus and a journal for `BusAccess` that only keep what they are given."""

from __future__ import annotations

from typing import Any

from slackwater.core.messages import Change, Message, Order


class PlayedBus:
    connected = True

    def __init__(self) -> None:
        self.orders: list[Order] = []
        self.changes: list[Change] = []
        self.requests: list[dict[str, Any]] = []

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
