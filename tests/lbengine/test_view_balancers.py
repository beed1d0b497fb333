"""What the balancer's view makes of balancers that count no requests, or whose requests go another way."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from slackwater.core.config import parse
from slackwater.core.messages import Ask, Sample
from slackwater.lbengine.backends.ipvs.ipvs import LvsServer, LvsSnapshot
from slackwater.lbengine.balancer import Balancer, Server, Snapshot
from slackwater.lbengine.view.agreement import OTHER_WAY, REQUESTS
from slackwater.lbengine.view.packets import DIRECT, NO_TCP
from slackwater.lbengine.view.service import ASKED_EVERY_S, PoolWatcher
from tests.support.paths import PROGRAMS
from tests.support.real_haproxy import web_servers
from tests.support.watched_view import WITHIN_S, traffic_of

may_capture = pytest.mark.skipif(os.geteuid() != 0, reason="only root may capture")
SNIFFER = shutil.which("slackwater-sniffer", path=str(PROGRAMS))


class Played(Balancer):
    """A balancer that shows what it is told to."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.reads = 0

    def read(self) -> Snapshot:
        self.reads += 1
        return self.snapshot

    def set_weights(self, weights: Mapping[str, int]) -> None:
        raise AssertionError(weights)

    def count(self, more: int) -> None:
        """Each server got so many requests, or connections, more."""
        servers = [replace(server, requests=server.requests + more) for server in self.snapshot.servers]
        self.snapshot = replace(self.snapshot, servers=tuple(servers))


def ipvs(*servers: LvsServer) -> Played:
    return Played(
        LvsSnapshot(balance="wlc", weights_mean="concurrency", servers=servers, flags=frozenset(), persistent_s=None)
    )


def counting(*servers: Server) -> Played:
    return Played(Snapshot(balance="roundrobin", weights_mean="share", servers=servers))


@pytest.fixture
def ports() -> Iterator[list[int]]:
    with web_servers(2) as listening:
        yield listening


@dataclass
class View:
    """A view of a played balancer, and the Samples that it has made."""

    played: Played
    samples: list[Sample]

    def of(self, server: str) -> list[Sample]:
        return [sample for sample in self.samples if sample.node == server]

    def rates(self, server: str) -> list[float | None]:
        return [traffic_of(sample).rps for sample in self.of(server)]

    def requests(self, server: str) -> int:
        return round(sum((traffic_of(sample).rps or 0.0) * sample.period_s for sample in self.of(server)))

    def timed(self) -> int:
        """Number of Samples with response times."""
        return sum(bool(traffic_of(sample).rt_p95_ms) for sample in self.samples)

    async def until(self, happened: Callable[[], object], what: str) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not happened():
                await asyncio.sleep(0.01)
        assert happened(), what


@asynccontextmanager
async def viewing(played: Played, sniffer: str = "", *, twice: bool = False) -> AsyncIterator[View]:
    """`twice`: for each look at the packets the view looks twice, and asks the balancer the second time, when there is
    nothing new of the packets: as with a second sniffer."""
    settings = parse(
        f'[balancer_view]\nmode = "on"\nlook_s = 0.05\nsniffer = "{sniffer}"\n'
        '[[pool]]\nname = "web"\nbalancer = "lvs"\nservice = "-t 10.9.0.1:80"\n',
        "test",
    )
    view = View(played, [])

    async def keep(messages: Sequence[Sample | Ask]) -> None:
        view.samples += [message for message in messages if isinstance(message, Sample)]
        assert len(messages) == sum(isinstance(message, Sample) for message in messages), "no monitor was heard"

    looking = PoolWatcher(settings.pool[0], settings, keep, listens_s=0.0, quiet_s=0.05, balancer=played)
    if twice:
        look, turns = looking._look, itertools.cycle((False, True))

        async def look_twice() -> list[Sample | Ask]:
            return [*await look(), *await look()]

        looking._look = look_twice  # type: ignore[method-assign]
        looking._should_ask = lambda by_end: next(turns)  # type: ignore[method-assign]  # noqa: ARG005
    stop = asyncio.Event()
    task = asyncio.create_task(looking.run(stop))
    try:
        yield view
    finally:
        stop.set()
        await task


def ask(port: int, count: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN_S)
    try:
        for _ in range(count):
            connection.request("GET", "/")
            connection.getresponse().read()
    finally:
        connection.close()


