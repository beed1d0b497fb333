"""What an impostor on the way, or a publisher with any bytes, can do to the connection to the bus: nothing."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from slackwater.core.bus import nats_server
from slackwater.core.bus.bus import Bus, BusError
from slackwater.core.bus.client import GuardedClient
from slackwater.core.config import BusSettings
from slackwater.core.messages import Sample, encode
from tests.support.certificates import certificates
from tests.support.nats_impostor import greeting, impostor
from tests.support.nats_process import IN_TIME_S, Server, until
from tests.support.real_processes import free_address

PASSWORD = "the-password"
SUBJECT = b"slackwater.sample.web.n1"


def sample(node: str, seq: int = 0) -> Sample:
    return Sample(1, node, "web", 1.0, "boot", seq, 0.2)


def settings(folder: Path, url: str, **more: str) -> BusSettings:
    """A bus with a password."""
    path = folder / "password"
    path.write_text(PASSWORD)
    path.chmod(0o600)
    return BusSettings(url, user="u", password_file=str(path), **more)


def test_the_client_library_is_the_one_that_this_was_written_for() -> None:
    """Another version: read what `slackwater/core/bus/client.py` takes the place of, and run `tools/fuzz.py`."""
    assert version("nats-py") == "2.16.0"


# --- what is said where others listen --------------------------------------------------------------------------------


@pytest.mark.parametrize(("scheme", "has_ca"), [("nats", True), ("tls", False), ("tls", True)])
@pytest.mark.parametrize("says", [{}, {"tls_available": True}, {"tls_required": True}])
def test_nothing_is_said_to_a_listener_without_tls(
    tmp_path: Path, scheme: str, has_ca: bool, says: dict[str, bool]
) -> None:
    certificates(tmp_path)

    async def story() -> None:
        async with impostor(greet=lambda _: greeting(auth_required=True, **says)) as other:
            url = other.url.replace("nats", scheme, 1)
            where = settings(tmp_path, url, tls_ca=f"{tmp_path}/ca.pem" if has_ca else "")
            with pytest.raises(BusError) as error:
                await Bus.connect(where, "t", wait_s=0.5)
            assert other.heard, "it was met"
            assert not any(b"CONNECT" in heard or PASSWORD.encode() in heard for heard in other.heard)
            assert says or "it offers no TLS, and the settings demand it" in str(error.value)

    asyncio.run(story())


def test_a_listener_without_tls_hears_nothing_after_a_connection_was_lost_either(tmp_path: Path) -> None:
    certificates(tmp_path)
    listen = free_address()
    host, port = listen.split(":")
    config = tmp_path / "nats.conf"
    config.write_text(
        f'listen: "{listen}"\nlog_file: "{tmp_path}/nats.log"\n'
        f'tls {{ cert_file: "{tmp_path}/server.pem", key_file: "{tmp_path}/server.key" }}\n'
        f'authorization {{ user: "u", password: "{PASSWORD}" }}\n'
    )
    heard: list[bytes] = []

    async def stranger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting(auth_required=True))
        heard.append(await reader.read(4096))
        writer.close()

    async def story(real: subprocess.Popen[bytes]) -> None:
        bus = await Bus.connect(settings(tmp_path, f"tls://{listen}", tls_ca=f"{tmp_path}/ca.pem"), "t")
        try:
            real.terminate()
            real.wait()
            async with await asyncio.start_server(stranger, host, int(port)):
                await until(lambda: len(heard) >= 3)
            assert not any(heard)
            assert not bus.connected
        finally:
            await bus.close()

    with subprocess.Popen(["nats-server", "-c", str(config)]) as real:
        nats_server.wait_until_it_answers(listen, tmp_path / "nats.log")
        asyncio.run(story(real))


def test_a_server_that_takes_those_without_tls_too_is_spoken_to_with_tls(tmp_path: Path) -> None:
    """Its greeting only offers TLS."""
    certificates(tmp_path)
    listen = free_address()
    config = tmp_path / "nats.conf"
    config.write_text(
        f'listen: "{listen}"\nlog_file: "{tmp_path}/nats.log"\nallow_non_tls: true\n'
        f'tls {{ cert_file: "{tmp_path}/server.pem", key_file: "{tmp_path}/server.key" }}\n'
    )

    async def story() -> None:
        bus = await Bus.connect(BusSettings(f"nats://{listen}", tls_ca=f"{tmp_path}/ca.pem"), "t")
        assert bus._client._transport._io_writer.get_extra_info("ssl_object") is not None  # type: ignore[union-attr]
        await bus.close()

    with subprocess.Popen(["nats-server", "-c", str(config)]) as real:
        nats_server.wait_until_it_answers(listen, tmp_path / "nats.log")
        asyncio.run(story())
        real.terminate()


@pytest.mark.parametrize("url", ["nats://10.0.0.5:1", "nats://balancer:1", "nats://me:secret@[2001:db8::1]:1"])
def test_a_password_is_not_sent_to_another_machine_in_the_clear(tmp_path: Path, url: str) -> None:
    with pytest.raises((ValueError, BusError), match="would send the password in the clear to another machine"):
        settings(tmp_path, url)
    (
        BusSettings(url.replace("me:secret@", "")),
        settings(tmp_path, "nats://[::1]:1"),
        settings(tmp_path, "nats://localhost:1"),
    )
    with pytest.raises(BusError, match="in the clear"):
        asyncio.run(Bus.connect("nats://me:secret@10.0.0.5:1", "t"))


def test_the_rule_is_kept_by_the_connection_whatever_the_name_leads_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`localhost` of a broken resolver, or a server that another one named."""
    monkeypatch.setattr("slackwater.core.bus.client.is_loopback_host", lambda host: host != "127.0.0.1")

    async def story() -> None:
        async with impostor() as other:
            with pytest.raises(BusError, match=r"the password would go to 127\.0\.0\.1 in the clear; use tls://"):
                await Bus.connect(settings(tmp_path, other.url), "t", wait_s=1.0)
            assert not any(other.heard)

    asyncio.run(story())


