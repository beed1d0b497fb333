"""50 retunes of real Apaches and php-fpms under load, behind a real HAProxy: not one request fails or is cut.

A wsengine is killed on the way, and what is still turned at the end runs out with its leases, without a drain.
"""

from __future__ import annotations

import asyncio
import csv
import io
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from slackwater.core.bus.bus import Bus
from slackwater.core.journal.journal import Journal
from slackwater.core.machine import controller_id
from slackwater.core.messages import Change, Cycle
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.orders.access import BusAccess
from slackwater.orders.knobs import Value
from slackwater.orders.signing import Signer
from slackwater.retune.drain import drain_and_apply
from slackwater.retune.node import BY
from slackwater_lab.cluster.bus import POOL, SITE
from slackwater_lab.cluster.controller import Controller
from slackwater_lab.cluster.hosts import Host
from slackwater_lab.cluster.lab import Lab, LabSettings
from slackwater_lab.cluster.load import Demand
from slackwater_lab.cluster.paths import LAB_DIR, program
from slackwater_lab.cluster.retunable import KEY_FILE, WSENGINE, make_keys, start_wsengine, start_wsengines
from slackwater_lab.cluster.traces import traces
from tests.support.real_lab import eventually, needs_lab
from tests.support.steady_load import SteadyLoad

pytestmark = [pytest.mark.lab, needs_lab, pytest.mark.slow, pytest.mark.timeout(900)]
TURNS = 51
"""Each turns Apache and php-fpm of one host, so that either is retuned more than 50 times."""
KILLED_BEFORE = 6
"""The turn before which the first host's wsengine is killed: it holds both knobs then."""
LEASE_S = 40.0
BACK_WITHIN_S = 10.0
"""After the end of a lease."""
WORKERS, CHILDREN = "apache.max_request_workers", "php_fpm.max_children"
KNOBS = {
    "php_fpm": {"max_children": "[1, 64]"},
    "apache": {"max_request_workers": "[64, 512]", "keepalive_timeout": "[1, 120]"},
}
DRAINED, CRASHED, RAN_OUT = "drained retunes", "a wsengine's crash", "ends of leases"
WAITS_MS = (5, 5, 5, 5, 20, 20, 100, 100, 500, 2000)
WAIT_PHP = "<?php usleep(1000 * (int) $_GET['ms']); echo '<html>waited</html>';\n"


class Listener:
    """It stands in a pool's place, and only keeps what came."""

    def __init__(self) -> None:
        self.cycle: Cycle | None = None
        self.changes: list[Change] = []

    def see(self, message: Any) -> None:
        if isinstance(message, Cycle):
            self.cycle = message
        elif isinstance(message, Change) and all(message.id != known.id for known in self.changes):
            self.changes.append(message)  # one may come twice

    def has_full_weights(self) -> bool:
        """On a busy machine a server can look slow; while its weight is lowered, few others may be drained."""
        return self.cycle is not None and all(server.weight >= server.full_weight for server in self.cycle.servers)

    def done(self, why: str = "", target: str = "") -> list[Change]:
        """What wsengines did, with a reason that begins so."""
        return [
            change
            for change in self.changes
            if change.by == "wsengine"
            and change.applied
            and change.why.startswith(why)
            and target in ("", change.target)
        ]


