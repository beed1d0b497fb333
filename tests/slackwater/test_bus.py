"""The bus, on a real nats-server."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partialmethod
from typing import Any

import msgspec
import pytest
from nats.aio.client import Client
from nats.aio.transport import TcpTransport

from slackwater.core.bus.bus import CHANGES_PER_S, Bus, BusError, subject_of, without_password
from slackwater.core.messages import Change, Cycle, Sample, Verdict, encode
from tests.support.nats_process import IN_TIME_S, Server, until
from tests.support.real_processes import free_address


def sample(node: str, pool: str = "web", seq: int = 0) -> Sample:
    return Sample(1, node, pool, 1.0, "boot", seq, 0.2)


def verdict(node: str, pool: str = "web") -> Verdict:
    return Verdict(1, node, pool, 1.0, "calm", 1.0, 0.0, [], "start")


def change(number: int) -> Change:
    return Change(1, f"id{number}", "web", 1.0, "weight", "web1", 100, 0, "noise", "test", True)


def of_node(node: str, what: str = "cpu.share", **others: Any) -> Change:
    """A Change of a node's wsengine."""
    made = Change(1, f"of-{node}", "web", 1.0, what, node, 1, 2, "ordered", "wsengine", True, cause="ordered")
    return msgspec.structs.replace(made, **others)


def with_two(url: str, body: Callable[[Bus, Bus], Awaitable[None]]) -> None:
    """Runs `body` with two connections."""

    async def run() -> None:
        first, second = [await Bus.connect(url, name, wait_s=IN_TIME_S) for name in ("first", "second")]
        try:
            await body(first, second)
        finally:
            await first.close()
            await second.close()

    asyncio.run(run())


async def asked(asker: Bus, question: dict[str, Any]) -> dict[str, Any]:
    """The answer, however slow the machine is."""
    return await asker.request("slackwater.control.web", question, timeout_s=IN_TIME_S)


def test_messages_reach_those_who_asked_for_them(server: Server) -> None:
    async def body(sender: Bus, reader: Bus) -> None:
        of_web: list[Any] = []
        of_all: list[Any] = []
        cycles: list[Any] = []
        await reader.subscribe("sample", of_web.append, pool="web")
        await reader.subscribe("sample", of_all.append)
        await reader.subscribe("cycle", cycles.append, pool="web")
        await reader.flush(IN_TIME_S)
        cycle = Cycle(1, "web", 1.0, "act", False, "roundrobin", "optimal", "web: unchanged", [])
        for message in (
            sample("n1", "other"),
            sample("n1", "web.example"),
            verdict("n1"),
            sample("a.b"),
            sample("n1"),
            cycle,
        ):
            await sender.publish(message)
        await until(lambda: len(of_web) >= 2 and len(of_all) == 4 and len(cycles) == 1)
        assert of_web == [sample("a.b"), sample("n1")]  # not those of the pool `web.example`
        assert cycles == [cycle]

    with_two(server.url, body)