@pytest.mark.parametrize("has_password", [True, False])
def test_servers_that_a_greeting_names_get_no_password(tmp_path: Path, has_password: bool) -> None:
    """The greeting comes before TLS: whoever is on the way could name his own. Without a password there is no loss."""

    async def story() -> None:
        async with impostor(greet=lambda _: greeting(connect_urls=["127.0.0.1:2", "a b:1", "[", "127.0.0.1"])) as other:
            where = settings(tmp_path, other.url) if has_password else BusSettings(other.url)
            bus = await Bus.connect(where, "t")
            named = [server.netloc for server in bus._client.discovered_servers]
            assert named == ([] if has_password else ["127.0.0.1:2"])
            await bus.close()

    asyncio.run(story())


def test_servers_that_an_impostor_named_are_forgotten_with_him() -> None:
    names = [f"127.0.0.1:{number}" for number in range(1, 1000)]

    async def story() -> None:
        async with impostor(greet=lambda number: greeting(connect_urls=[] if number else names)) as other:
            bus = await Bus.connect(other.url, "t")
            assert 0 < len(bus._client.discovered_servers) < 20
            bus._client._transport._io_writer.transport.abort()  # type: ignore[union-attr]
            await until(lambda: bus.connected and not bus._client.discovered_servers)
            await bus.close()

    asyncio.run(story())


# --- bytes of a publisher --------------------------------------------------------------------------------------------


def hpub(headers: bytes, data: bytes) -> bytes:
    return b"HPUB %s %d %d\r\n%s%s\r\n" % (SUBJECT, len(headers), len(headers) + len(data), headers, data)


def pub(reply: bytes, data: bytes, subject: bytes = SUBJECT) -> bytes:
    return b"PUB %s %s %d\r\n%s\r\n" % (subject, reply, len(data), data)


GOOD = encode(sample("n1"))
ANY_BYTES = {
    "a header of one byte": hpub(b"x", GOOD),
    "no header after the version": hpub(b"NATS/1.0", GOOD),
    "a status that is no UTF-8": hpub(b"NATS/1.0 \xff\xff\xff\r\n\r\n", GOOD),
    "a description that is no UTF-8": hpub(b"NATS/1.0 100 \xff\xfe\r\n\r\n", GOOD),
    "an idle heartbeat": hpub(b"NATS/1.0 100 Idle Heartbeat\r\nNats-Consumer-Stalled: a b\r\n\r\n", b""),
    "headers that are none": hpub(bytes(range(256)) * 8, GOOD),
    "a reply that is no UTF-8": pub(b"\xff\xfe", GOOD),
    "a reply with other white space": pub(b"a\x0bb\x0cc\xc2\xa0d", GOOD),
    "a long reply": pub(b"x" * 3900, GOOD),
    "an inbox that is none": pub(b"_INBOX.\xff", GOOD),
    "a subject that is no UTF-8": pub(b"", GOOD, SUBJECT + b"\xff\xfe"),
    "a subject with a letter that is none": pub(b"", GOOD, SUBJECT + b".\xe1\x9d\x9d"),
    "a subject with an escape": pub(b"", GOOD, SUBJECT + b".\x1b[2J\x0b"),
    "no data": pub(b"", b""),
    "data that look like the protocol": pub(b"", b"\r\nPING\r\n-ERR\r\nMSG a\r\n"),
}


