"""Balancers that several lbengines name in lists that overlap: each has one owner, and nobody owns half of a pool."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from slackwater.core.bus.bus import BusError
from slackwater.core.config import LbengineSettings
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.lbengine.baseline import Baseline
from slackwater.lbengine.engine import Engine
from slackwater.lbengine.engine_thread import EngineThread
from slackwater.lbengine.leadership.lease import LEASE_S, RENEW_S
from slackwater.lbengine.leadership.leases import Leases
from slackwater.lbengine.leadership.ownership import Ownership
from slackwater.lbengine.overrides.overrides import Pause
from slackwater_lab.played_verdict import verdict
from tests.support.played_lease_store import Clock, Store, owners
from tests.support.real_haproxy import RealHAProxy, backend, haproxy, needs_haproxy, web_servers

BASELINE = {"host1": Baseline(100, 100)}
HOSTS = ("host1", "host2", "host3")


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def leases(store: Store, clock: Clock, names: str, host: str) -> Leases:
    """Leases on a balancer for each letter, on another host."""
    made = Leases(store, {name: f"backend `web` behind {name}" for name in names}, f"/{host}", clock)
    for lease in made._leases:
        lease._me = msgspec.structs.replace(lease._me, host=host, folder=host, process_space=host, pid=1)
    return made


def holders(store: Store) -> dict[str, str]:
    """Key -> host of who has it; without those that were given back."""
    records = {key: msgspec.json.decode(value) for key, (value, _) in sorted(store.values.items())}
    return {key: record["host"] for key, record in records.items() if "holder" in record}


def test_of_two_that_share_one_balancer_only_one_has_any(store: Store, clock: Clock) -> None:
    first, second = leases(store, clock, "ab", "one"), leases(store, clock, "bc", "two")
    for _ in range(5):
        assert owners(first, second) == ["ours", "theirs"]
        assert holders(store) == {"a": "one", "b": "one"}
        clock.now_s += RENEW_S
    assert second.other == "lbengine of one (pid 1) drives backend `web` behind b"
    assert not second.are_elsewhere, "c is nobody's: what was stored of it is not of the past"


def test_of_two_with_the_same_balancers_the_other_one_has_all(store: Store, clock: Clock) -> None:
    first, second = leases(store, clock, "ab", "one"), leases(store, clock, "ba", "two")
    assert owners(first, second) == ["ours", "theirs"]
    assert second.other == "lbengine of one (pid 1) drives it"
    assert second.are_elsewhere


def test_balancers_without_any_in_common_have_an_owner_each(store: Store, clock: Clock) -> None:
    assert owners(leases(store, clock, "ab", "one"), leases(store, clock, "cd", "two")) == ["ours", "ours"]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_of_a_ring_that_wants_them_at_once_at_least_one_gets_all(
    store: Store, clock: Clock, order: tuple[int, ...]
) -> None:
    ring = [leases(store, clock, names, host) for names, host in (("ab", "one"), ("bc", "two"), ("ca", "three"))]

    async def race() -> None:
        await asyncio.gather(*(ring[n].step() for n in order))

    for _ in range(3):
        asyncio.run(race())
        clock.now_s += RENEW_S
    assert sorted(each.owner for each in ring) == ["ours", "theirs", "theirs"]
    assert len(holders(store)) == 2


def test_a_death_is_followed_in_the_same_time_with_what_any_record_carries(store: Store, clock: Clock) -> None:
    first, second = leases(store, clock, "ab", "one"), leases(store, clock, "bc", "two")
    owners(first, second)
    pause = Pause("alice", "deploy", 1.0)
    asyncio.run(first.keep(BASELINE, pause))
    died_s = clock.now_s
    owners(second)
    while owners(second) != ["ours"]:
        clock.now_s += RENEW_S
    assert LEASE_S <= clock.now_s - died_s <= LEASE_S + 2 * RENEW_S
    assert (second.left(), second.paused) == (BASELINE, pause)
    assert second.heard_s == died_s
    owners(second)
    carried = [msgspec.json.decode(store.values[key][0])["baseline"] for key in "bc"]
    assert carried[0] == carried[1] is not None, "both carry it now"


def test_who_loses_one_gives_the_others_back(store: Store, clock: Clock) -> None:
    first, second = leases(store, clock, "ab", "one"), leases(store, clock, "bc", "two")
    owners(first, second)
    asyncio.run(first.keep(BASELINE, None))
    owners(second)
    clock.now_s += LEASE_S + 0.01
    assert first.stale
    assert owners(second, first) == ["ours", "theirs"], "the first one was frozen"
    assert holders(store) == {"b": "two", "c": "two"}
    assert not first.are_elsewhere
    third = leases(store, clock, "a", "three")
    assert owners(third) == ["ours"]
    assert third.left() == BASELINE, "what is to be put back behind a is not lost"


def test_a_store_that_is_away_while_they_are_taken_leaves_nobody_with_half(store: Store, clock: Clock) -> None:
    first, second = leases(store, clock, "ab", "one"), leases(store, clock, "bc", "two")
    owners(first)
    store.away = True
    clock.now_s += LEASE_S + 0.01
    assert owners(first, second) == ["unknown", "unknown"]
    store.away = False
    assert owners(first, second) == ["ours", "theirs"]
    store.away = True
    with pytest.raises(BusError):
        asyncio.run(first.keep(BASELINE, None))


def test_who_is_refused_knows_at_once_who_was_quicker(store: Store, clock: Clock) -> None:
    first, second = leases(store, clock, "x", "one"), leases(store, clock, "x", "two")

    async def race() -> list[str]:
        return list(await asyncio.gather(first.step(), second.step()))

    assert sorted(asyncio.run(race())) == ["ours", "theirs"]
    assert first.other + second.other


def test_who_stands_by_names_the_other_one_while_it_tries_to_take_over(store: Store, clock: Clock) -> None:
    first, second = leases(store, clock, "x", "one"), leases(store, clock, "x", "two")
    owners(first, second)
    named = second.other
    assert named
    clock.now_s += LEASE_S + 0.01
    put = store.put

    async def no_answer(*_: object) -> int | None:
        raise BusError("no answer")

    store.put = no_answer  # type: ignore[method-assign, assignment]
    assert owners(second) == ["theirs"]
    assert (second.other, second.are_elsewhere) == (named, True)
    store.put = put  # type: ignore[method-assign]
    assert owners(second) == ["ours"]
    assert (second.other, second.are_elsewhere) == ("", False)


def test_an_owner_is_sure_of_it_while_nobody_can_have_taken_over(store: Store, clock: Clock) -> None:
    holder = leases(store, clock, "xy", "one")
    assert not holder.is_sure
    owners(holder)
    assert holder.is_sure
    clock.now_s += LEASE_S / 2 + 0.01
    assert holder.owner == "ours"
    assert not holder.is_sure


def test_an_owner_is_not_sure_of_it_before_every_record_carries_the_baseline(store: Store, clock: Clock) -> None:
    """A weight that was lowered then would stay lowered: who takes over would know of no baseline."""
    holder = leases(store, clock, "xy", "one")
    owners(holder)
    put = store.put

    async def no_answer_for_y(key: str, value: bytes, revision: int) -> int | None:
        if key == "y":
            raise BusError("the store does not answer")
        return await put(key, value, revision)

    given_up = holder.keep(BASELINE, None)
    assert not holder.is_sure, "before the coroutine has begun, which may be given up"
    given_up.close()
    store.put = no_answer_for_y  # type: ignore[method-assign]
    with pytest.raises(BusError):
        asyncio.run(holder.keep(BASELINE, None))
    assert holder.owner == "ours"
    assert not holder.is_sure
    store.put = put  # type: ignore[method-assign]
    owners(holder)
    assert holder.is_sure, "the next renewal brought it"


@pytest.fixture
def three() -> Iterator[list[RealHAProxy]]:
    with web_servers(3) as ports, ExitStack() as stack:
        yield [stack.enter_context(haproxy(backend(ports))) for _ in range(3)]


class Spread(Store):
    """A store that also does what only a cluster's does."""

    async def spread(self) -> None:
        pass


