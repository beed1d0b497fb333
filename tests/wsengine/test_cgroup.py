"""`cpu.share` and `cpu.cores` on a real cgroup with a process in it: what the kernel makes of it, and the way back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.real_cgroup import PERIOD_US, Guest, needs_cgroups
from tests.support.real_wsengine import Controller, Engine, Nats, make_keys, wait_for

pytestmark = needs_cgroups


@pytest.fixture
def guest() -> Iterator[Guest]:
    guest = Guest(f"slackwater-test-{os.getpid()}")
    yield guest
    guest.close()


@pytest.fixture
def control(tmp_path: Path, guest: Guest) -> Iterator[tuple[Controller, Engine]]:
    private, public = make_keys(tmp_path)
    nats = Nats(tmp_path / "nats")
    controller = Controller(nats.url, private)
    sections = f'[cpu]\ncgroup = "{guest.name}"\nshare = [10, 400]\ncores = [1, 64]\n'
    engine = Engine(tmp_path, nats.url, public, sections)
    engine.start()
    yield controller, engine
    engine.close()
    controller.close()
    nats.stop()


def test_weight_and_quota_of_a_real_cgroup_are_scaled_and_put_back(
    control: tuple[Controller, Engine], guest: Guest
) -> None:
    controller, engine = control
    weight, quota_us = guest.share()
    assert quota_us == 0.4 * PERIOD_US
    change = controller.order("cpu.share", 200)
    assert (change.before, change.after, change.applied) == (100, 200, True), change.why
    assert guest.share() == (2 * weight, 2 * quota_us)
    assert controller.order("cpu.share", 50).applied
    assert guest.share() == (weight // 2, quota_us // 2)
    assert engine.end() == 0
    assert guest.share() == (weight, quota_us)


def test_a_crash_leaves_the_share_for_the_next_start_to_put_back(
    control: tuple[Controller, Engine], guest: Guest
) -> None:
    controller, engine = control
    before = guest.share()
    assert controller.order("cpu.share", 300).applied
    engine.end(signal.SIGKILL)
    assert guest.share() != before
    engine.start()
    wait_for(lambda: guest.share() == before, "the share is as before")


def test_the_kernel_keeps_the_process_on_as_many_cores_as_ordered(
    control: tuple[Controller, Engine], guest: Guest
) -> None:
    if guest.cpuset is None:
        pytest.skip("no cpuset controller here")
    if guest.cores() < 2:
        pytest.skip("one core only")
    controller, engine = control
    all_of_them = guest.cores()
    change = controller.order("cpu.cores", 1)
    assert (change.before, change.after, change.applied) == (all_of_them, 1, True), change.why
    assert guest.cores() == 1
    assert engine.end() == 0
    assert guest.cores() == all_of_them


def test_a_quota_of_its_own_is_set_and_taken_away_again(tmp_path: Path) -> None:
    guest = Guest(f"slackwater-test-quota-{os.getpid()}", quota_cores=None)
    private, public = make_keys(tmp_path)
    nats = Nats(tmp_path / "nats")
    controller = Controller(nats.url, private)
    engine = Engine(tmp_path, nats.url, public, f'[cpu]\ncgroup = "{guest.name}"\nquota = [10, 400]\n')
    try:
        engine.start()
        assert guest.quota_percent() is None
        change = controller.order("cpu.quota", 60)
        assert (change.after, change.applied) == (60, True), change.why
        assert guest.quota_percent() == 60
        assert not controller.order("cpu.quota", 5).applied, "the node's own limits hold"
        assert engine.end() == 0
        assert guest.quota_percent() is None
    finally:
        engine.close()
        controller.close()
        nats.stop()
        guest.close()
