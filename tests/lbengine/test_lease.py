"""The lease by itself, on a store that the test can break and with clocks that only the test moves."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from slackwater.core.bus.bus import BusError
from slackwater.lbengine.backends.haproxy import backend as haproxy
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.lbengine.backends.ipvs import backend as ipvs
from slackwater.lbengine.backends.ipvs.settings import IpvsPool
from slackwater.lbengine.backends.keepalived.settings import KeepalivedPool
from slackwater.lbengine.baseline import Baseline
from slackwater.lbengine.leadership.lease import LEASE_S, RENEW_S, Lease, keys_of
from slackwater.lbengine.overrides.overrides import Pause
from tests.support.played_lease_store import Clock, Store, owners


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def lease(store: Store, clock: Clock, folder: str = "/one", *, host: str = "") -> Lease:
    """A lease; with a `host` it is another machine's, whose process ids say nothing here."""
    made = Lease(store, "k", folder, clock)
    if host:
        made._me = msgspec.structs.replace(made._me, folder=host, process_space=host, pid=1)
    return made


def test_the_first_has_it_and_the_second_stands_by(store: Store, clock: Clock) -> None:
    first, second = lease(store, clock), lease(store, clock, "/two", host="other")
    for _ in range(20):
        assert owners(first, second) == ["ours", "theirs"]
        clock.now_s += RENEW_S
    assert second.their_record is not None
    assert second.their_record.pid == os.getpid()
    assert second.is_elsewhere


def test_a_death_is_followed_within_three_seconds_with_what_the_first_one_left(store: Store, clock: Clock) -> None:
    first, second = lease(store, clock, host="far"), lease(store, clock, "/two")
    owners(first, second)
    baseline, pause = {"host1": Baseline(100, 100, 50)}, Pause("alice", "deploy", 1.0)
    asyncio.run(first.keep(baseline, pause))
    died_s = clock.now_s
    while owners(second) != ["ours"]:
        clock.now_s += RENEW_S
    assert LEASE_S <= clock.now_s - died_s <= LEASE_S + 2 * RENEW_S
    assert LEASE_S + 2 * RENEW_S < 3.0
    assert (second.baseline, second.paused) == (baseline, pause)
    assert owners(first) == ["theirs"], "the first one was only stopped"


def test_a_process_of_this_host_that_is_gone_is_not_waited_for(store: Store, clock: Clock) -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    first, second = lease(store, clock), lease(store, clock, "/two")
    first._me = msgspec.structs.replace(first._me, pid=process.pid)
    assert owners(first, second) == ["ours", "ours"]


def test_two_machines_with_the_same_name_do_not_both_lead(store: Store, clock: Clock) -> None:
    """A process id of the other machine says nothing here, and its state folder is another, though the path is ours.
    It may be a copy of ours."""
    process = subprocess.Popen(["true"])
    process.wait()
    first, second = lease(store, clock), lease(store, clock)
    first._me = msgspec.structs.replace(first._me, process_space="another", pid=process.pid)
    assert first._me.host == second._me.host
    for _ in range(5):
        assert owners(first, second) == ["ours", "theirs"]
        clock.now_s += RENEW_S
    assert second.is_elsewhere, "it lives"


def test_a_process_id_of_before_a_reboot_says_nothing(store: Store, clock: Clock) -> None:
    first, second = lease(store, clock), lease(store, clock)
    first._me = msgspec.structs.replace(first._me, process_space="the boot before", pid=os.getpid())
    assert owners(first, second) == ["ours", "theirs"]
    assert not second.is_elsewhere
    clock.now_s += LEASE_S + 0.01
    assert owners(second) == ["ours"]


def test_a_record_of_an_earlier_version_is_waited_for(store: Store, clock: Clock) -> None:
    first, second = lease(store, clock), lease(store, clock, "/two")
    first._me = msgspec.structs.replace(first._me, folder="", process_space="", pid=2**22 + 1)
    assert owners(first, second) == ["ours", "theirs"]


