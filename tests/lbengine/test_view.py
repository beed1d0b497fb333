"""The part that looks at servers from the balancer: a real HAProxy, real requests, the real sniffer."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.machine import kernel_id
from slackwater.core.messages import Sample, Traffic
from slackwater.lbengine.view import service
from slackwater.lbengine.view.service import IDLE_S, TOLD_FOR_S
from tests.support.certificates import certificates
from tests.support.paths import PROGRAMS
from tests.support.real_haproxy import RealHAProxy, backend, haproxy, needs_haproxy, servers_of, stopped
from tests.support.real_processes import free_port
from tests.support.served_site import Site, until
from tests.support.watched_view import WITHIN_S, Watched, traffic_of, watching

SNIFFER = shutil.which("slackwater-sniffer", path=str(PROGRAMS))
HOSTS = ("host1", "host2", "host3")
NODES = ("host1", "host2", "third")
pytestmark = needs_haproxy
may_capture = pytest.mark.skipif(os.geteuid() != 0, reason="only root may capture")


async def ask(balancer: RealHAProxy, count: int) -> None:
    await asyncio.to_thread(balancer.request, count)


@pytest.mark.usefixtures("haproxy_version")
def test_each_server_has_samples_with_its_requests(running: RealHAProxy) -> None:
    async def play() -> None:
        watched = Watched(running)
        async with watching(watched):
            await watched.a_look()
            await ask(running, 30)
            nodes = ("host1", "host2", "third")
            await watched.until(lambda: all(watched.answered(node) == 10 for node in nodes), "ten requests each")
            await watched.a_look()
        assert [watched.answered(node) for node in nodes] == [10, 10, 10]
        for node in nodes:
            samples = watched.of(node)
            assert [sample.seq for sample in samples] == list(range(len(samples)))
            assert {(sample.source, sample.pool) for sample in samples} == {("balancer", "web")}
            assert all(sample.absent["traffic.rt_p95_ms"] for sample in samples)

    asyncio.run(play())


def test_a_reload_loses_nothing_but_its_moment(running: RealHAProxy, ports: list[int]) -> None:
    async def play() -> None:
        watched = Watched(running)
        async with watching(watched):
            await watched.a_look()
            await ask(running, 30)
            await watched.until(lambda: watched.answered("host1") == 10, "ten requests")
            fewer = f"backend web\n    balance roundrobin\n{servers_of(ports[:2])}\n"
            await asyncio.to_thread(running.reload, fewer)
            await watched.a_look()
            await ask(running, 20)
            await watched.until(lambda: watched.answered("host1") == 20, "ten more")
            await watched.a_look()
        assert (watched.answered("host1"), watched.answered("host2"), watched.answered("third")) == (20, 20, 10)
        assert all((traffic_of(sample).rps or 0.0) >= 0.0 for sample in watched.samples)

    asyncio.run(play())


def test_while_the_balancer_is_silent_nothing_is_said_and_then_it_goes_on(
    running: RealHAProxy, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "LBENGINE_TELLS_S", 0.0)

    async def play() -> None:
        watched = Watched(running, timeout_s=0.2)
        async with watching(watched):
            await watched.a_look()
            with stopped(running.pid()):
                await watched.until(lambda: "did not answer" in caplog.text, "a word about it")
                count = len(watched.samples)
                await asyncio.sleep(0.3)
                assert len(watched.samples) == count
            await watched.a_look()
        assert caplog.text.count("did not answer") == 1
        assert "answers again" in caplog.text

    asyncio.run(play())


def test_a_node_with_a_monitor_has_no_samples_from_here(running: RealHAProxy) -> None:
    async def play() -> None:
        watched = Watched(running)
        async with watching(watched):
            await watched.a_look()
            watched.view.hear(Sample(1, "third", "web", 1.0, "boot", 0, 0.2))
            watched.view.hear(Sample(1, "host1", "web", 1.0, kernel_id(), 0, 0.2, source="balancer"))
            before = len(watched.of("third"))
            await watched.a_look()
        assert len(watched.of("third")) <= before + 1, "at most the one that was on its way"
        assert len(watched.of("host1")) > before

    asyncio.run(play())


def test_of_two_controllers_one_speaks_and_the_other_takes_over(running: RealHAProxy) -> None:
    async def play() -> None:
        watched = Watched(running)
        async with watching(watched):
            await watched.a_look()
            others = [Sample(1, node, "web", 1.0, "", 0, 0.2, next_within_s=60.0, source="balancer") for node in NODES]
            for other in others:
                watched.view.hear(other)
            before = len(watched.samples)
            reads = watched.view._counters
            await watched.until(lambda: watched.view._counters is not reads, "a look")
            await asyncio.sleep(0.3)
            assert len(watched.samples) <= before + len(HOSTS), "at most those that were on their way"
            for other in others:
                watched.view.hear(msgspec.structs.replace(other, next_within_s=0.001))
            await watched.a_look()

    asyncio.run(play())


def test_a_node_that_looks_like_another_controller_silences_itself_alone(running: RealHAProxy) -> None:
    async def play() -> None:
        watched = Watched(running)
        async with watching(watched):
            await watched.a_look()
            traffic = Traffic(rps=1e9)
            watched.view.hear(
                Sample(1, "host1", "web", 1.0, "", 0, 0.2, next_within_s=1e300, traffic=traffic, source="balancer")
            )
            before = [len(watched.of(node)) for node in NODES]
            await watched.until(lambda: len(watched.of("third")) >= before[2] + 3, "Samples of the others")
        assert len(watched.of("host2")) > before[1]
        assert len(watched.of("host1")) <= before[0] + 1, "at most the one that was on its way"

    asyncio.run(play())


def test_of_two_controllers_the_one_whose_balancer_has_requests_speaks(running: RealHAProxy) -> None:
    async def play() -> None:
        watched = Watched(running)
        async with watching(watched):
            await watched.a_look()
            idle = Sample(
                1, "host1", "web", 1.0, "", 0, 0.2, traffic=Traffic(rps=0.0), source="balancer", next_within_s=3600.0
            )
            await ask(running, 30)
            await watched.until(lambda: watched.answered("host1") == 10, "ten requests")
            for node in NODES:
                watched.view.hear(msgspec.structs.replace(idle, node=node))
            await watched.a_look()

    asyncio.run(play())


def test_a_standby_leaves_the_word_to_the_active_controller(running: RealHAProxy) -> None:
    async def play() -> None:
        watched = Watched(running)
        async with watching(watched):
            await watched.a_look()
            behind = "~"  # its boot id sorts behind ours
            active = Sample(1, "host1", "web", 1.0, behind, 0, 0.2, traffic=Traffic(rps=9.0), source="balancer")
            for node in NODES:
                watched.view.hear(msgspec.structs.replace(active, node=node, next_within_s=60.0))
            before, counters = len(watched.samples), watched.view._counters
            await watched.until(lambda: watched.view._counters is not counters, "a look")
            await asyncio.sleep(0.3)
            assert len(watched.samples) <= before + len(HOSTS), "at most those that were on their way"

    asyncio.run(play())


@pytest.mark.parametrize(("sniffer", "more"), [("", "tells_monitors = true\n"), (SNIFFER or "", "")])
def test_where_monitors_have_nothing_to_be_told_the_balancer_is_hardly_read(
    running: RealHAProxy, sniffer: str, more: str
) -> None:
    async def play() -> None:
        watched = Watched(running, sniffer, more=more)
        for node in ("host1", "host2", "third"):
            watched.view.hear(Sample(1, node, "web", 1.0, "boot", 0, 0.2))
        async with watching(watched):
            await watched.until(lambda: watched.view._least_pause_s == IDLE_S, "a rest")
        assert not watched.samples
        assert not watched.asks

    asyncio.run(play())


@may_capture
def test_packets_tell_the_times_of_requests(running: RealHAProxy) -> None:
    assert SNIFFER, "slackwater-sniffer is missing: run `make setup`"

    async def play() -> None:
        watched = Watched(running, SNIFFER or "")

        def timed(node: str) -> bool:
            return any(traffic_of(sample).rt_p95_ms for sample in watched.of(node))

        async with watching(watched):
            async with asyncio.timeout(WITHIN_S):
                while not all(timed(node) for node in ("host1", "host2", "third")):
                    await ask(running, 6)
            await watched.a_look()
        last = watched.of("host1")[-1]
        assert "traffic.rt_p95_ms" not in last.absent, last.absent
        assert traffic_of(last).oldest_unanswered_ms is not None
        counted = [times for sample in watched.of("third") if (times := traffic_of(sample).times) is not None]
        assert {times.server for times in counted} == {"host3"}, "the balancer's name of it, not the node's"
        assert all(times.sum_s > 0.0 and times.counts for times in counted)

    asyncio.run(play())


@may_capture
def test_a_monitor_is_told_of_the_requests_that_packets_show_in_place_of_samples(
    running: RealHAProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        watched = Watched(running, SNIFFER or "", more="tells_monitors = true\n")
        heard = Sample(1, "third", "web", 1.0, "boot", 0, 0.2)
        watched.view.hear(heard)

        def is_told() -> bool:
            return any(ask.traffic is not None and ask.traffic.rt_p95_ms for ask in watched.asks)

        def is_idle() -> bool:
            traffic = watched.asks[-1].traffic
            return traffic is not None and traffic.rps == 0.0

        async with watching(watched), asyncio.timeout(WITHIN_S):
            while not is_told():
                await ask(running, 30)
                watched.view.hear(heard)
            await watched.until(is_idle, "the requests are over")
            watched.view.hear(heard)
            monkeypatch.setattr(service, "BUSY_WITHIN_S", 0.0)  # as if its last request were long ago
            idle = len(watched.asks)
            await watched.new_counters()
            await watched.a_look()
            assert len(watched.asks) <= idle + 1, "at most the one that was on its way: this may be a standby"
        assert {ask.node for ask in watched.asks} == {"third"}
        assert not watched.of("third")
        assert watched.of("host1")
        for ask_ in watched.asks:
            assert (ask_.lease_s, ask_.pool) == (TOLD_FOR_S, "web")
            assert ask_.period_s
            assert ask_.traffic is not None
            assert ask_.traffic.times is None
        shown = sum((ask_.traffic.rps or 0.0) * (ask_.period_s or 0.0) for ask_ in watched.asks if ask_.traffic)
        assert shown >= 1.0

    asyncio.run(play())


@may_capture
def test_over_tls_turns_count_once_they_are_as_many_as_the_requests(tmp_path: Path, ports: list[int]) -> None:
    assert SNIFFER, "slackwater-sniffer is missing: run `make setup`"
    certificates(tmp_path)
    (tmp_path / "both.pem").write_text("".join((tmp_path / f"server.{end}").read_text() for end in ("pem", "key")))
    encrypted = [free_port() for _ in ports]
    fronts = "\n".join(
        f"listen tls{n}\n    bind 127.0.0.1:{mine} ssl crt {tmp_path}/both.pem\n    server it 127.0.0.1:{port}"
        for n, (mine, port) in enumerate(zip(encrypted, ports, strict=True))
    )

    async def play(running: RealHAProxy) -> None:
        watched = Watched(running, SNIFFER or "")
        async with watching(watched):
            async with asyncio.timeout(WITHIN_S):
                while not any(traffic_of(sample).rt_p95_ms for sample in watched.of("host1")):
                    await ask(running, 60)
        reasons = [sample.absent.get("traffic.rt_p95_ms", "") for sample in watched.of("host1")]
        assert any("are encrypted" in reason for reason in reasons)
        assert all(
            traffic_of(sample).rt_p95_ms is None
            for sample in watched.of("host1")
            if sample.absent.get("traffic.rt_p95_ms")
        )

    with haproxy(backend(encrypted, options="weight 100 ssl verify none") + fronts + "\n") as running:
        asyncio.run(play(running))


def test_without_a_sniffer_that_runs_the_reason_is_in_each_sample(running: RealHAProxy, tmp_path: Path) -> None:
    refusing = tmp_path / "refusing"
    refusing.write_text("#!/bin/sh\necho 'lo: CAP_NET_RAW is missing' >&2\nexit 1\n")
    refusing.chmod(0o755)

    async def play(program: str, reason: str) -> None:
        watched = Watched(running, program)
        async with watching(watched):
            await watched.until(
                lambda: watched.samples and reason in watched.samples[-1].absent["traffic.rt_p95_ms"], reason
            )

    asyncio.run(play(str(refusing), "CAP_NET_RAW is missing"))
    asyncio.run(play(str(tmp_path / "not-there"), "No such file"))


def test_a_controller_that_is_told_to_has_samples_in_its_journal(tmp_path: Path, running: RealHAProxy) -> None:
    site = Site(tmp_path, running)
    try:
        site.write(view="on")
        site.replace("[balancer_view]\n", '[balancer_view]\nsniffer = ""\n')
        site.serve()
        site.wait_for_cycles()

        def seen() -> bool:
            with Journal.open(journal_path(site.state), read_only=True) as journal:
                return set(journal.received("sample", "web")) == set(HOSTS)

        until(seen, "Samples of all servers in the journal")
        assert "balancer_view" in site.children()
        lines = {line["about"]: line for line in json.loads(site.cli("check", "--json").stdout)}
        assert lines["node host1 of pool web"]["state"] == "ok"
        assert lines["monitors of pool web"]["state"] == "addition"
        assert site.cli("bus", "node", "add", "web", "host1").returncode == 0
        lines = {line["about"]: line for line in json.loads(site.cli("check", "--json").stdout)}
        assert "its monitor is silent" in lines["node host1 of pool web"]["text"]
        assert lines["monitors of pool web"]["text"].startswith("2 of 3 servers have none")
    finally:
        site.clean()
