"""50 retunes of real Apaches and php-fpms under load, behind a real HAProxy: not one request fails or is cut."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from real_lab import eventually, needs_lab

from lab.controller import BUS_LISTEN, POOL, Controller
from lab.lab import Lab, LabSettings, traces
from lab.load import Demand, Load
from lab.paths import LAB_DIR, program
from lab.retunable import KEY_FILE, make_keys, start_wsengines
from retune import choreography
from retune.knowledge import Value
from retune.service import BusSite
from slackwater.bus import Bus
from slackwater.config import PoolSettings
from slackwater.journal import Journal
from slackwater.messages import Change, Cycle
from slackwater.signing import Signer

pytestmark = [pytest.mark.lab, needs_lab, pytest.mark.slow, pytest.mark.timeout(900)]
TURNS = 28
LEASE_S = 40.0
KNOBS = {
    "php_fpm": {"max_children": "[1, 64]"},
    "apache": {"max_request_workers": "[64, 512]", "keepalive_timeout": "[1, 120]"},
}
WAITS_MS = (5, 5, 5, 5, 20, 20, 100, 100, 500, 2000)
WAIT_PHP = "<?php usleep(1000 * (int) $_GET['ms']); echo '<html>waited</html>';\n"


class Listener:
    """In a pool's place: it only keeps what came."""

    def __init__(self) -> None:
        self.cycle: Cycle | None = None
        self.changes: list[Change] = []

    def see(self, message: Any) -> None:
        if isinstance(message, Cycle):
            self.cycle = message
        elif isinstance(message, Change):
            self.changes.append(message)


class SteadyLoad:
    """Load in pieces of 10 s, one after the other, until `stop`; each waits for its last responses."""

    def __init__(self, lab: Lab, demand: Demand) -> None:
        self._lab = lab
        self._demand = demand
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.requests = 0
        self.failed: list[str] = []
        self.trouble: Exception | None = None

    def _run(self) -> None:
        urls = [f"{self._lab.balancer.url}/wait.php?ms={ms}" for ms in WAITS_MS]
        try:
            while not self._end.is_set():
                load = Load(self._lab.in_front([program("oha")]), LAB_DIR, urls, self._demand, 10.0)
                found = load.finish()
                self.requests += len(found.seconds) + found.lost_count
                self.failed += [f"status {status}" for status in found.status[found.status != 200]]
                self.failed += [f"{count} times {why}" for why, count in found.lost.items()]
        except Exception as error:
            self.trouble = error

    def __enter__(self) -> SteadyLoad:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    if found := traces():
        pytest.skip(f"a lab is up or was left behind: {found}")
    with Lab(LabSettings(php_children=8, retunable=True)) as lab:
        for host in lab.hosts:
            (host.folder / "events/wait.php").write_text(WAIT_PHP)
        make_keys()
        controller = Controller(lab, "act")
        controller.start()
        engines = start_wsengines(lab, POOL, BUS_LISTEN, KNOBS)
        for engine in engines:
            eventually(f"{engine.name} listens", lambda engine=engine: "connected" in engine.log.read_text(), 30.0)  # type: ignore[misc]
        yield lab


def values(number: int) -> dict[str, Value]:
    """What the turn of this number asks for: another value each time, and now and then all is given back."""
    if number % 4 == 3:
        return {"php_fpm.max_children": "baseline", "apache.max_request_workers": "baseline"}
    return {"php_fpm.max_children": 9 + number % 16, "apache.max_request_workers": 64 * (3 + number % 4)}


async def retune(lab: Lab, folder: Path, times: int) -> Listener:
    """One host after the other; fails when a wsengine refuses."""
    pool = PoolSettings(name=POOL, backend="web", socket=str(lab.balancer.admin_socket), mode="act")
    listener = Listener()
    bus = await Bus.connect(f"nats://{BUS_LISTEN}", "a-test")
    with Journal.open(folder / "journal.sqlite") as journal:
        site = BusSite(pool, LEASE_S, bus, journal, Signer.load(KEY_FILE))
        site.listen_for(listener)  # type: ignore[arg-type]
        for kind in ("cycle", "change"):
            await bus.subscribe(kind, site.take, pool=POOL)
        held: dict[str, set[str]] = {host.name: set() for host in lab.hosts}
        for number in range(times):
            host = lab.hosts[number % len(lab.hosts)].name
            wanted = values(number // len(lab.hosts))
            wanted = {knob: value for knob, value in wanted.items() if value != "baseline" or knob in held[host]}
            outcome = await choreography.turn(site, host, wanted, "a test", 10.0)
            assert not outcome.trouble, f"turn {number} of {host}: {outcome.trouble}"
            for knob, change in outcome.changes.items():
                assert change.applied, f"turn {number}: {change.why}"
                held[host] = held[host] - {knob} if wanted[knob] == "baseline" else held[host] | {knob}
        # What is still turned runs out with its lease, without a drain, under the same load.
        until_s = time.monotonic() + LEASE_S + 20.0
        left = {(host, knob) for host, knobs in held.items() for knob in knobs}
        while left and time.monotonic() < until_s:
            await asyncio.sleep(0.2)
            left -= {(one.target, one.what) for one in listener.changes if one.why.startswith("put back: the lease")}
        assert not left, f"not put back: {left}"
    await bus.close()
    return listener


@pytest.mark.parametrize(
    ("rate", "clients"),
    [pytest.param(Demand(rate_rps=15.0), Demand(clients=8), id="open-loop-and-closed-loop")],
)
def test_no_request_fails_or_is_cut_over_50_retunes_of_apache_and_php_fpm(
    lab: Lab, tmp_path: Path, rate: Demand, clients: Demand
) -> None:
    with SteadyLoad(lab, rate) as opened, SteadyLoad(lab, clients) as closed:
        listener = asyncio.run(retune(lab, tmp_path, TURNS))
    done = [change.what for change in listener.changes if change.by == "wsengine" and change.applied]
    for load in (opened, closed):
        assert load.trouble is None
        print(f"{load.requests} requests, failed: {load.failed}")
        assert load.requests > 100
        assert load.failed == []
    print({knob: done.count(knob) for knob in sorted(set(done))})
    assert all(done.count(knob) >= TURNS for knob in ("php_fpm.max_children", "apache.max_request_workers"))