@pytest.mark.parametrize(("is_tcp", "why"), [(True, DIRECT), (False, NO_TCP)])
def test_servers_whose_answers_do_not_pass_have_a_reason_and_no_rate(
    is_tcp: bool, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    played = ipvs(
        *(
            LvsServer(name=f"web{n}", weight=100, address=f"127.0.0.1:{n}", answers_pass=False, is_tcp=is_tcp)
            for n in (1, 2)
        )
    )

    async def play() -> View:
        async with viewing(played, SNIFFER or "slackwater-sniffer") as view:
            for _ in range(5):
                before = len(view.samples)
                played.count(50)
                await view.until(lambda: len(view.samples) > before, "a Sample")  # noqa: B023
        return view

    view = asyncio.run(play())
    assert all(sample.traffic is None for sample in view.samples), "a rate of zero would look like calm"
    assert {sample.absent["traffic"] for sample in view.samples} == {why}
    (line,) = [record.getMessage() for record in caplog.records if "nothing is known" in record.getMessage()]
    assert "web1, web2" in line
    assert why in line


@may_capture
def test_where_the_balancer_counts_connections_packets_alone_tell_and_it_is_asked_seldom(ports: list[int]) -> None:
    assert SNIFFER, "slackwater-sniffer is missing: run `make setup`"
    played = ipvs(*(LvsServer(name=f"web{n}", weight=100, address=f"127.0.0.1:{p}") for n, p in enumerate(ports)))

    async def play() -> View:
        async with viewing(played, SNIFFER or "") as view:
            await view.until(
                lambda: view.samples and view.samples[-1].traffic is not None, "the first look at the packets"
            )
            view.samples.clear()
            reads, begun_s = played.reads, time.monotonic()
            await asyncio.to_thread(ask, ports[0], 30)
            await view.until(lambda: view.requests("web0") == 30, "all requests")
            assert played.reads - reads <= 2 + (time.monotonic() - begun_s) / ASKED_EVERY_S
        return view

    view = asyncio.run(play())
    assert any(traffic_of(sample).rt_p95_ms for sample in view.of("web0"))
    assert set(view.rates("web1")) <= {0.0}


@may_capture
def test_requests_of_which_no_packet_is_seen_are_told_by_the_counters(ports: list[int]) -> None:
    assert SNIFFER, "slackwater-sniffer is missing: run `make setup`"
    played = counting(*(Server(name=f"web{n}", weight=100, address=f"127.0.0.1:{p}") for n, p in enumerate(ports)))

    async def play() -> View:
        async with viewing(played, SNIFFER or "") as view:
            async with asyncio.timeout(WITHIN_S):
                while not (view.samples and view.samples[-1].absent.get("traffic.times") == OTHER_WAY):
                    played.count(REQUESTS)
                    await asyncio.sleep(0.02)
        return view

    view = asyncio.run(play())
    assert any((traffic_of(sample).rps or 0.0) > 0.0 for sample in view.of("web0"))


@may_capture
def test_two_servers_at_one_address_have_rates_of_their_own(ports: list[int]) -> None:
    assert SNIFFER, "slackwater-sniffer is missing: run `make setup`"
    played = counting(*(Server(name=name, weight=100, address=f"127.0.0.1:{ports[0]}") for name in ("web0", "web1")))

    async def play() -> View:
        async with viewing(played, SNIFFER or "") as view:
            await view.until(lambda: view.samples and not view.samples[-1].absent.get("traffic.times"), "packets")
            for number in range(1, 7):
                await asyncio.to_thread(ask, ports[0], 2 * REQUESTS)
                played.count(REQUESTS)
                await view.until(lambda: view.requests("web1") >= number * REQUESTS, "its requests")  # noqa: B023
        return view

    view = asyncio.run(play())
    assert (view.requests("web0"), view.requests("web1")) == (6 * REQUESTS, 6 * REQUESTS)


@may_capture
def test_the_balancer_asked_between_two_looks_at_the_packets_counts_nothing_twice(ports: list[int]) -> None:
    assert SNIFFER, "slackwater-sniffer is missing: run `make setup`"
    played = counting(*(Server(name=f"web{n}", weight=100, address=f"127.0.0.1:{p}") for n, p in enumerate(ports)))

    async def play() -> View:
        async with viewing(played, SNIFFER or "", twice=True) as view:
            await view.until(lambda: view.samples and not view.samples[-1].absent.get("traffic.times"), "packets")

            async def requests(steps: int) -> None:
                for _ in range(steps):
                    for port in ports:
                        await asyncio.to_thread(ask, port, 2)
                    played.count(2)
                    await asyncio.sleep(0.005)
                reads = played.reads
                await view.until(lambda: played.reads > reads + 8, "more looks")

            await requests(REQUESTS)
            view.samples.clear()
            await requests(REQUESTS // 2)
        return view

    view = asyncio.run(play())
    assert (view.requests("web0"), view.requests("web1")) == (REQUESTS, REQUESTS)


@may_capture
def test_health_checks_are_no_requests_and_the_first_requests_after_them_are_seen_at_once(ports: list[int]) -> None:
    assert SNIFFER, "slackwater-sniffer is missing: run `make setup`"
    played = counting(Server(name="web0", weight=100, address=f"127.0.0.1:{ports[0]}"))

    async def play() -> View:
        async with viewing(played, SNIFFER or "") as view:
            await view.until(lambda: view.samples and not view.samples[-1].absent.get("traffic.times"), "packets")
            for number in range(1, 4):
                played.count(REQUESTS)
                await asyncio.to_thread(ask, ports[0], REQUESTS)
                await view.until(lambda: view.requests("web0") >= number * REQUESTS, "requests")  # noqa: B023
            reads = played.reads
            await view.until(lambda: played.reads >= reads + 3, "two looks at the counters without answers")
            view.samples.clear()
            for _ in range(5):
                await asyncio.to_thread(ask, ports[0], 1)
                looks = len(view.samples)
                await view.until(lambda: len(view.samples) >= looks + 2, "two looks after the check")  # noqa: B023
            assert (view.requests("web0"), view.timed()) == (0, 0)
            played.count(4)
            await asyncio.to_thread(ask, ports[0], 4)
            await view.until(lambda: view.requests("web0") == 4, "requests")
        return view

    view = asyncio.run(play())
    assert not any(sample.absent.get("traffic.times") for sample in view.samples)
