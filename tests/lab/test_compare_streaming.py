"""A streaming service behind IPVS, one of three servers stalling: frame delay with static weights and with lbengine's.

`pytest -s tests/lab/test_compare_streaming.py` prints the table.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slackwater.core.config import LbengineSettings
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.lbengine.backends.ipvs.ipvs import Lvs
from slackwater.lbengine.backends.ipvs.settings import IpvsPool
from slackwater.lbengine.engine import Engine
from slackwater_lab.played_verdict import verdict
from tests.support import stream_frames as frames
from tests.support.ipvs_guest import PYTHON, IpvsGuest, needs_ipvs
from tests.support.ipvs_site import SERVERS, IpvsSite
from tests.support.paths import ROOT
from tests.support.real_haproxy import stopped
from tests.support.real_lab import eventually
from tests.support.real_processes import free_port

TOOL = f"{PYTHON} -ISE {ROOT / 'tests/support/stream_frames.py'}"
STALL_S = (0.16, 0.04)
"""Stands still, runs: four fifths of the host are lost."""
VIEWERS = 9
WATCH_S = 12.0
SETTLED_S = 3.0
"""Streams that began before the weights changed are over by then."""


@contextlib.contextmanager
def serving(port: int) -> Iterator[int]:
    argv = [sys.executable, "-ISE", str(ROOT / "tests/support/stream_frames.py"), "serve", str(port), "here"]
    server = subprocess.Popen(argv)
    try:
        eventually("it serves", lambda: bool(frames.watch("127.0.0.1", port, 1, 0.2)["frames"]), 60.0)
        yield server.pid
    finally:
        server.send_signal(signal.SIGCONT)
        server.kill()
        server.wait()


def test_each_frame_is_due_a_period_after_the_one_before_and_delay_is_from_the_request() -> None:
    watched: dict[str, Any] = {}

    def has_fifty() -> bool:
        watched.update(frames.watch("127.0.0.1", port, 2, 2.5))
        return len(watched["frames"]) >= 50

    port = free_port()
    with serving(port):
        eventually("fifty frames for two viewers in 2.5 s", has_fifty, 60.0)
    figures = np.array([(due_s, late_ms) for due_s, late_ms, _ in watched["frames"]])
    assert watched["broken"] == 0
    assert {name for _, _, name in watched["frames"]} == {"here"}
    assert figures[:, 1].min() > -5.0, "no frame is early"


def test_a_server_that_stands_still_sends_its_frames_late_and_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()

    class Viewer(frames.Viewer):
        def ask(self) -> None:
            super().ask()
            asked.set()

    port = free_port()
    with serving(port) as pid, ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(frames, "Viewer", Viewer)
        with stopped(pid):
            watching = pool.submit(frames.watch, "127.0.0.1", port, 1, 1.5, 20)
            assert asked.wait(60.0)
            time.sleep(0.2)  # the stall itself
        watched: dict[str, Any] = watching.result(60.0)
    late = [late_ms for _, late_ms, _ in watched["frames"]]
    assert watched["broken"] == 0
    assert len(late) >= 20
    assert late[0] > 100.0


def figures(watched: dict[str, object]) -> dict[str, float]:
    """Frames due after the weights had settled."""
    rows = [row for row in watched["frames"] if row[0] >= SETTLED_S]  # type: ignore[attr-defined]
    late = np.array([late_ms for _, late_ms, _ in rows])
    p50, p95, p99 = np.percentile(late, [50, 95, 99]).tolist()
    return {
        "frames": len(late),
        "noisy_share": sum(name == SERVERS[0] for _, _, name in rows) / len(rows),
        "late_share": float((late > frames.PERIOD_S * 1e3).mean()),
        "p50_ms": p50,
        "p95_ms": p95,
        "p99_ms": p99,
    }


class Streaming:
    """The site's servers also stream, on a port of their own."""

    PORT = 8554

    def __init__(self, site: IpvsSite) -> None:
        self.guest, self.site = site.guest, site
        for name in SERVERS:
            line = f"setsid ip netns exec {name} {TOOL} serve {self.PORT} {name} >/run/frames-{name}.log 2>&1"
            self.guest.ok(f"{line} & echo $! >/run/frames-{name}.pid; disown")
        self.address = "10.9.0.1:8554"
        made = f"-A -t {self.address} -s wrr\n"
        made += "".join(f"-a -t {self.address} -r 10.9.{n}.2:{self.PORT} -m -w 100\n" for n in (1, 2, 3))
        self.guest.run(["ipvsadm", "-R"], made)
        self.names = [f"10.9.{n}.2:{self.PORT}" for n in (1, 2, 3)]
        for number in (1, 2, 3):
            asks = f"ip netns exec client {TOOL} watch 10.9.{number}.2 {self.PORT} 1 0.5 | grep -q rs{number}"
            self.guest.ok(f"until {asks}; do sleep 0.2; done")
        line = f"{TOOL} stall $(cat /run/frames-rs1.pid) {STALL_S[0]} {STALL_S[1]}"
        self.guest.ok(f"setsid {line} >/dev/null 2>&1 & echo $! >/run/stall.pid; disown")

    def watch(self, engine: Engine | None) -> dict[str, float]:
        """Viewers for `WATCH_S`, with static weights or lbengine at work."""
        line = f"ip netns exec client {TOOL} watch 10.9.0.1 {self.PORT} {VIEWERS} {WATCH_S} >/run/frames.json"
        self.guest.ok(f"rm -f /run/watched; ({line}; echo >/run/watched) 2>&1 & disown")
        end_s = time.monotonic() + 90.0
        while self.guest.sh("test -e /run/watched")[0] != 0:
            assert time.monotonic() < end_s, "the viewers do not end"
            if engine is not None:
                now_s = time.monotonic()
                for name in self.names:
                    engine.inbox.put(verdict(name, "interference" if name == self.names[0] else "calm"), now_s)
                engine.cycle(now_s)
            time.sleep(0.5)
        return figures(json.loads(self.guest.ok("cat /run/frames.json")))

    def clean(self) -> None:
        self.guest.sh(
            "kill $(cat /run/stall.pid); for n in rs1 rs2 rs3; do p=$(cat /run/frames-$n.pid);"
            f" kill -CONT $p; kill -9 $p; done; ipvsadm -D -t {self.address}"
        )


@needs_ipvs
@pytest.mark.slow
def test_frames_come_late_from_a_stalling_server_and_lbengine_sends_fewer_viewers_there(
    site: IpvsSite, guest: IpvsGuest, tmp_path: Path
) -> None:
    streaming = Streaming(site)
    try:
        static = streaming.watch(None)
        service = f"-t {streaming.address}"
        pool = IpvsPool(name="web", service=service, mode="act")
        with Journal.open(journal_path(tmp_path)) as journal:
            engine = Engine(pool, LbengineSettings(), tmp_path, journal, balancer=Lvs(service, guest.run))
            ours = streaming.watch(engine)
            engine.stop(time.monotonic(), "the test ends")
    finally:
        streaming.clean()
    results = {"static, wrr": static, "lbengine's": ours}
    for policy, row in results.items():
        words = ", ".join(f"{key} {value:.3g}" for key, value in row.items())
        print(f"\n{policy}: {words}", end="")
    assert static["noisy_share"] > 0.2
    assert static["late_share"] > 0.1
    assert ours["noisy_share"] < 0.5 * static["noisy_share"]
    assert ours["late_share"] < static["late_share"]
