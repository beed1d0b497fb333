"""A view of a real HAProxy, and the Samples that it makes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from slackwater.core.config import parse
from slackwater.core.messages import Ask, Sample, Traffic
from slackwater.lbengine.view.service import PoolWatcher
from tests.support.real_haproxy import RealHAProxy

WITHIN_S = 60.0
SERVERS = 3


class Watched:
    """A view of a HAProxy, and the Samples that it has made."""

    def __init__(
        self, balancer: RealHAProxy, sniffer: str = "", timeout_s: float = 20.0, socket: str = "", more: str = ""
    ) -> None:
        """`socket`: the admin socket, if it is not the balancer's own; `more`: lines of `[balancer_view]`."""
        settings = parse(
            f"[lbengine]\nsocket_timeout_s = {timeout_s:g}\n"
            f'[balancer_view]\nmode = "on"\nlook_s = 0.05\nsniffer = "{sniffer}"\n{more}'
            f'[[pool]]\nname = "web"\nbackend = "web"\nsocket = "{socket or balancer.socket}"\n'
            'servers = { host3 = "third" }\n',
            "test",
        )
        self.samples: list[Sample] = []
        self.asks: list[Ask] = []
        """What monitors were told."""
        self.view = PoolWatcher(settings.pool[0], settings, self._keep, listens_s=0.0, quiet_s=0.05)

    async def _keep(self, messages: Sequence[Sample | Ask]) -> None:
        self.samples += [message for message in messages if isinstance(message, Sample)]
        self.asks += [message for message in messages if isinstance(message, Ask)]

    def of(self, node: str) -> list[Sample]:
        return [sample for sample in self.samples if sample.node == node]

    def answered(self, node: str) -> int:
        """Requests in all of a node's Samples."""
        return round(sum((traffic_of(sample).rps or 0.0) * sample.period_s for sample in self.of(node)))

    async def until(self, happened: Callable[[], object], event: str) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not happened():
                await asyncio.sleep(0.01)
        assert happened(), event

    async def new_counters(self) -> None:
        """Waits until the balancer was asked again."""
        before = self.view._counters
        await self.until(lambda: self.view._counters is not before, "a look at the balancer")

    async def a_look(self) -> None:
        """Waits for a Sample of each node that is of later counters than now."""
        before = len(self.samples)
        await self.until(lambda: len(self.samples) >= before + 2 * SERVERS, "two looks")


def traffic_of(sample: Sample) -> Traffic:
    assert sample.traffic is not None
    return sample.traffic


@asynccontextmanager
async def watching(watched: Watched) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(watched.view.run(stop))
    try:
        yield
    finally:
        stop.set()
        await task
