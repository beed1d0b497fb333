"""The balancer's view beside a HAProxy that restarts, changes its servers, hangs or answers half.

Only the time in which it was silent is lost, and no figure is made up.
"""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from slackwater.lbengine.balancer import Server
from slackwater.lbengine.view import packets, service
from slackwater.lbengine.view.packets import Packets
from tests.support.asked_haproxy import asked
from tests.support.real_haproxy import (
    RealHAProxy,
    backend,
    haproxy_program,
    needs_haproxy,
    servers_of,
    until,
)
from tests.support.relayed_socket import relayed
from tests.support.watched_view import Watched, traffic_of, watching

NODES = ("host1", "host2", "third")
pytestmark = needs_haproxy


async def ask(watched: Watched, balancer: RealHAProxy, total: int) -> None:
    """30 requests, and waits until each node has had so many."""
    await asyncio.to_thread(balancer.request, 30)
    await watched.until(lambda: all(watched.answered(node) == total for node in NODES), f"{total} requests each")
    await watched.a_look()


def as_it_was(watched: Watched, total: int) -> None:
    """No figure that no request explains."""
    assert [watched.answered(node) for node in NODES] == [total] * len(NODES)
    assert all((traffic_of(sample).rps or 0.0) >= 0.0 for sample in watched.samples)


def test_a_haproxy_that_is_stopped_and_started_again(
    running: RealHAProxy, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "LBENGINE_TELLS_S", 0.0)

    async def play() -> None:
        watched = Watched(running)
        async with watching(watched):
            await watched.a_look()
            await ask(watched, running, 10)
            await asyncio.to_thread(running.stop)
            await watched.until(lambda: "no Samples from here" in caplog.text, "a word about it")
            program = haproxy_program()
            assert program is not None
            command = [program, "-W", "-db", "-f", str(running.folder / "haproxy.cfg")]
            running.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            await asyncio.to_thread(until, running._info, "HAProxy answers")
            await watched.a_look()
            await ask(watched, running, 20)
        as_it_was(watched, 20)
        assert caplog.text.count("answers again") == 1

    asyncio.run(play())


def test_servers_and_backends_that_are_numbered_anew_keep_their_names(running: RealHAProxy, ports: list[int]) -> None:
    lines = [line + f" id {50 - n}" for n, line in enumerate(servers_of(ports).splitlines())]
    others = backend(ports, name="before") + "backend web\n    balance roundrobin\n" + "\n".join(reversed(lines)) + "\n"

    async def play() -> None:
        watched = Watched(running)
        async with watching(watched):
            await watched.a_look()
            await ask(watched, running, 10)
            await asyncio.to_thread(running.reload, others)
            await watched.a_look()
            await ask(watched, running, 20)
        as_it_was(watched, 20)

    asyncio.run(play())


def test_a_server_that_comes_at_runtime_is_seen_and_one_that_goes_is_forgotten(
    running: RealHAProxy, ports: list[int]
) -> None:
    admin = Path(running.socket)

    async def play() -> None:
        watched = Watched(running)
        async with watching(watched):
            await watched.a_look()
            await ask(watched, running, 10)
            asked(admin, f"add server web/new 127.0.0.1:{ports[0]} weight 100")
            asked(admin, "set server web/new state ready")
            await watched.until(lambda: watched.of("new"), "a Sample of the new server")
            await asyncio.to_thread(running.request, 40)
            await watched.until(lambda: watched.answered("new") == 10, "its requests")
            asked(admin, "set server web/new state maint")
            await asyncio.to_thread(until, lambda: "deleted" in asked(admin, "del server web/new"), "it is gone")
            await watched.a_look()
            count = len(watched.of("new"))
            await watched.a_look()
            assert len(watched.of("new")) == count
        as_it_was(watched, 20)

    asyncio.run(play())


@pytest.mark.parametrize("shape", ["without-rows", "cut-rows", "hung-up"])
def test_half_a_table_is_no_figure(running: RealHAProxy, shape: str) -> None:
    def half(answer: bytes) -> bytes:
        if shape == "hung-up":
            return answer[: len(answer) // 2]
        lines = answer.split(b"\n")
        if shape == "cut-rows":
            return b"\n".join(line[: len(line) // 6] if line.startswith(b"web,host") else line for line in lines)
        return b"\n".join(line for line in lines if not line.startswith((b"web,host2", b"web,host3")))

    async def play() -> None:
        with relayed(running.folder / "relay.sock", running.socket) as relay:
            watched = Watched(running, socket=str(running.folder / "relay.sock"))
            async with watching(watched):
                await watched.a_look()
                await ask(watched, running, 10)
                spoilt = []
                relay.answer = lambda answer: spoilt.append(1) or half(answer)  # type: ignore[func-returns-value]
                await watched.until(lambda: len(spoilt) >= 3, "halves")
                relay.answer = lambda answer: answer
                await watched.a_look()
                await ask(watched, running, 20)
            as_it_was(watched, 20)

    asyncio.run(play())


def test_a_server_that_is_missing_for_a_moment_does_not_start_the_captures_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, starts = tmp_path / "sniffer", tmp_path / "starts"
    program.write_text(f"#!/bin/sh\necho start >> {starts}\nexec sleep 1000\n")
    program.chmod(0o755)
    first, second = (Server(name=f"host{n}", weight=1, address=f"127.0.0.{n}:80") for n in (1, 2))

    def started() -> int:
        return starts.read_text().count("start") if starts.exists() else 0

    async def play() -> None:
        watched = Packets(str(program), 0.1)
        try:
            for servers in ([first, second], [first], [first, second], []):
                await watched.watch(servers)
            async with asyncio.timeout(60.0):
                while not started():
                    await asyncio.sleep(0.01)
            assert len(watched._sniffers) == started() == 1
            monkeypatch.setattr(packets, "KEPT_S", 0.0)
            await watched.watch([])
            assert not watched._sniffers, "servers that have a monitor by now are not captured"
        finally:
            await watched.close()

    asyncio.run(play())