def test_a_lease_that_was_given_back_is_taken_at_once(store: Store, clock: Clock) -> None:
    first, second = lease(store, clock), lease(store, clock, "/two")
    owners(first, second)
    asyncio.run(first.release())
    assert store.record().holder == ""
    assert owners(second) == ["ours"]


def test_it_is_counted_how_often_it_was_taken_from_one_that_may_not_know_of_it_yet(store: Store, clock: Clock) -> None:
    first, second = lease(store, clock, host="far"), lease(store, clock, "/two")
    owners(first)
    asyncio.run(first.release())
    assert owners(second) == ["ours"]
    assert (first.taken_after_others, second.taken_after_others) == (0, 0), "nobody had it, or it was given back"
    clock.now_s += LEASE_S + 0.01
    owners(first)
    clock.now_s += LEASE_S + 0.01
    assert owners(first) == ["ours"]
    assert first.taken_after_others == 1, "two may be cut off"
    asyncio.run(first.release(contested=True))
    assert owners(second) == ["ours"]
    assert second.taken_after_others == 1, "one gave it back, but from a third that may be cut off"
    clock.now_s += LEASE_S + 0.01
    owners(first)
    clock.now_s += LEASE_S + 0.01
    assert owners(first, second) == ["ours", "theirs"]
    clock.now_s += LEASE_S + 0.01
    assert owners(second) == ["ours"]
    assert second.taken_after_others == 2


def test_a_lease_that_was_lost_and_given_back_within_a_step_was_another_ones_in_between(
    store: Store, clock: Clock
) -> None:
    first, second = lease(store, clock, host="far"), lease(store, clock, "/two")
    owners(first, second)
    clock.now_s += LEASE_S + 0.01  # the first is frozen
    assert owners(second) == ["ours"]
    asyncio.run(second.release())
    assert owners(first) == ["ours"]
    assert first.taken_after_others == 1


def test_without_the_store_nobody_knows_and_an_owner_stays_one_for_the_lease(store: Store, clock: Clock) -> None:
    first, second = lease(store, clock), lease(store, clock, "/two", host="other")
    owners(first, second)
    store.away = True
    clock.now_s += LEASE_S / 2 + 0.01
    assert owners(first, second) == ["ours", "theirs"]
    assert first.stale
    clock.now_s += LEASE_S / 2 + 0.01
    assert owners(first, second) == ["unknown", "theirs"]
    store.away = False
    assert owners(first) == ["ours"], "nobody else took it"


def test_an_owner_that_was_frozen_is_stale_before_it_may_act(store: Store, clock: Clock) -> None:
    first, second = lease(store, clock, host="far"), lease(store, clock, "/two")
    owners(first, second)
    assert not first.stale
    clock.now_s += LEASE_S + 0.01
    assert first.stale
    assert owners(second, first) == ["ours", "theirs"]


def test_two_that_want_it_at_once_get_one_owner(store: Store, clock: Clock) -> None:
    leases = [lease(store, clock, f"/{n}", host=f"h{n}") for n in range(5)]

    async def race() -> list[str]:
        return list(await asyncio.gather(*(each.step() for each in leases)))

    for _ in range(3):
        asyncio.run(race())
    assert sorted(each.owner for each in leases).count("ours") == 1


def test_what_is_kept_after_somebody_took_over_is_refused(store: Store, clock: Clock) -> None:
    first, second = lease(store, clock, host="far"), lease(store, clock, "/two")
    owners(first, second)
    clock.now_s += LEASE_S + 0.01
    assert owners(second) == ["ours"]
    with pytest.raises(BusError, match="somebody else has the lease"):
        asyncio.run(first.keep({"host1": Baseline(1, 1)}, None))
    assert store.record().baseline is None


@pytest.mark.parametrize("data", [b"{", b'{"holder": "\xff"}'])
def test_a_record_that_cannot_be_read_is_nobodys(store: Store, clock: Clock, data: bytes) -> None:
    store.values["k"] = (data, 7)
    assert owners(lease(store, clock)) == ["ours"]


