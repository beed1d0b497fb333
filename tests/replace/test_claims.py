"""Of several controllers one calls the command, once."""

from __future__ import annotations

import asyncio

import pytest

from slackwater.core.bus.bus import NoStoreError
from slackwater.core.config import ReplaceSettings
from slackwater.replace.claims import MARGIN_S, Claims, Stopped
from slackwater.views.chronic import DAY_S
from tests.support.played_bus import PlayedBucket

SETTINGS = ReplaceSettings(command="/usr/local/bin/replace", timeout_s=900.0, drain_s=120.0)


class Bus:
    def __init__(self) -> None:
        self.bucket, self.now = PlayedBucket(), 1e9

    async def open_bucket(self, _: str) -> PlayedBucket:
        return self.bucket

    def claims(self, controller: str, most_per_day: int = 1) -> Claims:
        settings = ReplaceSettings(command="/x", timeout_s=900.0, drain_s=120.0, most_per_day=most_per_day)
        return Claims(self.open_bucket, "web", controller, settings, lambda: self.now, lambda: self.now)


async def stopped(claims: Claims, id_: str) -> str:
    with pytest.raises(Stopped) as raised:
        await claims.begin(id_, "web1")
    return str(raised.value)


def test_of_two_that_claim_at_once_one_calls() -> None:
    async def story() -> None:
        bus = Bus()
        called: list[str] = []

        async def replaced(name: str) -> None:
            claims = bus.claims(name)
            try:
                await claims.begin(name, "web1")
                await claims.call(name)
                called.append(name)
            except Stopped:
                pass

        await asyncio.gather(*(replaced(name) for name in ("a", "b", "c")))
        assert len(called) == 1

    asyncio.run(story())


def test_a_claim_is_used_once_and_counts_for_a_day_wherever_it_was_called() -> None:
    async def story() -> None:
        bus = Bus()
        a, b = bus.claims("a"), bus.claims("b")
        await a.begin("1", "web1")
        assert await b.of_others() == {"1"}
        assert await a.of_others() == set()
        assert await stopped(b, "2") == "web1 is being replaced by another controller"
        await a.call("1")
        with pytest.raises(Stopped):
            await a.call("1")
        await a.end("1")
        assert await b.of_others() == set()
        bus.now += DAY_S - 1.0
        for controller in (a, b):
            assert "at most 1 in 24 h" in await stopped(controller, "2")
        bus.now += 2.0
        await b.begin("2", "web1")
        await b.call("2")

    asyncio.run(story())


def test_a_controller_that_died_is_waited_for_as_long_as_its_command_could_run() -> None:
    async def story() -> None:
        bus = Bus()
        dead, other = bus.claims("a", 2), bus.claims("b", 2)
        await dead.begin("1", "web1")
        await dead.call("1")
        bus.now += SETTINGS.drain_s + SETTINGS.timeout_s + MARGIN_S - 1.0
        assert "another controller" in await stopped(other, "2")
        bus.now += 2.0
        assert await other.of_others() == set()
        await other.begin("2", "web2")
        with pytest.raises(Stopped, match="web2 is being replaced"):
            await dead.begin("3", "web3")

    asyncio.run(story())


def test_without_the_store_nothing_is_begun_or_called() -> None:
    async def story() -> None:
        bus = Bus()
        claims = bus.claims("a")
        await claims.begin("1", "web1")
        bus.bucket.is_away = True
        for refused in (claims.call("1"), claims.begin("2", "web1"), claims.of_others()):
            with pytest.raises(Stopped, match="does not answer"):
                await refused
        await claims.end("1")

    asyncio.run(story())


def test_a_bus_that_stores_nothing_has_one_controller_and_its_own_claims_count() -> None:
    async def no_store(_: str) -> PlayedBucket:
        raise NoStoreError("no key-value store: is JetStream switched on?")

    async def story() -> None:
        bus = Bus()
        claims = Claims(no_store, "web", "a", SETTINGS, lambda: bus.now)
        await claims.begin("1", "web1")
        await claims.call("1")
        with pytest.raises(Stopped, match="or was used"):
            await claims.call("1")
        await claims.end("1")
        assert "at most 1 in 24 h" in await stopped(claims, "2")
        assert await claims.of_others() == set()

    asyncio.run(story())


def test_a_clock_that_is_set_ahead_makes_no_new_day() -> None:
    async def story() -> None:
        bus, seconds = Bus(), [0.0]
        claims = Claims(bus.open_bucket, "web", "a", SETTINGS, lambda: bus.now, lambda: seconds[0])
        await claims.begin("1", "web1")
        await claims.call("1")
        await claims.end("1")
        bus.now += 2 * DAY_S
        assert "at most 1 in 24 h (`replace.most_per_day`), and these were: web1" in await stopped(claims, "2")
        seconds[0] += DAY_S
        await claims.begin("3", "web1")

    asyncio.run(story())
