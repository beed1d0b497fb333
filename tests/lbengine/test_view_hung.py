"""A sniffer that lives and says nothing is ended and started again; the counters tell of the servers meanwhile."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest

from slackwater.lbengine.view import packets
from slackwater.lbengine.view.packets import Sniffer
from tests.support.paths import PROGRAMS
from tests.support.real_haproxy import RealHAProxy, needs_haproxy
from tests.support.watched_view import WITHIN_S, Watched, traffic_of, watching

SNIFFER = shutil.which("slackwater-sniffer", path=str(PROGRAMS))
pytestmark = [needs_haproxy, pytest.mark.skipif(os.geteuid() != 0, reason="only root may capture")]


async def times_come(watched: Watched, balancer: RealHAProxy) -> None:
    before = len(watched.samples)
    async with asyncio.timeout(WITHIN_S):
        while not any(traffic_of(sample).rt_p95_ms for sample in watched.samples[before:]):
            await asyncio.to_thread(balancer.request, 6)


def test_a_sniffer_that_hangs_is_started_again_and_that_is_said_once(
    running: RealHAProxy, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SNIFFER, "slackwater-sniffer is missing: run `make setup`"
    monkeypatch.setattr(packets, "HUNG_AFTER_S", 3.0)
    monkeypatch.setattr(packets, "FIRST_AGAIN_S", 0.1)

    async def hangs(watched: Watched) -> None:
        sniffer = the_sniffer(watched)
        pid = sniffer.pid
        os.kill(pid, signal.SIGSTOP)
        before = len(watched.samples)

        def counters_alone() -> bool:
            late = watched.samples[before:]
            return any("is silent" in sample.absent.get("traffic.rt_p95_ms", "") for sample in late)

        await watched.until(counters_alone, "Samples of the counters alone")
        assert all(traffic_of(sample).rps is not None for sample in watched.samples[before:])
        await watched.until(lambda: sniffer.pid != pid, "another sniffer")
        assert not Path(f"/proc/{pid}").exists(), "the one that hung is gone"

    async def play() -> None:
        watched = Watched(running, SNIFFER or "")
        async with watching(watched):
            await times_come(watched, running)
            for _ in range(2):
                await hangs(watched)
                await times_come(watched, running)
            left = the_sniffer(watched).pid
        assert not Path(f"/proc/{left}").exists()
        assert caplog.text.count("hung: it wrote nothing for 3 s, and was ended") == 1

    asyncio.run(play())


def the_sniffer(watched: Watched) -> Sniffer:
    assert watched.view._packets is not None
    (sniffer,) = watched.view._packets._sniffers.values()
    return sniffer
