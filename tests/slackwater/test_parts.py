"""Messages that are too large for the broker, or cannot be written down: a Cycle goes in parts, the rest is said."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.core import messages
from slackwater.core.bus.bus import Bus
from slackwater.core.bus.config import MAX_PAYLOAD_BYTES
from slackwater.core.bus.parts import WholeCycles, payloads
from slackwater.core.messages import Cycle, MessageError, ServerState
from slackwater_lab.played_verdict import verdict
from tests.support.nats_process import IN_TIME_S, Server, until


def a_cycle(servers: int, last_known: int = 0, controller: str = "c1", at_s: float = 1.0) -> Cycle:
    def some(count: int) -> list[ServerState]:
        return [ServerState(f"web{n}", "up", n, 100, 100, why="w" * (n % 400)) for n in range(count)]

    cycle = Cycle(1, "web", at_s, "act", False, "roundrobin", "optimal", "web: unchanged", some(servers))
    return msgspec.structs.replace(cycle, last_known=some(last_known), controller=controller)


@given(st.integers(0, 80), st.integers(0, 80), st.integers(1500, 40_000))
def test_parts_fit_and_make_the_whole_again(servers: int, last_known: int, most_bytes: int) -> None:
    cycle = a_cycle(servers, last_known)
    sent = payloads(cycle, "a.b", most_bytes)
    assert max(map(len, sent)) <= most_bytes
    if len(messages.encode(cycle)) <= most_bytes:
        assert sent == [messages.encode(cycle)]
    whole: list[Cycle] = []
    reader = WholeCycles(whole.append)
    for payload in sent:
        assert not whole
        reader(messages.decode("cycle", payload))  # type: ignore[arg-type]  # it is one
    assert whole == [cycle]


def test_a_cycle_that_lacks_a_part_is_left_out_and_the_next_is_whole() -> None:
    def parts(controller: str, at_s: float) -> list[Cycle]:
        cycles = [
            messages.decode("cycle", payload) for payload in payloads(a_cycle(60, 0, controller, at_s), "a.b", 3000)
        ]
        assert len(cycles) == 3
        return cycles  # type: ignore[return-value]  # they are Cycles

    whole: list[Cycle] = []
    reader = WholeCycles(whole.append)
    old, torn, other, new = parts("c1", 1.0), parts("c1", 2.0), parts("c2", 2.0), parts("c1", 3.0)
    for part in (*old[:1], *torn[:1], *torn[2:], *other[:2], *new[1:], *new[:2], *other[2:], *new[2:]):
        reader(part)
    assert whole == [a_cycle(60, 0, "c2", 2.0), a_cycle(60, 0, "c1", 3.0)]


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        (verdict("n1", "calm", path=["x" * 9000]), r"\d+ bytes, expected at most 8000, the broker's `max_payload`"),
        (msgspec.structs.replace(a_cycle(3), sentence="x" * 9000), "server web0: .* do not fit"),
        (verdict("n1", "calm", path=["\ud800"]), "surrogates not allowed"),
    ],
)
def test_what_does_not_fit_or_cannot_be_written_is_refused(message: messages.Message, fault: str) -> None:
    with pytest.raises(MessageError, match=fault):
        payloads(message, "a.b", 8000)


def test_a_pool_of_thousands_arrives_whole_and_what_cannot_be_sent_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(tmp_path)
    server.start()

    async def run() -> None:
        sender, reader = await Bus.connect(server.url, "sender"), await Bus.connect(server.url, "reader")
        try:
            received: list[Any] = []
            await reader.subscribe("cycle", received.append, pool="web")
            await reader.flush(IN_TIME_S)
            for _ in range(2):
                await sender.publish(verdict("n1", "calm", path=["x" * MAX_PAYLOAD_BYTES]))
                await sender.publish(verdict("..", "calm"))
            cycle = a_cycle(3000)
            await sender.publish(cycle)
            await until(lambda: bool(received))
            assert received == [cycle]
        finally:
            await sender.close()
            await reader.close()

    try:
        with caplog.at_level(logging.WARNING):
            asyncio.run(run())
    finally:
        server.stop()
    complaints = [record.getMessage() for record in caplog.records if "not sent" in record.getMessage()]
    assert len(complaints) == 2
    assert complaints[0].startswith("bus: message on slackwater.verdict.web.n1 left out: it is not sent: 26")
    assert complaints[1].startswith(
        "bus: message on slackwater.verdict.web... left out: it is not sent: expected names"
    )