@dataclass
class Story:
    """What was turned, and what came of it."""

    listener: Listener = field(default_factory=Listener)
    carried_out: Counter[str] = field(default_factory=Counter)
    """Orders by knob that a wsengine answered with a Change."""
    held: dict[str, dict[str, str]] = field(default_factory=dict)
    """Host -> knob -> the Order by which it is turned now."""
    sent_again: Counter[str] = field(default_factory=Counter)
    """Requests that the balancer sent to a server again, by what was done meanwhile."""

    def late_s(self) -> dict[str, tuple[str, float]]:
        """Of each Order whose lease ran out: what came back, and how long after the lease's end."""
        sent_s = {change.id: change.time_unix_s for change in self.listener.changes if change.by == "retune"}
        return {
            change.follows: (
                f"{change.what} of {change.target}",
                change.time_unix_s - (sent_s[change.follows] + LEASE_S),
            )
            for change in self.listener.done("put back: the lease")
        }


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    if remains := traces():
        pytest.skip(f"a lab is up or was left behind: {remains}")
    mpm, haproxy = request.param
    with Lab(LabSettings(php_children=8, retunable=True, mpm=mpm, haproxy=haproxy)) as lab:
        for host in lab.hosts:
            (host.folder / "events/wait.php").write_text(WAIT_PHP)
        make_keys()
        controller = Controller(lab, "act")
        controller.start()
        start_wsengines(lab, POOL, KNOBS)
        for host in lab.hosts:
            eventually(f"the wsengine of {host.name} listens", lambda host=host: listens(host), 30.0)  # type: ignore[misc]
        yield lab


def listens(host: Host, times: int = 1) -> bool:
    return (host.folder / "wsengine.log").read_text().count(": connected") >= times


def values(number: int) -> dict[str, Value]:
    """What the turn of this number asks for: another value each time, and now and then all is given back."""
    if number % 4 == 3:
        return {CHILDREN: "baseline", WORKERS: "baseline"}
    return {CHILDREN: 9 + number % 16, WORKERS: 64 * (3 + number % 4)}


def restarts(lab: Lab) -> Counter[str]:
    """What the servers say themselves: Apache's generation, and the reloads in php-fpm's log, of all hosts."""
    counts: Counter[str] = Counter()
    for host in lab.hosts:
        with urllib.request.urlopen(f"http://{host.address}/server-status?auto", timeout=10) as answer:
            lines = dict(line.split(": ", 1) for line in answer.read().decode().splitlines() if ": " in line)
        counts[WORKERS] += int(lines["ParentServerMPMGeneration"])
        counts[CHILDREN] += (host.folder / "php-fpm.log").read_text().count("Reloading in progress")
    return counts


def sent_again(lab: Lab) -> int:
    """Requests so far that HAProxy had to send again."""
    rows = csv.DictReader(io.StringIO(lab.balancer.ask("show stat").removeprefix("# ")))
    names = {host.name for host in lab.hosts}
    return sum(int(row["wretr"]) for row in rows if row["pxname"] == POOL and row["svname"] in names)


async def kill_and_start(lab: Lab, host: Host, site: BusAccess, story: Story) -> None:
    """A crash of a wsengine: its next start puts back what it held, under load and without a drain."""
    engine = next(program for program in lab.programs if program.name == f"{WSENGINE} of {host.name}")
    engine.signal(signal.SIGKILL)
    engine.stop()
    lab.programs.remove(engine)
    begin_s, why = time.monotonic(), "put back: the last run did not end well"
    start_wsengine(lab, host)

    def back() -> bool:
        return {change.what for change in story.listener.done(why, host.name)} >= story.held[host.name].keys()

    assert await site.wait(back, LEASE_S), f"not put back: {story.held[host.name]}"
    print(f"wsengine of {host.name} killed: put back {time.monotonic() - begin_s:.1f} s after it was started again")
    story.held[host.name].clear()
    assert await site.wait(lambda: listens(host, 2), LEASE_S), "it listens again"


