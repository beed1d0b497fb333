"""Controller, bus and wsengine are killed in every order: the web server is as before soon after the lease's end."""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_wsengine import wait_for
from test_wsengine import BY_HAND, Scene, pytestmark  # noqa: F401

from slackwater.bus import Bus, BusError
from slackwater.messages import Cycle, ServerState, Verdict

LEASE_S = 4.0
WITHIN_S = 10.0
"""After the lease's end."""
EDGE_S = 1.0
"""The lease may have been renewed just before its giver was killed."""


class Cluster:
    """A detector and an lbengine that say what there is to say: web1 beside a neighbour, drained when asked for."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._end = threading.Event()
        self._drained = False
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()

    async def _run(self) -> None:
        while not self._end.is_set():
            try:
                bus = await Bus.connect(self._url, "played", wait_s=1.0)
            except BusError:
                await asyncio.sleep(0.1)
                continue
            await bus.answer("slackwater.control.web", self._answer)
            while bus.connected and not self._end.is_set():
                now = time.time()
                verdict = Verdict(1, "web1", "web", now, "interference", now - 60.0, 0.7, ["run delay"], "played")
                weight = 0 if self._drained else 100
                server = ServerState("web1", "UP", weight, 100, weight, rps=10.0, in_flight=0)
                await bus.publish(verdict)
                await bus.publish(Cycle(1, "web", now, "act", False, "roundrobin", "optimal", "", [server]))
                await asyncio.sleep(0.1)
            await bus.close()

    async def _answer(self, question: dict[str, object]) -> dict[str, object]:
        self._drained = question["action"] == "drain"
        return {"sentence": "done"}

    def close(self) -> None:
        self._end.set()
        self._thread.join()


class Site(Scene):
    """As `Scene`, with the real controller of the second stage."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.config = folder / "controller.toml"
        self.config.write_text(
            f'state_dir = "{folder}/controller"\n[[pool]]\nname = "web"\nbackend = "web"\nsocket = "/nowhere"\n'
            f'mode = "act"\n[bus]\nurl = "{self.nats.url}"\n[retune]\nmode = "act"\norder_key = "{self.private}"\n'
            f"long_after_s = 1\nlease_s = {LEASE_S}\ndrain_s = 2\nreload_min_interval_s = 0\n"
        )
        (folder / "controller").mkdir(mode=0o700)
        self.cluster = Cluster(self.nats.url)
        self.retune: subprocess.Popen[bytes] | None = None
        self.start_retune()

    def start_retune(self) -> None:
        argv = [sys.executable, "-m", "slackwater.cli", "run", "retune", "--config", str(self.config)]
        with (self.folder / "retune.log").open("ab") as log:
            self.retune = subprocess.Popen(argv, stderr=log)

    def kill(self, what: str) -> None:
        if what == "controller":
            assert self.retune is not None
            self.retune.kill()
            self.retune.wait()
            self.retune = None
        elif what == "bus":
            self.nats.stop()
        else:
            self.engine.end(signal.SIGKILL)
            # Its service manager starts it again, with or without a bus.
            self.engine.spawn()

    def close(self) -> None:
        if self.retune is not None:
            self.retune.kill()
            self.retune.wait()
        self.cluster.close()
        super().close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


def test_the_controller_turns_the_knob_and_its_leases_hold(site: Site) -> None:
    wait_for(lambda: site.text() == "threads 16;\n", "the knob is turned")
    first = site.engine.leases()["streaming.num_threads"]["order_id"]
    wait_for(lambda: site.engine.leases()["streaming.num_threads"]["order_id"] != first, "a renewal")
    assert site.reloads.read_text() == "x"


@pytest.mark.slow
@pytest.mark.parametrize("order", list(itertools.permutations(["controller", "bus", "wsengine"])), ids="-".join)
def test_in_every_order_of_crashes_all_is_as_before_soon_after_the_lease(site: Site, order: tuple[str, ...]) -> None:
    wait_for(lambda: site.text() == "threads 16;\n", "the knob is turned")
    for what in order:
        site.kill(what)
    begin_s = time.monotonic()
    wait_for(lambda: site.text() == BY_HAND, "the baseline", within_s=LEASE_S + WITHIN_S + EDGE_S)
    print(f"{'-'.join(order)}: as before {time.monotonic() - begin_s:.1f} s after the last crash, lease {LEASE_S} s")
    wait_for(lambda: site.engine.leases() == {}, "no lease is left")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["controller", "bus", "wsengine"])
def test_what_comes_back_takes_up_its_work(site: Site, what: str) -> None:
    wait_for(lambda: site.text() == "threads 16;\n", "the knob is turned")
    site.kill(what)
    if what == "bus":
        wait_for(lambda: site.text() == BY_HAND, "the baseline without a bus", within_s=LEASE_S + WITHIN_S + EDGE_S)
        site.nats.start()
    if what == "controller":
        site.start_retune()
    wait_for(lambda: site.text() == "threads 16;\n", "the knob is turned again")
    wait_for(lambda: site.engine.leases(), "its lease")
    site.kill("controller")
    wait_for(lambda: site.text() == BY_HAND, "the baseline", within_s=LEASE_S + WITHIN_S + EDGE_S)
