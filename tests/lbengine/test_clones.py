"""Two controllers on copies of one machine: nothing tells them apart but what each keeps in its state folder, and that
may be a copy too."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slackwater.core import machine
from slackwater.core.config import BusSettings, ControllerSettings, LbengineSettings
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.machine import folder_id
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.lbengine.baseline import Baseline, BaselineError, BaselineStore
from slackwater.lbengine.engine import Engine
from slackwater.lbengine.engine_thread import EngineThread
from slackwater.lbengine.leadership.another import another_of
from slackwater.lbengine.leadership.lease import LEASE_S, Lease, keys_of
from slackwater.lbengine.leadership.ownership import Ownership
from slackwater.lbengine.overrides.overrides import Pause
from slackwater.lbengine.restore import restore
from tests.support.played_lease_store import Store
from tests.support.real_haproxy import RealHAProxy, needs_haproxy

HOSTS = ("host1", "host2", "host3")
STORED = dict.fromkeys(HOSTS, Baseline(100, 100))


def test_a_folder_has_an_id_of_its_own_which_it_keeps(tmp_path: Path) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    for folder in (first, second):
        folder.mkdir()
    first_id = folder_id(str(first))
    assert first_id != folder_id(str(second))
    folder_id.cache_clear()
    assert folder_id(str(first)) == first_id
    (first / "id").write_text("\0\n")
    folder_id.cache_clear()
    assert folder_id(str(first)) != first_id
    assert folder_id(str(tmp_path / "nowhere")) == folder_id(str(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()


def pool_of(balancer: RealHAProxy) -> HAProxyPool:
    return HAProxyPool(name="web", backend="web", socket=balancer.socket, mode="act")


class Bucket(Store):
    async def spread(self) -> None:
        """It is one server's."""


class One:
    """A controller's lbengine, with a disk of its own."""

    def __init__(self, folder: Path, balancer: RealHAProxy, store: Bucket) -> None:
        self.folder = folder
        self.pool = pool_of(balancer)
        self.journal = Journal.open(journal_path(folder))
        self.engine = Engine(self.pool, LbengineSettings(socket_timeout_s=20.0), folder, self.journal)
        self.thread = EngineThread("lbengine")
        # Process ids say nothing here: the other one is in another process namespace.
        process = machine.Process("lb", f"space of {folder}", 7, lambda _: False)
        self.ownership = Ownership(self.engine, self.pool, store, self.thread, lambda _: None, process)

    async def turns(self) -> None:
        """Takes turns for longer than a lease, while nobody says anything."""
        now_s = asyncio.get_running_loop().time()
        for second in range(20):
            await self.thread.run(self.engine.cycle, now_s + second)

    async def crash(self) -> None:
        """Its lease stays behind, and what it has set."""
        await self.ownership.leave()
        self.thread.shutdown()
        self.journal.close()


@needs_haproxy
@pytest.mark.parametrize("copied", ["the machine", "the state folder too", "the state folder, after an episode"])
def test_a_copy_takes_over_with_the_baseline(tmp_path: Path, balancer: RealHAProxy, copied: str) -> None:
    async def scene() -> None:
        store = Bucket()
        a, b = tmp_path / "a", tmp_path / "b"
        a.mkdir()
        folder_id(str(a))
        if copied == "the machine":
            b.mkdir()
        else:
            if copied == "the state folder, after an episode":
                past = BaselineStore(a, pool_of(balancer))
                past.save(dict.fromkeys(HOSTS, Baseline(7, 7)))
                past.remove()
            shutil.copytree(a, b)
        driving = One(a, balancer, store)
        await driving.ownership.begin()
        await driving.thread.run(driving.engine.store.save, STORED)
        balancer.send("set server web/host1 weight 0")
        two = One(b, balancer, store)
        await two.ownership.begin()
        assert two.engine.standby
        await driving.crash()
        async with asyncio.timeout(60.0):
            while two.engine.standby or not two.engine.store.path.exists():
                await asyncio.sleep(LEASE_S / 10)
        assert await two.thread.run(two.engine.store.load) == STORED
        await two.turns()
        assert balancer.weight("host1") == 100
        await two.crash()

    asyncio.run(scene())


@contextmanager
def no_room(monkeypatch: pytest.MonkeyPatch, writes: str) -> Iterator[list[str]]:
    """The disk is full for what this module writes; gives the refusals."""
    refused: list[str] = []

    def refuse(path: Path, *_: object) -> None:
        refused.append(path.name)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(f"slackwater.lbengine.{writes}.replace_durably", refuse)
        yield refused


