"""How old Verdicts are when they come."""

from __future__ import annotations

import asyncio
import time

from slackwater.core.bus.bus import Bus
from slackwater.core.config import BusSettings
from slackwater.core.messages import Verdict


async def ages_s(settings: BusSettings, node: str, count: int) -> list[float]:
    """How old a node's Verdicts are when they come."""
    ages: list[float] = []
    enough = asyncio.Event()

    def take(verdict: Verdict) -> None:
        if verdict.node == node:
            ages.append(time.time() - verdict.time_unix_s)
            if len(ages) >= count:
                enough.set()

    bus = await Bus.connect(settings, "test")
    try:
        await bus.subscribe("verdict", take, pool="web")
        async with asyncio.timeout(120):
            await enough.wait()
    finally:
        await bus.close()
    return ages