def keys(backend: str, *sockets: str, name: str = "web") -> set[str]:
    first, *others = sockets
    return set(keys_of(HAProxyPool(name, backend=backend, socket=first, sockets=others, allow_tcp_socket=True)))


def test_a_key_distinguishes_balancers_and_hosts_where_paths_are_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_ipvs(balancer: Literal["lvs", "keepalived"], service: str) -> set[str]:
        return set(keys_of({"lvs": IpvsPool, "keepalived": KeepalivedPool}[balancer]("web", service=service)))

    keys_of_pool = keys("web", "/a") | keys("api", "/a") | keys("web", "tcp://h:1") | of_ipvs("lvs", "-f 7")
    assert len(keys_of_pool | of_ipvs("lvs", "-f 7 -6")) == 5
    assert of_ipvs("keepalived", "-f 7") < keys_of_pool
    for backend in (haproxy, ipvs):
        monkeypatch.setattr(backend, "kernel_id", lambda: "other")
    assert len(keys_of_pool | keys("web", "/a") | of_ipvs("lvs", "-f 7")) == 6
    assert keys("web", "tcp://h:1") < keys_of_pool


def test_each_balancer_of_a_pool_has_its_own_key_whatever_the_pool_is_called() -> None:
    assert keys("web", "/a", "/b") == keys("web", "/a") | keys("web", "/b", name="shop")
    assert len(keys("web", "/a", "/b")) == 2


class LostAnswers(Store):
    """What is written is written, but nobody hears of it while `lost`."""

    lost = False

    async def put(self, key: str, value: bytes, revision: int) -> int | None:
        written = await super().put(key, value, revision)
        if self.lost:
            raise BusError("no answer")
        return written


def test_what_was_left_is_inherited_although_the_answer_to_the_takeover_got_lost(clock: Clock) -> None:
    store = LostAnswers()
    first, second = lease(store, clock, host="far"), lease(store, clock, "/two")
    owners(first, second)
    asyncio.run(first.keep({"host1": Baseline(100, 100)}, None))
    owners(second)
    clock.now_s += LEASE_S + 0.01
    store.lost = True
    assert owners(second) != ["ours"]
    store.lost = False
    clock.now_s += RENEW_S
    assert owners(second) == ["ours"]
    assert second.baseline == {"host1": Baseline(100, 100)}


def test_the_same_socket_is_the_same_key_in_all_containers_that_share_it(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "mounted").symlink_to(tmp_path / "one")
    assert keys("web", f"{tmp_path}/one/admin.sock") == keys("web", f"{tmp_path}/mounted/admin.sock")
    assert keys("web", f"{tmp_path}/one/admin.sock") != keys("web", f"{tmp_path}/two/admin.sock")


def test_what_was_taken_over_and_not_on_the_disk_yet_is_found_by_the_next_run(store: Store, clock: Clock) -> None:
    far, two, again = lease(store, clock, host="far"), lease(store, clock, "/two"), lease(store, clock, "/two")
    owners(far, two)
    asyncio.run(far.keep({"host1": Baseline(100, 100)}, None, "of far"))
    owners(two)
    clock.now_s += LEASE_S + 0.01
    assert owners(two) == ["ours"], "and it dies before anything is on its disk"
    owners(again)
    clock.now_s += LEASE_S + 0.01
    assert owners(again) == ["ours"]
    assert (again.baseline, again.baseline_id) == ({"host1": Baseline(100, 100)}, "of far")


def test_a_record_that_changes_while_the_answer_is_on_its_way_is_new_when_it_comes(store: Store, clock: Clock) -> None:
    first, second = lease(store, clock, host="far"), lease(store, clock, "/two")
    owners(first)

    async def slow_get(key: str) -> tuple[bytes, int] | None:
        clock.now_s += 0.5
        return store.values.get(key)

    store.get = slow_get  # type: ignore[method-assign]
    owners(second)
    heard_s = clock.now_s
    clock.now_s += LEASE_S - 0.6
    assert owners(second) == ["theirs"]
    assert second.heard_s == heard_s