class Owner:
    """An engine with its leases, as the process has them; it turns when the test says so."""

    def __init__(self, members: list[RealHAProxy], store: Spread, folder: Path, journal: Journal) -> None:
        first, *others = (member.socket for member in members)
        pool = HAProxyPool(name="web", backend="web", socket=first, sockets=others, mode="act")
        self.engine = Engine(pool, LbengineSettings(socket_timeout_s=60.0), folder, journal)
        self.thread = EngineThread("engine")
        self.taken_over: list[float] = []
        self.ownership = Ownership(self.engine, pool, store, self.thread, self.taken_over.append)

    async def cycle(self, now_s: float, slow: str = "") -> str:
        for host in HOSTS:
            self.engine.inbox.put(verdict(host, "interference" if host == slow else "calm"), now_s)
        return await self.thread.run(self.engine.cycle, now_s)

    async def stop(self, now_s: float) -> None:
        await self.thread.run(self.engine.stop, now_s, "the end")
        await self.ownership.end()
        self.thread.shutdown()


@needs_haproxy
def test_of_two_engines_whose_lists_overlap_one_drives_and_the_other_follows_without_a_jump(
    three: list[RealHAProxy], tmp_path: Path
) -> None:
    def weights() -> list[int]:
        return [member.weight("host1") for member in three]

    store = Spread()

    async def story(journal: Journal) -> None:
        first = Owner(three[:2], store, tmp_path / "one", journal)
        second = Owner(three[1:], store, tmp_path / "two", journal)
        await first.ownership.begin()
        await second.ownership.begin()
        await first.cycle(1.0)
        await first.cycle(1.2, "host1")
        assert f"drives backend `web` behind {three[1].socket}" in await second.cycle(1.2, "host1")
        assert weights() == [0, 0, 100]
        await first.stop(1.4)
        assert weights() == [100, 100, 100]
        await second.ownership.step()
        assert len(second.taken_over) == 1
        await second.cycle(1.6)
        await second.cycle(1.8, "host1")
        assert weights() == [100, 0, 0]
        await second.stop(2.0)

    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with Journal.open(journal_path(tmp_path)) as journal:
        asyncio.run(story(journal))
    assert weights() == [100, 100, 100]