@pytest.mark.parametrize("raw", ANY_BYTES.values(), ids=ANY_BYTES)
def test_no_bytes_of_a_publisher_keep_others_from_being_heard(server: Server, raw: bytes) -> None:
    async def story() -> None:
        bus = await Bus.connect(server.url, "t", wait_s=IN_TIME_S)
        received: list[str] = []
        await bus.subscribe("sample", lambda message: received.append(message.node), pool="web")
        await bus.flush(IN_TIME_S)
        host, port = server.listen.split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b'CONNECT {"verbose":false,"headers":true}\r\n' + raw)
        writer.write(pub(b"", encode(sample("honest")), b"slackwater.sample.web.honest"))
        await until(lambda: "honest" in received)
        assert bus._client.stats["reconnects"] == 0
        writer.close()
        await bus.close()

    asyncio.run(story())


def test_a_message_is_heard_without_the_headers_and_replies_that_nobody_needs(server: Server) -> None:
    async def story() -> None:
        bus = await Bus.connect(server.url, "t", wait_s=IN_TIME_S)
        received: list[Any] = []

        async def keep(raw: Any) -> None:
            received.append((raw.data, raw.reply, raw.headers, raw.size_bytes))

        await bus._client.subscribe("slackwater.test", cb=keep)
        await bus._client.publish("slackwater.test", b"one", reply="slackwater.order.web.n1", headers={"a": "b"})
        await bus._client.publish("slackwater.test", b"two", reply="_INBOX.a.b")
        await until(lambda: len(received) == 2)
        assert received[0][:3] == (b"one", "", None)
        assert received[1][:3] == (b"two", "_INBOX.a.b", None)
        assert received[0][3] > len(b"one" + b"a: b" + b"slackwater.test") < received[1][3] + 10
        await bus.close()

    asyncio.run(story())


def test_an_answer_goes_to_an_inbox_alone(server: Server) -> None:
    """A question names where its answer goes, and the controller may publish what who asks may not."""

    async def story() -> None:
        bus, other = [await Bus.connect(server.url, name, wait_s=IN_TIME_S) for name in ("t", "other")]
        stored: list[bytes] = []

        async def keep(raw: Any) -> None:
            stored.append(raw.data)

        async def handle(_: dict[str, Any]) -> dict[str, Any]:
            return {"sentence": "done"}

        await other._client.subscribe("$KV.slackwater_lease.web", cb=keep)
        await bus.serve("slackwater.control.web", handle)
        await bus.flush(IN_TIME_S)
        await other._client.publish("slackwater.control.web", b"{}", reply="$KV.slackwater_lease.web")
        assert await other.request("slackwater.control.web", {}, timeout_s=IN_TIME_S) == {"sentence": "done"}
        await other.flush(IN_TIME_S)
        assert stored == []
        await other.close()
        await bus.close()

    asyncio.run(story())


# --- bytes of a server -----------------------------------------------------------------------------------------------

OF_A_SERVER = {
    "no protocol": b"hello\r\n",
    "an error without a text": b"-ERR\r\n",
    "an error that is no UTF-8": b"-ERR '\xff\x1b[2J'\r\n",
    "an error that ends other clients": b"-ERR 'Authorization Violation'\r\n",
    "INFO that is no JSON": b"INFO {\r\n",
    "INFO of other types": b'INFO {"connect_urls": 5, "max_payload": "x"}\r\n',
    "INFO with urls that are none": b'INFO {"connect_urls": ["[", "", "a b:1", "x:99999999"]}\r\n',
    "a message without a length": b"MSG a 1\r\n",
    "a message of a negative length": b"MSG a 1 -5\r\n",
    "a message of no length": b"MSG a 1 1_0\r\n",
    "a message longer than its data": b"MSG a 1 3\r\nabcdefg\r\n",
    "more headers than message": b"HMSG a 1 12 5\r\nNATS/1.0\r\n\r\n\r\n",
    "a message of an unknown subscription": b"MSG a 99999 3\r\nabc\r\n",
    "a subscription of too many digits": b"MSG a " + b"9" * 5000 + b" 3\r\nabc\r\n",
    "pongs that nobody waits for": b"PONG\r\n" * 5,
    "an end within a message": b"MSG a 1 30\r\nabc",
}


