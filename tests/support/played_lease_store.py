"""A lease store and a clock that are played."""

from __future__ import annotations

import asyncio

import msgspec

from slackwater.core.bus.bus import BusError
from slackwater.lbengine.leadership.lease import Lease, Record
from slackwater.lbengine.leadership.leases import Leases


class Store:
    """A key-value store that may be away."""

    def __init__(self) -> None:
        self.values: dict[str, tuple[bytes, int]] = {}
        self.away = False

    async def get(self, key: str) -> tuple[bytes, int] | None:
        await asyncio.sleep(0)
        if self.away:
            raise BusError("away")
        return self.values.get(key)

    async def put(self, key: str, value: bytes, revision: int) -> int | None:
        await asyncio.sleep(0)
        if self.away:
            raise BusError("away")
        if self.values.get(key, (b"", 0))[1] != revision:
            return None
        self.values[key] = (value, revision + 1)
        return revision + 1

    def record(self) -> Record:
        return msgspec.json.decode(self.values["k"][0], type=Record)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def owners(*steps: Lease | Leases) -> list[str]:
    return [asyncio.run(step.step()) for step in steps]
