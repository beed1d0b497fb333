"""One sender that floods the bus, on a real nats-server: the others are heard as before."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import nats.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from slackwater.core.bus.client import GuardedClient
from slackwater.core.bus.intake import BYTES_A_MESSAGE, CREDIT, PER_S, FloodLimit, Intake, _Subscription
from tests.support.nats_process import Server, until

SENDERS = 200
AGAIN_S = 0.5
"""All are heard together again this soon after a flood used its credit up."""


def test_of_one_subject_only_so_many_messages_a_second_count() -> None:
    meter = FloodLimit()
    assert [meter.counts("a", 100, 0.0) for _ in range(PER_S + 2)] == [True] * PER_S + [False] * 2
    assert meter.counts("b", 100, 0.5), "another subject's messages do"
    assert (meter.floods(0.5), meter.others(0.5)) == (["a"], ["b"])
    assert meter.counts("a", 100, 1.0), "the next second has room again"
    assert meter.floods(5.0) == ["a"]
    assert (meter.floods(11.0), meter.others(11.0)) == ([], [])


def test_a_long_message_counts_as_several() -> None:
    meter = FloodLimit()
    assert not meter.counts("a", PER_S * BYTES_A_MESSAGE, 0.0)
    assert meter.counts("b", BYTES_A_MESSAGE - 1, 0.0)
    assert meter.floods(0.0) == ["a"]


def test_after_this_process_stood_still_the_first_look_decides_nothing() -> None:
    line = _Subscription(0.0, credit=10, limit=11)
    assert [line.is_silent(60.0), line.is_silent(61.0)] == [False, True]
    assert [line.lasts(60.0, 5.0), line.lasts(61.0, 5.0)] == [False, True]


@pytest.fixture
def url(tmp_path: Path) -> object:
    server = Server(tmp_path)
    server.start()
    yield server.url
    server.stop()


class Heard:
    """What an Intake let through, by subject."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.last: dict[str, bytes] = {}
        self.texts: dict[str, list[bytes]] = {}

    def take(self, raw: Msg) -> None:
        self.counts[raw.subject] += 1
        self.last[raw.subject] = raw.data
        self.texts.setdefault(raw.subject, []).append(raw.data)


def story(url: str, body: Callable[[Client, Client, Client, Heard], object], retry_s: float = AGAIN_S) -> None:
    async def run() -> None:
        ours, good, bad = GuardedClient(), Client(), Client()
        heard = Heard()
        for client in (ours, good, bad):
            await client.connect(url, reconnect_time_wait=0.1)  # type: ignore[arg-type]
        intake = Intake(ours, "s.>", heard.take, retry_s=retry_s)
        await intake.start()
        # The server must know the subscription before anybody else sends. nats-py sends flush's PING ahead of the
        # commands in its buffer, so the buffer has to be empty first.
        await until(lambda: ours.pending_data_size == 0)
        await ours.flush()
        try:
            await body(ours, good, bad, heard)  # type: ignore[misc]
        finally:
            await intake.stop()
            for client in (ours, good, bad):
                await client.close()

    asyncio.run(run())


async def arrives(client: Client, subject: str, text: bytes, heard: Heard) -> None:
    """Sends until it is heard: a moment's messages may be lost, not more."""
    async with asyncio.timeout(30):
        while heard.last.get(subject) != text:
            with contextlib.suppress(nats.errors.Error):  # it is connecting again
                await client.publish(subject, text)
                await client.flush()
            await asyncio.sleep(0.05)


def test_who_floods_is_cut_off_by_the_server_and_heard_again_afterwards(url: str) -> None:
    async def body(ours: Client, good: Client, bad: Client, heard: Heard) -> None:
        await arrives(good, "s.good", b"before", heard)
        began_s = time.monotonic()
        for _ in range(100):
            for _ in range(1000):
                await bad.publish("s.bad", b"x")
            await bad.flush()
        await arrives(good, "s.good", b"meanwhile", heard)
        # Each time that all are heard together costs one credit: no more often than every `AGAIN_S`.
        most = 1.2 * CREDIT * (1 + (time.monotonic() - began_s) / AGAIN_S)
        assert ours.stats["in_msgs"] < most, "of the 100,000 the server kept the others back"
        assert ours.stats["in_msgs"] >= CREDIT
        await arrives(good, "s.good", b"after", heard)
        await arrives(bad, "s.bad", b"after", heard)
        await arrives(good, "s.new", b"hello", heard)

    story(url, body)


def test_who_sends_few_but_huge_messages_is_cut_off_too(url: str) -> None:
    async def body(ours: Client, good: Client, bad: Client, heard: Heard) -> None:
        await arrives(good, "s.good", b"before", heard)
        for _ in range(300):
            await bad.publish("s.bad", b"x" * 250_000)
            await bad.flush()
        await arrives(good, "s.good", b"after", heard)
        assert ours.stats["in_msgs"] < 200

    story(url, body, retry_s=30.0)


def test_headers_cost_credit_as_data_do(url: str) -> None:
    """Nobody reads them, and they take as much of the connection."""

    async def body(ours: Client, good: Client, bad: Client, heard: Heard) -> None:
        await arrives(good, "s.good", b"before", heard)
        for _ in range(300):
            await bad.publish("s.bad", b"", headers={f"a{number}": "b" * 25 for number in range(7000)})
            await bad.flush()
        await arrives(good, "s.good", b"after", heard)
        assert ours.stats["in_msgs"] < 200

    story(url, body, retry_s=30.0)


def test_while_one_floods_the_others_are_heard_without_a_gap(url: str) -> None:
    async def body(ours: Client, good: Client, bad: Client, heard: Heard) -> None:
        await arrives(good, "s.good", b"before", heard)
        stop = asyncio.Event()

        async def flood() -> None:
            while not stop.is_set():
                for _ in range(200):
                    await bad.publish("s.bad", b"x")
                await bad.flush()

        flooding = asyncio.create_task(flood())
        await until(lambda: ours.stats["in_msgs"] > CREDIT)
        await arrives(good, "s.good", b"cut off", heard)
        for number in range(40):
            await good.publish("s.good", b"%d" % number)
            await good.flush()
            await asyncio.sleep(0.03)
        stop.set()
        await flooding
        await until(lambda: heard.last["s.good"] == b"39")
        numbers = [text for text in heard.texts["s.good"] if text.isdigit()]
        assert numbers == [b"%d" % number for number in range(40)], "each once"

    story(url, body)


def test_many_well_behaved_senders_use_up_no_credit(url: str) -> None:
    async def body(ours: Client, good: Client, _bad: Client, heard: Heard) -> None:
        for turn in range(PER_S // 2):
            for number in range(SENDERS):
                await good.publish(f"s.{number}", b"x")
            await good.flush()
            # As fast as they are heard, and not faster: what is behind by a whole credit is not heard at all.
            await until(lambda turn=turn: heard.counts.total() == SENDERS * (turn + 1))  # type: ignore[misc]
            await ours.flush()

    story(url, body)


def test_after_the_connection_was_lost_all_are_heard_again(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.start()

    async def body(ours: Client, good: Client, _bad: Client, heard: Heard) -> None:
        await arrives(good, "s.good", b"before", heard)
        server.stop()
        server.start()
        await until(lambda: good.is_connected and ours.is_connected)
        await arrives(good, "s.good", b"after", heard)

    try:
        story(server.url, body)
    finally:
        server.stop()