@pytest.mark.parametrize("bad_bytes", OF_A_SERVER.values(), ids=OF_A_SERVER)
@pytest.mark.parametrize("when", ["greeting", "later", "reconnecting"])
def test_whatever_a_server_says_the_connection_is_good_or_lost_and_comes_again(bad_bytes: bytes, when: str) -> None:
    """A client that looks connected and hears nothing is the one thing that must not be."""
    bad = 1 if when == "reconnecting" else 0
    heard: list[bytes] = []

    def greet(number: int) -> bytes:
        return bad_bytes if when != "later" and number == bad else greeting()

    def then(number: int) -> bytes:
        return bad_bytes if when == "later" and number == bad else b""

    async def story() -> None:
        async with impostor(greet=greet, then=then) as other:
            bus = await Bus.connect(other.url, "t", wait_s=IN_TIME_S)
            try:
                if when == "reconnecting":
                    bus._client._transport._io_writer.transport.abort()  # type: ignore[union-attr]
                    await until(lambda: bus._client.stats["reconnects"] > 0)
                await asyncio.wait_for(good(bus), IN_TIME_S)
            finally:
                await bus.close()
            heard.extend(other.heard)

    async def good(bus: Bus) -> None:
        """Until it answers to a PING of ours, on whatever connection."""
        while True:
            with contextlib.suppress(Exception):
                await bus._client.flush(1)
                if bus.connected and bus._client._reading_task and not bus._client._reading_task.done():
                    return
            await asyncio.sleep(0.01)

    asyncio.run(story())
    assert heard[-1].startswith(b"CONNECT ")


def test_an_answer_to_a_ping_that_comes_too_late_ends_nothing(server: Server) -> None:
    async def story() -> None:
        bus, other = [await Bus.connect(server.url, name, wait_s=IN_TIME_S) for name in ("t", "other")]
        received: list[int] = []
        await bus.subscribe("sample", lambda message: received.append(message.seq))
        await bus.flush(IN_TIME_S)
        with server.paused():
            await bus.flush(0.1)
        await other.publish(sample("n1", 1))
        await until(lambda: received == [1])
        assert bus._client.stats["reconnects"] == 0
        await other.close()
        await bus.close()

    asyncio.run(story())


def test_a_message_beyond_all_limits_is_passed_over() -> None:
    """By a server that allows it, from anybody: nothing of it is kept, and the next one is heard."""
    too_long = 5 * 1024 * 1024
    good = encode(sample("n1", 7))

    def then(_: int) -> bytes:
        long = b"MSG slackwater.sample.web.n1 1 %d\r\n" % too_long + bytes(too_long) + b"\r\n"
        return long + b"MSG slackwater.sample.web.n1 1 %d\r\n%s\r\n" % (len(good), good)

    async def story() -> None:
        async with impostor() as other:
            client = GuardedClient()
            received: list[Any] = []

            async def keep(raw: Any) -> None:
                received.append((raw.size_bytes, len(raw.data)))

            await client.connect(other.url)
            await client.subscribe("slackwater.sample.web.n1", cb=keep)
            stream = then(0)
            for start in range(0, len(stream), 32768):
                await client._ps.parse(stream[start : start + 32768])
                assert len(client._ps._buffer) < 100_000  # type: ignore[attr-defined]
            await until(lambda: len(received) == 2)
            assert received[0][0] > too_long
            assert [size for _, size in received] == [0, len(good)]
            await client.close()

    asyncio.run(story())


def test_an_attempt_that_fails_leaves_no_socket_open() -> None:
    """Of a server that greets in a strange way, and does not hang up."""

    async def story() -> None:
        async with impostor(greet=lambda _: b"hello\r\n") as other:
            with pytest.raises(BusError, match=r"no NATS protocol: no greeting of a NATS server, but b'hello"):
                await Bus.connect(other.url, "t", wait_s=1.0)
            assert len(other.heard) > 1
            port = int(other.url.rpartition(":")[2])
            await until(lambda: not open_to(port))

    def open_to(port: int) -> list[str]:
        ours = Path("/proc/net/tcp").read_text().splitlines()[1:]
        return [line for line in ours if line.split()[2] == f"0100007F:{port:04X}" and line.split()[3] == "01"]

    asyncio.run(story())