async def retune(lab: Lab, folder: Path, turns: int) -> Story:
    """One host after the other; fails when a wsengine refuses."""
    pool = HAProxyPool(name=POOL, backend="web", socket=str(lab.balancer.admin_socket), mode="act")
    story = Story(held={host.name: {} for host in lab.hosts})
    bus = await Bus.connect(SITE.controller_bus, "a-test")
    with Journal.open(folder / "journal.sqlite") as journal:
        site = BusAccess(pool, LEASE_S, bus, journal, Signer.load(KEY_FILE), controller_id(SITE.state_dir), by=BY)
        site.pool = story.listener  # type: ignore[assignment]
        for kind in ("cycle", "change"):
            await bus.subscribe(kind, site.take, pool=POOL)
        assert await site.wait(lambda: site.cycles() > 0, LEASE_S), "lbengine drives the pool"
        counted = sent_again(lab)

        def count(cause: str) -> None:
            nonlocal counted
            story.sent_again[cause] += (now := sent_again(lab)) - counted
            counted = now

        for number in range(turns):
            host = lab.hosts[number % len(lab.hosts)]
            if number == KILLED_BEFORE:
                assert story.held[host.name].keys() == {CHILDREN, WORKERS}
                count(DRAINED)
                await kill_and_start(lab, host, site, story)
                count(CRASHED)
            held = story.held[host.name]
            wanted = values(number // len(lab.hosts))
            wanted = {knob: value for knob, value in wanted.items() if value != "baseline" or knob in held}
            assert await site.wait(story.listener.has_full_weights, LEASE_S), f"turn {number}: all weights are full"
            outcome = await drain_and_apply(site, host.name, wanted, dict.fromkeys(wanted, "a test"), 10.0)
            assert not outcome.trouble, f"turn {number} of {host.name}: {outcome.trouble}"
            for knob, change in outcome.changes.items():
                assert change.applied, f"turn {number}: {change.why}"
                story.carried_out[knob] += 1
                held.pop(knob, None)
                if wanted[knob] != "baseline":
                    held[knob] = change.follows
        count(DRAINED)
        # What is still turned runs out with its lease, without a drain, under the same load.
        left = {order for knobs in story.held.values() for order in knobs.values()}
        within_s = LEASE_S + 2 * BACK_WITHIN_S
        assert await site.wait(lambda: story.late_s().keys() >= left, within_s), f"not back: {story.held}"
        count(RAN_OUT)
    await bus.close()
    return story


@pytest.mark.parametrize(
    ("lab", "turns"),
    [
        *((("event", haproxy), TURNS) for haproxy in ("haproxy", "haproxy-3", "haproxy-3.2")),
        (("prefork", "haproxy"), KILLED_BEFORE + 3),
    ],
    indirect=["lab"],
)
def test_no_request_fails_or_is_cut_over_50_retunes_of_apache_and_php_fpm(lab: Lab, tmp_path: Path, turns: int) -> None:
    urls = [f"{lab.balancer.url}/wait.php?ms={ms}" for ms in WAITS_MS]
    loads = [
        SteadyLoad(name, lab.in_front([program("oha")]), LAB_DIR, urls, demand)
        for name, demand in (
            ("open loop, 15 requests/s", Demand(rate_rps=15.0)),
            ("closed loop, 8 keep-alive clients", Demand(clients=8)),
        )
    ]
    with loads[0], loads[1]:
        story = asyncio.run(retune(lab, tmp_path, turns))
        counts = {
            "Orders that were carried out": story.carried_out,
            "Changes of the wsengines": Counter(change.what for change in story.listener.done()),
            "restarts and reloads that the servers tell of": restarts(lab),
        }
    for load in loads:
        print(load.describe())
    for counted, count in counts.items():
        print(f"{counted}: {dict(sorted(count.items()))}, {count.total()} in all")
    print("sent again by HAProxy:", ", ".join(f"{cause} {count}" for cause, count in story.sent_again.items()))
    late = story.late_s().values()
    print("back after the end of the lease:", ", ".join(f"{knob} {late_s:.1f} s" for knob, late_s in late))
    for load in loads:
        assert load.requests > 100
        assert load.failed == []
    assert story.sent_again[DRAINED] == 0, "nothing is in flight on a server that is drained"
    assert all(count[knob] >= turns for count in counts.values() for knob in (WORKERS, CHILDREN))
    assert max(late_s for _, late_s in late) <= BACK_WITHIN_S
