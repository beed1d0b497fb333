"""What may break does break here: power cuts between any two steps, HAProxy gone, stuck, cut off, a full disk."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from slackwater.core.config import ControllerSettings, LbengineSettings
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import State
from slackwater.lbengine.backends.haproxy.haproxy import HAProxy
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.lbengine.balancer import Balancer, BalancerError, BalancerUnreachable, Snapshot
from slackwater.lbengine.baseline import Baseline, BaselineStore
from slackwater.lbengine.engine import Engine
from slackwater.lbengine.restore import restore
from slackwater_lab.played_verdict import verdict
from tests.support.power_cut import Cutter, Disk, PowerCut
from tests.support.real_haproxy import (
    RealHAProxy,
    backend,
    haproxy,
    needs_haproxy,
    oldest_and_newest_too,
    until,
    web_servers,
)
from tests.support.relayed_socket import relayed

HOSTS = ("host1", "host2", "host3")
SETTINGS = LbengineSettings(socket_timeout_s=20.0)


class CutBalancer(Balancer):
    def __init__(self, inner: HAProxy, cutter: Cutter) -> None:
        self._inner, self._cutter = inner, cutter

    def read(self) -> Snapshot:
        return self._inner.read()

    def set_weights(self, weights: Mapping[str, int]) -> None:
        self._cutter.around(self._inner.set_weights)(weights)

    def set_maxconns(self, maxconns: Mapping[str, int]) -> None:
        self._cutter.around(self._inner.set_maxconns)(maxconns)


class CutJournal:
    def __init__(self, inner: Journal, cutter: Cutter) -> None:
        self.record: Callable[..., None] = cutter.around(inner.record)


class DrivenHAProxy:
    """A real HAProxy and engines that come and go on one state folder."""

    def __init__(self, balancer: RealHAProxy, folder: Path, journal: Journal) -> None:
        self.balancer = balancer
        self.folder = folder
        self.journal = journal
        self.pool = HAProxyPool(name="web", backend="web", socket=balancer.socket, mode="act")
        self.now_s = 1000.0

    def engine(self, **others: Any) -> Engine:
        return Engine(self.pool, SETTINGS, self.folder, **{"journal": self.journal, **others})

    def cycle(self, engine: Engine, host1: State = "calm", after_s: float = 0.2) -> str:
        self.now_s += after_s
        for host in HOSTS:
            state = host1 if host == "host1" else "calm"
            engine.inbox.put(verdict(host, state, time_unix_s=self.now_s), self.now_s)
        return engine.cycle(self.now_s)

    def weights(self) -> list[int]:
        return [self.balancer.weight(host) for host in HOSTS]

    def episode(self, engine: Engine) -> None:
        """An episode with everything that is written in it, to the clean end."""
        self.cycle(engine)
        self.cycle(engine, "interference")
        for _ in range(20):
            self.cycle(engine)
        self.cycle(engine, "interference")
        engine.stop(self.now_s, "the end")


@pytest.fixture
def site(tmp_path: Path, haproxy_in_full: str) -> Iterator[DrivenHAProxy]:  # noqa: ARG001 - which one `haproxy` starts
    with web_servers(3) as ports, haproxy(backend(ports)) as balancer, Journal.open(journal_path(tmp_path)) as journal:
        yield DrivenHAProxy(balancer, tmp_path, journal)


# --- power cuts


def cut_everywhere(
    folder: Path, before: Callable[[BaselineStore], None], work: Callable[[BaselineStore], None]
) -> list[tuple[bool, dict[str, Baseline] | None]]:
    """What is found after a cut at each step of `work`, and whether that had returned; on the worst of disks."""
    outcomes = []
    for number, names_first in itertools.product(range(100), (False, True)):
        place = folder / f"{number}-{names_first}"
        (place / "state").mkdir(parents=True)
        disk, store = Disk(place / "state"), BaselineStore(place / "state", POOL)
        with disk.in_force(Cutter(1000)):
            before(store)
        returned = False
        with contextlib.suppress(PowerCut), disk.in_force(Cutter(number)):
            work(store)
            returned = True
        outcomes.append((returned, BaselineStore(disk.after_a_cut(place / "after", names_first), POOL).load()))
        if returned and names_first:
            break
    assert len(outcomes) > 8, "the steps were seen"
    return outcomes


OLD, NEW = {"host1": Baseline(100, 100)}, {"host1": Baseline(70, 70, 50), "host2": Baseline(1, 1)}
POOL = HAProxyPool(name="web", backend="web", socket="/s")


@pytest.mark.parametrize(
    ("before", "work", "old", "new"),
    [
        (lambda store: store.save(OLD), lambda store: store.save(NEW), OLD, NEW),
        (lambda _: None, lambda store: store.save(NEW), None, NEW),
        (lambda store: store.save(OLD), lambda store: store.remove(), OLD, None),
    ],
    ids=["replaced", "first", "removed"],
)
def test_a_power_cut_at_any_step_leaves_what_was_or_what_shall_be_and_the_latter_once_it_is_done(
    tmp_path: Path,
    before: Callable[[BaselineStore], None],
    work: Callable[[BaselineStore], None],
    old: dict[str, Baseline] | None,
    new: dict[str, Baseline] | None,
) -> None:
    outcomes = cut_everywhere(tmp_path, before, work)
    assert [stored for returned, stored in outcomes if returned] == [new, new]
    assert all(stored in (old, new) for _, stored in outcomes)
    assert outcomes[0] == (False, old)


@needs_haproxy
def test_a_power_cut_at_any_step_of_an_episode_is_followed_by_the_baseline(site: DrivenHAProxy) -> None:
    """However far it came: what starts next, or `restore` by hand, ends at the baseline weights."""
    cuts, settings = 0, ControllerSettings(pool=[site.pool], state_dir=str(site.folder), lbengine=SETTINGS)
    for number in range(200):
        cutter = Cutter(number)
        inner = HAProxy(site.balancer.socket, "web", 20.0)
        engine = site.engine(journal=CutJournal(site.journal, cutter), balancer=CutBalancer(inner, cutter))
        engine.store.save = cutter.around(engine.store.save)  # type: ignore[method-assign]
        engine.store.remove = cutter.around(engine.store.remove)  # type: ignore[method-assign]
        try:
            site.episode(engine)
            break
        except PowerCut:
            cuts += 1
        if number % 2:
            restore(settings, site.pool, "alice", "by hand")
        else:
            after = site.engine()
            after.cycle(site.now_s)
            for _ in range(2):
                site.now_s += SETTINGS.lease_s + SETTINGS.socket_timeout_s + 1.0
                after.cycle(site.now_s)
            after.stop(site.now_s, "the end")
        assert site.weights() == [100, 100, 100], f"cut at step {number}"
        assert not (site.folder / "baseline" / "web.json").exists()
    assert cuts > 20


# --- HAProxy


@needs_haproxy
def test_a_socket_that_goes_and_comes_back_is_taken_up_again(site: DrivenHAProxy) -> None:
    engine = site.engine()
    site.cycle(engine)
    away = Path(site.balancer.socket + ".away")
    Path(site.balancer.socket).rename(away)
    with pytest.raises(BalancerUnreachable, match="no such socket"):
        site.cycle(engine, "interference")
    away.rename(site.balancer.socket)
    site.cycle(engine, "interference")
    assert site.weights() == [0, 100, 100]


@needs_haproxy
def test_an_admin_socket_that_is_full_is_tried_again(site: DrivenHAProxy) -> None:
    balancer = HAProxy(site.balancer.socket, "web", 20.0)
    engine = site.engine(balancer=balancer)
    site.cycle(engine)
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            other = stack.enter_context(socket.socket(socket.AF_UNIX))
            other.connect(site.balancer.socket)
            other.sendall(b"prompt\n")
            other.recv(10)
        balancer.timeout_s = 0.3  # it is waited for in vain
        with pytest.raises(BalancerUnreachable, match="are all connections of its admin socket taken"):
            site.cycle(engine, "interference")
    balancer.timeout_s = 20.0

    def lowered() -> bool:
        with contextlib.suppress(BalancerUnreachable):
            site.cycle(engine, "interference")
        return site.weights() == [0, 100, 100]

    until(lowered, "the weight is lowered")


@needs_haproxy
@oldest_and_newest_too
def test_a_reply_that_is_cut_off_anywhere_ends_with_the_wanted_weights_and_blames_nobody(site: DrivenHAProxy) -> None:
    path = site.balancer.folder / "cut.sock"
    with relayed(path, site.balancer.socket) as relay:
        engine = site.engine(balancer=HAProxy(str(path), "web", 20.0))
        site.cycle(engine)
        for most in (0, 1, 2, 40, 200, 900):
            site.now_s += 60.0  # else the rate limit would hold the weight after six episodes in a minute
            relay.answer = lambda answer, most=most: answer[:most]  # type: ignore[misc]
            with contextlib.suppress(BalancerError):
                site.cycle(engine, "interference")
            relay.answer = lambda answer: answer
            site.cycle(engine, "interference")
            assert site.weights() == [0, 100, 100]
            for _ in range(20):
                site.cycle(engine)
            assert site.weights() == [100, 100, 100]
    assert {made.by for made in site.journal.changes("web")} == {"lbengine"}


@needs_haproxy
@oldest_and_newest_too
def test_a_reload_in_the_middle_of_large_batches_ends_with_the_wanted_weights(site: DrivenHAProxy) -> None:
    client = HAProxy(site.balancer.socket, "web", 5.0)
    before = site.balancer.pid()
    reloading = threading.Thread(target=site.balancer.reload)
    reloading.start()
    while reloading.is_alive():
        with contextlib.suppress(BalancerError):
            client.ask(*(f"set server web/host{1 + n % 3} weight {50 + n % 50}" for n in range(600)))
    reloading.join()

    def settled() -> bool:
        with contextlib.suppress(BalancerError):
            client.set_weights({"host1": 3, "host2": 4, "host3": 5})
            return client.read().pid != before
        return False

    until(settled, "the new process has the weights")
    client.timeout_s = 20.0
    assert [server.weight for server in client.read().servers] == [3, 4, 5]


# --- disk and clock


@pytest.mark.lab
@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk needs root to be mounted")
@needs_haproxy
def test_a_full_disk_lowers_nothing_and_the_way_back_stays_open(site: DrivenHAProxy, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted: {mounted.stderr.strip()}")
    try:
        site.folder = disk
        engine = site.engine()
        site.cycle(engine)
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4096)
        assert "not lowered: host1" in site.cycle(engine, "interference")
        assert "No space left on device" in site.cycle(engine, "interference")
        assert site.weights() == [100, 100, 100]
        filler.unlink()
        site.cycle(engine, "interference")
        assert site.weights() == [0, 100, 100]
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4096)
        for _ in range(20):
            site.cycle(engine)
        assert site.weights() == [100, 100, 100]
        assert engine.stop(site.now_s, "the end")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@needs_haproxy
def test_steps_of_the_wall_clock_change_nothing_but_the_labels(site: DrivenHAProxy) -> None:
    walls = iter([1e9, 2e9, 0.0, 1.7e9] * 1000)
    engine = site.engine(wall=lambda: next(walls))
    site.cycle(engine)
    site.cycle(engine, "interference")
    assert site.weights() == [0, 100, 100]
    for _ in range(4):
        site.cycle(engine, "interference")
    assert site.weights() == [0, 100, 100]
    site.cycle(engine)
    assert site.weights() == [100, 100, 100]