def test_unreadable_or_wrongly_addressed_messages_are_left_out(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(sender: Bus, reader: Bus) -> None:
        received: list[Any] = []
        await reader.subscribe("sample", received.append, pool="web")
        await reader.flush(IN_TIME_S)
        for _ in range(3):
            await sender._client.publish("slackwater.sample.web.n1", b'{"v": "one"}')
        good = sample("n1")
        await sender._client.publish("slackwater.sample.web.n2", json.dumps(_plain(good)).encode())
        await sender.publish(good)
        await until(lambda: bool(received))
        assert received == [good]

    with caplog.at_level(logging.WARNING):
        with_two(server.url, body)
    complaints = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert len(complaints) == 2  # not one a message
    assert "slackwater.sample.web.n1" in complaints[0]
    assert "$.v" in complaints[0]
    assert complaints[1].endswith(
        "message on slackwater.sample.web.n2 left out: its fields belong to slackwater.sample.web.n1"
    )


def _plain(message: Sample) -> dict[str, object]:
    return {key: getattr(message, key) for key in ("v", "node", "pool", "time_unix_s", "boot_id", "seq", "period_s")}


def test_samples_that_are_sent_together_arrive_one_by_one(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    async def body(sender: Bus, reader: Bus) -> None:
        received: list[Any] = []
        await reader.subscribe("sample", received.append, pool="web")
        await reader.flush(IN_TIME_S)
        together = [sample("n1"), sample("no..subject"), sample("n2"), sample("n1", seq=1)]
        await sender.publish_together(together)
        await until(lambda: len(received) == 3)
        assert received == [message for message in together if message.node != "no..subject"]

    with caplog.at_level(logging.WARNING):
        with_two(server.url, body)
    assert "slackwater.sample.web.no..subject left out: it is not sent" in caplog.text


def test_handler_that_fails_does_not_end_the_subscription(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    async def body(sender: Bus, reader: Bus) -> None:
        received: list[int] = []

        def handle(message: Sample) -> None:
            if message.seq == 0:
                raise RuntimeError("a fault in the handler")
            received.append(message.seq)

        await reader.subscribe("sample", handle)
        await reader.flush(IN_TIME_S)
        for _ in range(5):
            await sender.publish(sample("n1", seq=0))
        await sender.publish(sample("n1", seq=1))
        await until(lambda: received == [1])

    with_two(server.url, body)
    assert caplog.text.count("a fault in the handler") == 1  # not one a message


def test_no_server_is_a_clear_error() -> None:
    url = f"nats://{free_address()}"
    with pytest.raises(BusError, match=rf"no NATS at {url} \(.*refused|no NATS at {url} \(.*Connect call failed"):
        asyncio.run(Bus.connect(url, "test", wait_s=3.0))  # long enough for one attempt to be refused


def test_password_is_never_shown() -> None:
    assert without_password("nats://me:secret@host:1") == "nats://***@host:1"
    assert without_password("nats://host:1") == "nats://host:1"
    with pytest.raises(BusError) as error:
        asyncio.run(Bus.connect(f"nats://me:secret@{free_address()}", "test", wait_s=0.3))
    assert "secret" not in str(error.value)


def test_question_and_answer(server: Server) -> None:
    async def body(asker: Bus, answerer: Bus) -> None:
        async def handle(question: dict[str, Any]) -> dict[str, Any]:
            if question["action"] == "jump":
                raise ValueError("cannot jump")
            return {"sentence": f"did {question['action']}"}

        await answerer.serve("slackwater.control.web", handle)
        await answerer.flush(IN_TIME_S)
        assert await asked(asker, {"action": "pause"}) == {"sentence": "did pause"}
        assert await asked(asker, {"action": "jump"}) == {"error": "cannot jump"}
        reply = await asker._client.request("slackwater.control.web", b"[]", timeout=IN_TIME_S)
        assert json.loads(reply.data) == {"error": "expected a JSON object, got list"}
        reply = await asker._client.request("slackwater.control.web", b"[" * 20_000, timeout=IN_TIME_S)
        assert "nested too deeply" in json.loads(reply.data)["error"]

    with_two(server.url, body)


def test_asking_where_nobody_answers_is_a_clear_error(server: Server) -> None:
    async def body(asker: Bus, silent: Bus) -> None:
        with pytest.raises(BusError, match=r"no answer on slackwater\.control\.web .*is `slackwater serve` running"):
            await asked(asker, {})

        async def say_nothing(_: object) -> None:
            return

        await silent._client.subscribe("slackwater.control.web", cb=say_nothing)
        await silent.flush(IN_TIME_S)
        with pytest.raises(BusError, match=r"no answer on slackwater\.control\.web .*within 0\.2 s"):
            await asker.request("slackwater.control.web", {}, timeout_s=0.2)

    with_two(server.url, body)


def test_answer_that_is_no_json_object_is_a_clear_error(server: Server) -> None:
    async def body(asker: Bus, other: Bus) -> None:
        async def babble(raw: Any) -> None:
            await raw.respond(b"hello")

        await other._client.subscribe("slackwater.control.web", cb=babble)
        await other.flush(IN_TIME_S)
        with pytest.raises(BusError, match="is no JSON object"):
            await asked(asker, {})

    with_two(server.url, body)


def test_bus_survives_a_restart_of_the_server(server: Server) -> None:
    """What was measured meanwhile does not come afterwards: it would be taken for news."""

    async def body(sender: Bus, reader: Bus) -> None:
        samples: list[int] = []
        await reader.subscribe("sample", lambda message: samples.append(message.seq))
        await reader.flush(IN_TIME_S)
        await sender.publish(sample("n1", seq=1))
        await until(lambda: samples == [1])
        server.stop()
        await until(lambda: not sender.connected and not reader.connected)
        await sender.publish(sample("n1", seq=2))
        server.start()
        await until(lambda: sender.connected and reader.connected)
        # The reader subscribes anew: what comes in that moment may be lost.
        async with asyncio.timeout(IN_TIME_S):
            for seq in itertools.count(3):
                await sender.publish(sample("n1", seq=seq))
                await asyncio.sleep(0.05)
                if len(samples) > 1:
                    break
        assert 2 not in samples

    with_two(server.url, body)


def test_change_made_while_the_server_is_away_is_sent_later(server: Server) -> None:
    async def body(sender: Bus, reader: Bus) -> None:
        server.stop()
        await until(lambda: not sender.connected and not reader.connected)
        await sender.publish(change(1))
        waiting_bytes = sender._client.pending_data_size
        await sender.publish(sample("n1"))
        assert sender._client.pending_data_size == waiting_bytes > 0
        server.start()
        await until(lambda: sender.connected and sender._client.pending_data_size == 0)

    with_two(server.url, body)


def test_connection_whose_reconnecting_misses_its_cancellation_is_closed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.11's `wait_for` does that where the server refuses in that moment."""
    attempt = asyncio.Event()

    async def refused_at_the_cancellation(*_: object, **__: object) -> None:
        attempt.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            monkeypatch.undo()
            raise ConnectionRefusedError from None

    async def run() -> None:
        bus = await Bus.connect(server.url, "reader", wait_s=IN_TIME_S)
        monkeypatch.setattr(TcpTransport, "connect", refused_at_the_cancellation)
        server.stop()
        await attempt.wait()
        await bus.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_a_stream_that_was_closed_under_it_is_no_fault_of_its_closing(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*_: object) -> None:
        raise AttributeError("'NoneType' object has no attribute '_write_appdata'")

    async def run() -> None:
        bus = await Bus.connect(server.url, "closing", wait_s=IN_TIME_S)
        with monkeypatch.context() as patched:
            patched.setattr(TcpTransport, "writelines", closed)
            await bus._client.publish("slackwater.test", b"pending")
            await bus.close()

    asyncio.run(run())


def test_drained_though_the_server_answers_no_more(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Sample] = []

    async def body(sender: Bus, reader: Bus) -> None:
        # So long nats-py's own drain would wait.
        monkeypatch.setattr(Client, "flush", partialmethod(Client.flush, timeout=10 * IN_TIME_S))
        reader._client.options["drain_timeout"] = 10 * IN_TIME_S
        await reader.subscribe("sample", heard.append)
        await reader.flush(IN_TIME_S)
        await sender.publish(sample("n1"))
        await until(lambda: bool(heard))
        with server.paused():
            await reader.drain()

    with_two(server.url, body)


def test_subjects() -> None:
    assert subject_of(sample("a.b")) == "slackwater.sample.web.a.b"
    assert subject_of(change(1)) == "slackwater.controller-change.web"
    assert subject_of(of_node("web1")) == "slackwater.change.web.web1"


@pytest.mark.parametrize(
    "forged",
    [
        of_node("web2"),
        of_node("web1", by="anna"),
        of_node("web1", by="lbengine", what="weight"),
        of_node("web1", what="outcome", follows="id1"),
        of_node("web1", what="order cpu.share"),
        of_node("web1", pool="api"),
        of_node("web1", time_unix_s=1e300),
        of_node("web1", time_unix_s=-1.0),
        of_node("web1", why="x" * 2001),
        of_node("web1", id="x" * 201),
        of_node("web1", after=2**63),
        of_node("web1", why="\U0001f30a" * 2000, after="\U0001f30a" * 2000),
    ],
    ids=lambda forged: (
        f"{forged.pool}-{forged.target}-{forged.by}-{forged.what}-{len(forged.why)}-{forged.time_unix_s:g}"
    ),
)
def test_what_a_node_says_of_others_or_beyond_the_limits_is_left_out(server: Server, forged: Change) -> None:
    async def body(node: Bus, reader: Bus) -> None:
        received: list[Change] = []
        await reader.subscribe("change", received.append, pool="web")
        await reader.flush(IN_TIME_S)
        await node._client.publish("slackwater.change.web.web1", encode(forged))
        await node._client.publish("slackwater.change.web.web1", encode(of_node("web1")))
        await until(lambda: bool(received))
        assert received == [of_node("web1")]

    with_two(server.url, body)


def test_a_nodes_change_was_made_at_the_latest_now(server: Server) -> None:
    async def body(node: Bus, reader: Bus) -> None:
        received: list[Change] = []
        await reader.subscribe("change", received.append)
        await reader.flush(IN_TIME_S)
        began_unix_s = time.time()
        await node.publish(of_node("web1", time_unix_s=began_unix_s + 86400.0))
        await node.publish(of_node("web2", time_unix_s=began_unix_s - 86400.0))
        await until(lambda: len(received) == 2)
        assert began_unix_s <= received[0].time_unix_s <= time.time()
        assert received[1].time_unix_s == began_unix_s - 86400.0, "one that waited for the bus keeps its time"

    with_two(server.url, body)


def test_of_one_nodes_changes_only_some_a_second_are_heard(server: Server) -> None:
    """Valid ones, each with an id of its own."""

    async def body(node: Bus, reader: Bus) -> None:
        received: Counter[str] = Counter()
        await reader.subscribe("change", lambda made: received.update([made.target]), pool="web")
        await reader.flush(IN_TIME_S)
        began_s = time.monotonic()
        for number in range(3000):
            await node.publish(of_node("web1", id=f"flood-{number}"))
        await node.flush(IN_TIME_S)
        await until(lambda: received["web1"] >= CHANGES_PER_S)
        while not received["web2"]:  # as a wsengine does until the server has it
            await node.publish(of_node("web2"))
            await asyncio.sleep(0.05)
        await reader.flush(IN_TIME_S)
        assert received["web1"] <= CHANGES_PER_S * (2 + time.monotonic() - began_s)

    with_two(server.url, body)
