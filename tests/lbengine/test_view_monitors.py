"""A real monitor that is told of its requests from the balancer's host captures nothing meanwhile, and again after."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from slackwater.core.bus.bus import Bus
from slackwater.core.config import BusSettings, parse
from slackwater.core.messages import Sample
from slackwater.lbengine.view.service import PoolWatcher
from tests.support.nats_process import Server
from tests.support.paths import PROGRAMS
from tests.support.real_haproxy import RealHAProxy, needs_haproxy
from tests.support.watched_view import WITHIN_S

SNIFFER, MONITOR = (shutil.which(f"slackwater-{name}", path=str(PROGRAMS)) for name in ("sniffer", "monitor"))
pytestmark = [
    needs_haproxy,
    pytest.mark.skipif(shutil.which("nats-server") is None, reason="nats-server is not in PATH"),
    pytest.mark.skipif(not (SNIFFER and MONITOR), reason="make setup was not run"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may capture"),
]


def is_spared(sample: Sample) -> bool:
    return "traffic.drops" in sample.absent


def test_a_monitor_captures_nothing_while_the_view_tells_of_its_requests(
    tmp_path: Path, running: RealHAProxy, ports: list[int]
) -> None:
    server = Server(tmp_path)
    server.start()
    config = tmp_path / "node.toml"
    config.write_text(
        f'node = "host1"\npool = "web"\n[bus]\nurl = "{server.url}"\n[sniffer]\ninterface = "lo"\n'
        f'ports = [{ports[0]}]\n[metrics]\nlisten = ""\n[canary]\nenabled = false\n[pmu]\nenabled = false\n'
    )
    settings = parse(
        f'[balancer_view]\nmode = "on"\ntells_monitors = true\nsniffer = "{SNIFFER}"\n'
        f'[[pool]]\nname = "web"\nbackend = "web"\nsocket = "{running.socket}"\n',
        "test",
    )

    async def play() -> None:
        bus = await Bus.connect(BusSettings(server.url), "test", wait_s=WITHIN_S)
        heard: list[Sample] = []
        view = PoolWatcher(settings.pool[0], settings, bus.publish_together, listens_s=0.0)

        def hear(sample: Sample) -> None:
            view.hear(sample)
            if sample.source == "monitor":
                heard.append(sample)

        async def until(happened: Callable[[Sample], bool]) -> Sample:
            async with asyncio.timeout(WITHIN_S):
                while not (heard and happened(heard[-1])):
                    await asyncio.to_thread(running.request, 30)
            return heard[-1]

        await bus.subscribe("sample", hear, pool="web")
        await until(lambda sample: sample.traffic is not None and not is_spared(sample))
        stop = asyncio.Event()
        looks = asyncio.create_task(view.run(stop))
        spared = await until(is_spared)
        spared = await until(lambda sample: is_spared(sample) and bool(sample.traffic and sample.traffic.rt_p95_ms))
        assert spared.traffic is not None
        assert spared.traffic.rps
        assert spared.traffic.cpu_share == 0.0
        stop.set()
        await looks
        await until(lambda sample: not is_spared(sample) and bool(sample.traffic and sample.traffic.rt_p95_ms))
        await bus.close()

    monitor = subprocess.Popen([str(MONITOR), "run", "--config", str(config)])
    try:
        asyncio.run(play())
    finally:
        monitor.kill()
        monitor.wait()
        server.stop()
