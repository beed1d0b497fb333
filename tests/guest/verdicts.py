"""Verdicts on the guest's bus, five times a second until it is killed.

`verdicts.py CONTROLLER_TOML SLOW CALM...` says that node SLOW has a noisy neighbour and that the others are calm.
"""

from __future__ import annotations

import asyncio
import sys
import time

import slackwater.lbengine.backends.table  # noqa: F401  (declares the balancers that a configuration can name)
from slackwater.core.bus.bus import Bus
from slackwater.core.config import load
from slackwater.core.messages import Verdict


def verdict(node: str, slow: bool, since_unix_s: float) -> Verdict:
    return Verdict(
        v=1,
        node=node,
        pool="web",
        time_unix_s=time.time(),
        state="interference" if slow else "calm",
        since_unix_s=since_unix_s,
        severity=0.9 if slow else 0.0,
        path=["said by the test"],
        model="test",
        capacity_rps=30.0 if slow else 300.0,
        rps=80.0,
        rt_mean_ms=60.0 if slow else 2.0,
    )


async def publish_verdicts(nodes: list[str]) -> None:
    bus = await Bus.connect(load(sys.argv[1]).controller_bus, "test", wait_s=60.0)
    since_unix_s = time.time()
    while True:
        for node in nodes:
            await bus.publish(verdict(node, node == nodes[0], since_unix_s))
        await asyncio.sleep(0.2)


asyncio.run(publish_verdicts(sys.argv[2:]))
