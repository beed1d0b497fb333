"""The bus as a cluster of three nats-servers of this machine: its store, without and with a leader."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import nats.errors
import pytest
from nats.aio.client import Client

from slackwater.core.bus import nats_server
from slackwater.core.bus.bus import Bucket, Bus, BusError, NoStoreError
from tests.support.nats_cluster import ELECTED_WITHIN_S, NatsCluster
from tests.support.nats_process import open_server, until
from tests.support.real_processes import free_address


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NatsCluster]:
    made = NatsCluster(tmp_path)
    yield made
    made.stop()


async def bucket_of(bus: Bus) -> Bucket:
    """Waits until the servers have found each other and a leader."""
    async with asyncio.timeout(ELECTED_WITHIN_S):
        while True:
            try:
                return await bus.bucket("test")
            except NoStoreError:
                raise
            except BusError:
                await asyncio.sleep(0.2)


async def led_by(client: Client) -> tuple[str, int]:
    """The server that leads the store, and how many keep it."""
    try:
        stream = await client.jetstream(timeout=2).stream_info("KV_test")
    except (nats.errors.Error, TimeoutError):
        return "", 0
    return (stream.cluster.leader or "") if stream.cluster else "", stream.config.num_replicas or 0


async def put_in(bucket: Bucket) -> int:
    """Puts `key`; the revision. A question that meets an election, or a busy server, stays unanswered: asked again."""
    async with asyncio.timeout(ELECTED_WITHIN_S):
        while True:
            with contextlib.suppress(BusError):
                if (made := await bucket.put("key", b"value", 0)) is not None:
                    return made
                if (stored := await bucket.get("key")) is not None:  # it was done, and the answer came too late
                    return stored[1]
            await asyncio.sleep(0.2)


async def value_in(bus: Bus) -> tuple[bytes, int] | None:
    """What the store has under `key`, and its revision; asked again until there is an answer."""
    async with asyncio.timeout(ELECTED_WITHIN_S):
        while True:
            with contextlib.suppress(BusError):
                return await (await bucket_of(bus)).get("key")
            await asyncio.sleep(0.2)


def test_a_bus_without_jetstream_is_distinguished_from_one_that_does_not_answer_yet(cluster: NatsCluster) -> None:
    async def leaderless() -> None:
        bus = await Bus.connect(cluster.url(0), "test")
        try:
            with pytest.raises(BusError) as caught:
                await bus.bucket("test")
            assert not isinstance(caught.value, NoStoreError)
        finally:
            await bus.close()

    async def without(url: str) -> None:
        bus = await Bus.connect(url, "test")
        try:
            with pytest.raises(NoStoreError):
                await bucket_of(bus)
        finally:
            await bus.close()

    cluster.start(0)  # alone it finds no leader
    asyncio.run(leaderless())
    listen = free_address()
    plain = subprocess.Popen(["nats-server", "-a", "127.0.0.1", "-p", listen.split(":")[1]], stderr=subprocess.DEVNULL)
    try:
        nats_server.wait_until_it_answers(listen, cluster.folder / "log")
        asyncio.run(without(f"nats://{listen}"))
    finally:
        plain.terminate()
        plain.wait()


@pytest.mark.timeout(400)
def test_the_store_is_kept_by_three_and_led_by_another_server_than_ours(cluster: NatsCluster) -> None:
    async def story() -> None:
        cluster.start(0, 1, 2)
        buses = [await Bus.connect(cluster.url(number), "test") for number in range(3)]
        client = Client()
        await client.connect(cluster.url(0))
        try:
            async with asyncio.timeout(ELECTED_WITHIN_S):
                while True:
                    bucket = await bucket_of(buses[0])
                    before, copies = await led_by(client)
                    if before and copies == 3:
                        break
                    if copies == 1:  # it was made before the leader had heard what the others can keep
                        with contextlib.suppress(nats.errors.Error, TimeoutError):
                            await client.jetstream(timeout=2).delete_stream("KV_test")
                    await asyncio.sleep(0.1)
            ours = next(bus for bus, name in zip(buses, ("s0", "s1", "s2"), strict=True) if name == before)
            revision = await put_in(bucket)
            async with asyncio.timeout(ELECTED_WITHIN_S):
                while (await led_by(client))[0] in ("", before):
                    with contextlib.suppress(BusError):
                        await (await bucket_of(ours)).spread()
                    await asyncio.sleep(0.2)
                while await value_in(ours) != (b"value", revision):
                    await asyncio.sleep(0.2)
        finally:
            await client.close()
            for bus in buses:
                await bus.close()

    asyncio.run(story())


@pytest.mark.timeout(400)
def test_a_store_that_one_server_keeps_gets_copies_once_there_are_three(cluster: NatsCluster) -> None:
    async def story() -> None:
        cluster.start(0, 1, 2)
        bus, client = await Bus.connect(cluster.url(0), "test"), Client()
        await client.connect(cluster.url(0))
        try:
            await bucket_of(bus)
            stream = client.jetstream(timeout=2)
            async with asyncio.timeout(ELECTED_WITHIN_S):
                while (await led_by(client))[1] != 1:  # a question that meets an election stays unanswered
                    with contextlib.suppress(nats.errors.Error, TimeoutError):
                        await stream.delete_stream("KV_test")
                    with contextlib.suppress(nats.errors.Error, TimeoutError):
                        await stream.create_key_value(bucket="test", history=1)
            async with asyncio.timeout(ELECTED_WITHIN_S):
                while (await led_by(client))[1] != 3:
                    with contextlib.suppress(BusError):
                        await (await bucket_of(bus)).spread()
        finally:
            await client.close()
            await bus.close()

    asyncio.run(story())


def test_a_single_server_is_left_as_it_is(tmp_path: Path) -> None:
    listen = free_address()
    process = subprocess.Popen(open_server(tmp_path, listen))

    async def story() -> None:
        bus = await Bus.connect(f"nats://{listen}", "test")
        await until(lambda: bus.connected)
        try:
            bucket = await bucket_of(bus)
            await bucket.spread()
            assert await put_in(bucket) == 1
        finally:
            await bus.close()

    try:
        nats_server.wait_until_it_answers(listen, tmp_path / "nats.log")
        asyncio.run(story())
    finally:
        process.terminate()
        process.wait()