@needs_haproxy
@pytest.mark.parametrize(("writes", "paused"), [("baseline", None), ("state_file", Pause("alice", "deploy", 1.0))])
@pytest.mark.parametrize("starts", ["before the end of the other", "after it"])
def test_a_takeover_waits_for_room_on_the_disk(
    tmp_path: Path,
    balancer: RealHAProxy,
    monkeypatch: pytest.MonkeyPatch,
    writes: str,
    paused: Pause | None,
    starts: str,
) -> None:
    async def scene() -> None:
        store = Bucket()
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
        driving, two = (One(tmp_path / name, balancer, store) for name in ("a", "b"))
        driving.engine.commands.overrides.set_pause(paused)
        await driving.ownership.begin()
        await driving.thread.run(driving.engine.store.save, STORED)
        balancer.send("set server web/host1 weight 0")
        if starts == "after it":
            driving.ownership.lease.hold(STORED, paused, driving.engine.store.id)
            await driving.ownership.lease.release()
        else:
            await two.ownership.begin()
        await driving.crash()
        async with asyncio.timeout(60.0):
            with no_room(monkeypatch, writes) as refused:
                if starts == "after it":
                    await two.ownership.begin()
                while len(refused) < 2:
                    await asyncio.sleep(LEASE_S / 10)
                assert "No space left on device" in two.engine.standby
                assert two.ownership.lease.owner != "ours", "another lbengine may take it"
            while two.engine.standby:
                await asyncio.sleep(LEASE_S / 10)
        await two.turns()
        assert balancer.weight("host1") == 100
        assert two.engine.paused == paused
        await two.crash()

    asyncio.run(scene())


@needs_haproxy
def test_another_lbengine_takes_over_where_one_has_no_room_on_its_disk(
    tmp_path: Path, balancer: RealHAProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        store = Bucket()
        for name in ("a", "b", "c"):
            (tmp_path / name).mkdir()
        driving, full, free = (One(tmp_path / name, balancer, store) for name in ("a", "b", "c"))
        await driving.ownership.begin()
        await driving.thread.run(driving.engine.store.save, STORED)
        balancer.send("set server web/host1 weight 0")
        await full.ownership.begin()
        save = full.engine.store.save

        def refuse(_: object) -> None:
            raise BaselineError("no room")

        monkeypatch.setattr(full.engine.store, "save", refuse)
        await driving.crash()
        async with asyncio.timeout(60.0):
            while full.engine.standby != "this lbengine cannot: no room":
                await asyncio.sleep(LEASE_S / 10)
            await free.ownership.begin()
            while free.engine.standby or not free.engine.store.path.exists():
                await asyncio.sleep(LEASE_S / 10)
            monkeypatch.setattr(full.engine.store, "save", save)
            while "drives" not in full.engine.standby:
                await asyncio.sleep(LEASE_S / 10)
        await free.turns()
        assert balancer.weight("host1") == 100
        await full.crash()
        await free.crash()

    asyncio.run(scene())


@needs_haproxy
@pytest.mark.parametrize("is_a_copy", [True, False])
def test_the_end_of_one_leaves_the_weights_to_a_copy_that_drives_them_and_not_to_its_own_lbengine(
    tmp_path: Path, balancer: RealHAProxy, is_a_copy: bool
) -> None:
    async def scene() -> None:
        store = Bucket()
        a, b = tmp_path / "a", tmp_path / "b"
        a.mkdir()
        folder_id(str(a))
        shutil.copytree(a, b)
        driving = One(b, balancer, store)
        await driving.ownership.begin()
        ending = machine.Process("lb", f"space of {a if is_a_copy else b}", 8, lambda _: False)
        clock = asyncio.get_running_loop().time
        other = await another_of([Lease(store, key, str(a), clock, ending) for key in keys_of(driving.pool)])
        assert other == ("lbengine of lb (pid 7) drives it" if is_a_copy else "")
        await driving.crash()

    asyncio.run(scene())


@needs_haproxy
def test_what_the_restore_command_has_put_back_is_not_taken_from_the_record(
    tmp_path: Path, balancer: RealHAProxy
) -> None:
    """Somebody may have set a weight by hand since."""

    async def scene() -> None:
        store = Bucket()
        driving = One(tmp_path, balancer, store)
        await driving.ownership.begin()
        await driving.thread.run(driving.engine.store.save, STORED)
        balancer.send("set server web/host1 weight 0")
        await driving.crash()
        settings = ControllerSettings(pool=[driving.pool], state_dir=str(tmp_path), bus=BusSettings())
        assert [change.target for change in restore(settings, driving.pool, "alice", "it crashed")] == ["host1"]
        balancer.send("set server web/host2 weight 50")
        again = One(tmp_path, balancer, store)
        await again.ownership.begin()
        async with asyncio.timeout(60.0):
            while again.ownership.lease.owner != "ours":
                await asyncio.sleep(LEASE_S / 10)
        assert await again.thread.run(again.engine.store.load) is None
        await again.turns()
        assert balancer.weight("host2") == 50
        await again.crash()

    asyncio.run(scene())
