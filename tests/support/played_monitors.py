"""Monitors of made-up nodes, on a bus that may go away."""

from __future__ import annotations

import asyncio
import threading
import time

from slackwater.core.bus.bus import Bus, BusError
from slackwater.core.messages import Sample
from tests.support.synthetic_cluster import PERIOD_S, Cluster


class Monitors:
    """They publish from the start until `close`. A subclass says what their Samples hold."""

    def __init__(self, url: str, nodes: tuple[str, ...]) -> None:
        self.cluster = Cluster(nodes, seed=7)
        self._url, self._nodes = url, nodes
        self._end = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()

    def sample(self, node: str) -> Sample:
        """The node's next one, but for its time."""
        return self.cluster.sample(node, 0.0)

    async def _run(self) -> None:
        while not self._end.is_set():
            try:
                bus = await Bus.connect(self._url, "made-up-nodes", wait_s=1.0)
            except BusError:
                continue
            while bus.connected and not self._end.is_set():
                for node in self._nodes:
                    sample = self.sample(node)
                    sample.time_unix_s = time.time()
                    await bus.publish(sample)
                await asyncio.sleep(PERIOD_S)
            await bus.close()

    def close(self) -> None:
        self._end.set()
        self._thread.join()
