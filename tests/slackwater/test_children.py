"""A supervisor's child: how it dies, comes back, and is stopped."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slackwater.controller.supervise.children import (
    LONGEST_LOOK_S,
    Child,
    Death,
    SilenceLimits,
    how_it_ended,
    wait_before_start_s,
)
from slackwater.controller.supervise.outage import Outage
from slackwater.controller.supervise.parts import OTHERS_SILENT_S, lbengine_silent_s
from slackwater.controller.supervise.serve import LOOK_EVERY_S
from slackwater.core.config import LbengineSettings
from slackwater.core.heartbeat import VARIABLE, Heartbeat
from slackwater.lbengine.restore import RECORD_WITHIN_S
from tests.support.freezer import frozen, needs_freezer
from tests.support.real_processes import is_alive

IN_TIME_S = 60.0


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + IN_TIME_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_wait_doubles_up_to_a_ceiling_and_starts_anew_after_a_long_life() -> None:
    waits = [0.0]
    for _ in range(7):
        waits.append(wait_before_start_s(waits[-1], 0.1))
    assert waits[1:] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert wait_before_start_s(5.0, 9.9) == 5.0
    assert wait_before_start_s(5.0, 10.0) == 0.2


def test_ends_are_reported_in_words() -> None:
    assert how_it_ended(3) == "ended with status 3"
    assert how_it_ended(-9) == "was killed by SIGKILL"
    assert how_it_ended(-40) == "was killed by signal 40"


def test_child_that_dies_is_started_again_when_its_wait_is_over() -> None:
    clock = Clock()
    child = Child("sleeper", ["sleep", "1000"], clock=clock)
    child.start()
    first = child.pid
    assert first is not None
    try:
        assert child.tend() is None
        os.kill(first, signal.SIGKILL)
        clock.now_s += 3.0
        deaths: list[Death | None] = [None]

        def look() -> bool:
            deaths.append(child.tend())
            return deaths[-1] is not None

        until(look)
        assert deaths[-1] == Death("sleeper", 103.0, 3.0)
        assert child.pid is None
        assert child.tend() is None
        assert child.pid is None  # its wait is not over
        clock.now_s += 0.2
        child.tend()
        assert child.pid is not None
        assert child.pid != first
    finally:
        child.stop(1.0)
    assert child.pid is None
    assert not is_alive(first)


def test_program_that_is_gone_is_tried_again_and_ends_nothing(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexit 7\n")
    program.chmod(0o755)
    clock = Clock()
    child = Child("program", [str(program)], clock=clock)
    child.start()
    until(child.tend)
    assert "program (pid" in caplog.text
    assert "ended with status 7 after 0.0 s; starting it again in 0.2 s" in caplog.text
    program.unlink()
    clock.now_s += 1.0
    child.tend()
    assert child.pid is None
    assert "program cannot be started" in caplog.text


def test_child_that_ignores_sigterm_is_killed() -> None:
    program = (
        "import os, signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "os.write(int(sys.argv[1]), b'deaf')\ntime.sleep(1000)"
    )
    reader, writer = os.pipe()
    child = Child("deaf", [sys.executable, "-c", program, str(writer)], pass_fds=[writer])
    child.start()
    os.close(writer)
    pid = child.pid
    assert pid is not None
    assert os.read(reader, 10) == b"deaf"
    os.close(reader)
    child.stop(0.1)
    assert child.pid is None
    assert not is_alive(pid)


def test_child_is_replaced_by_one_with_another_command() -> None:
    child = Child("sleeper", ["sleep", "1000"])
    child.start()
    first = child.pid
    assert first is not None
    try:
        child.use(["sleep", "2000"], [], SilenceLimits())
        assert child.tend() is None
        assert child.pid == first  # until its next start
        child.begin_to_end(IN_TIME_S)
        until(child.has_ended)
        assert not is_alive(first)
        assert child.tend() is None
        assert child.pid is None  # nobody else starts it
        child.restart()
        pid = child.pid
        until(lambda: Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x002000\x00")
        assert child.starts == 2
    finally:
        child.stop(1.0)


def test_child_that_does_not_end_for_another_one_is_killed() -> None:
    clock = Clock()
    child = Child("sleeper", ["sleep", "1000"], clock=clock)
    child.start()
    assert child.pid is not None
    child.begin_to_end(3.0, signal.SIGCONT)  # which ends nothing
    assert not child.has_ended()
    clock.now_s += 3.0
    assert not child.has_ended()
    assert child.is_stuck
    until(child.has_ended)
    assert not child.is_stuck


def test_replaced_child_whose_program_is_gone_is_tried_again() -> None:
    clock = Clock()
    child = Child("sleeper", ["sleep", "1000"], clock=clock)
    child.start()
    try:
        child.use(["/no/such/program"], [], SilenceLimits())
        child.begin_to_end(IN_TIME_S)
        until(child.has_ended)
        child.restart()
        assert child.pid is None
        child.use(["sleep", "1000"], [], SilenceLimits())
        clock.now_s += 5.0
        child.tend()
        assert child.pid is not None
    finally:
        child.stop(1.0)


def test_child_has_its_own_process_group_and_no_blocked_signals() -> None:
    """So Ctrl-C reaches the supervisor alone, and SIGTERM reaches the child."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    child = Child("sleeper", ["sleep", "1000"])
    try:
        child.start()
        pid = child.pid
        assert pid is not None
        until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
        assert os.getpgid(pid) == pid
        blocked = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "SigBlk" in line)
        assert int(blocked.split()[1], 16) == 0
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        child.stop(1.0)


def test_children_end_when_the_supervisor_is_killed() -> None:
    program = (
        "import sys, time\nfrom slackwater.controller.supervise.children import Child\n"
        "child = Child('sleeper', ['sleep', '1000'])\nchild.start()\nprint(child.pid, flush=True)\ntime.sleep(1000)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        pid = int(supervisor.stdout.readline())
        assert is_alive(pid)
        supervisor.kill()
    until(lambda: not is_alive(pid))


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
@pytest.mark.parametrize("may_capture", [False, True])
def test_only_the_part_that_captures_inherits_the_right(may_capture: bool) -> None:
    program = (
        "from slackwater.controller.supervise.children import Child\n"
        "words = ['grep', '^CapEff:', '/proc/self/status']\n"
        f"child = Child('shown', words, may_capture={may_capture})\nchild.start()\nchild._process.wait()"
    )
    rights = ("--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=+net_raw", "--ambient-caps=+net_raw")
    command = ["setpriv", *rights, sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=IN_TIME_S)
    assert int(done.stdout.split()[1], 16) == (1 << 13 if may_capture else 0), done.stderr


def test_outage_is_overdue_when_lbengine_died_over_and_over_for_a_lease() -> None:
    outage = Outage(lease_s=3.0)
    assert not outage.is_overdue(0.0, works=True)
    outage.died(Death("lbengine", 10.0, 60.0))
    assert not outage.is_overdue(12.9, works=False)
    outage.died(Death("lbengine", 12.9, 0.5))
    assert not outage.is_overdue(13.5, works=True)  # it may be well now
    outage.died(Death("lbengine", 13.6, 0.5))
    assert outage.is_overdue(13.7, works=False)
    assert not outage.is_overdue(13.8, works=False)  # said once
    outage.died(Death("lbengine", 15.0, 1.0))
    assert outage.is_overdue(15.1, works=False)


def test_a_life_of_a_lease_ends_the_outage() -> None:
    outage = Outage(lease_s=3.0)
    outage.died(Death("lbengine", 10.0, 60.0))
    outage.died(Death("lbengine", 14.0, 3.5))
    assert not outage.is_overdue(14.1, works=False)
    assert outage.is_overdue(17.0, works=False)


def test_an_lbengine_that_hung_is_overdue_at_once() -> None:
    outage = Outage(lease_s=3.0)
    outage.died(Death("lbengine", 10.0, 60.0, hung=True))
    assert outage.is_overdue(10.0, works=False)
    assert not outage.is_overdue(10.1, works=False)


# --- children that hang


def worker(clock: Clock, beats: int, **limits: float) -> tuple[Child, int]:
    """A child that reports progress so often at once, and then hangs; and the end of a pipe that says when."""
    program = (
        "import os, sys, time\nfrom slackwater.core.heartbeat import Heartbeat\nheartbeat = Heartbeat()\n"
        f"for _ in range({beats}): heartbeat.beat()\nos.write(int(sys.argv[1]), b'hangs')\ntime.sleep(1000)"
    )
    reader, writer = os.pipe()
    command = [sys.executable, "-c", program, str(writer)]
    child = Child("worker", command, pass_fds=[writer], limits=SilenceLimits(**limits), clock=clock)
    child.start()
    os.close(writer)
    return child, reader


def look(child: Child, clock: Clock, for_s: float) -> list[Death]:
    """Looks every 0.1 s."""
    deaths = []
    for _ in range(round(for_s / LOOK_EVERY_S)):
        clock.now_s += LOOK_EVERY_S
        if (death := child.tend()) is not None:
            deaths.append(death)
    return deaths


def test_child_that_makes_no_more_progress_is_killed_and_started_again(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    child, reader = worker(clock, 3, start_s=100.0, silence_s=2.0)
    first = child.pid
    assert first is not None
    try:
        assert os.read(reader, 10) == b"hangs"
        assert look(child, clock, 1.9) == []
        assert child.has_progressed
        deaths = look(child, clock, 0.5)
        assert [(death.name, death.hung) for death in deaths] == [("worker", True)]
        assert not child.has_progressed
        assert child.hangs == 1
        assert "hangs: no progress for 2." in caplog.text
        until(lambda: child.tend() is None and child.pid is None)
        assert not child.is_stuck
        assert "was killed by SIGKILL" in caplog.text
        clock.now_s += 5.0
        assert child.tend() is None
        assert child.starts == 2
        assert child.pid not in (None, first)
    finally:
        child.stop(0.0)
        os.close(reader)


@needs_freezer
def test_child_that_the_kernel_cannot_end_is_reported_dead_at_once() -> None:
    """As in a system call on a disk that hangs: SIGKILL has no effect before the call returns."""
    clock = Clock()
    child, reader = worker(clock, 1, start_s=10.0, silence_s=1.0)
    try:
        assert os.read(reader, 10) == b"hangs"
        assert child.pid is not None
        with frozen(child.pid):
            assert [death.hung for death in look(child, clock, 2.0)] == [True]
            assert child.is_stuck
            assert look(child, clock, 5.0) == []  # once
            assert child.is_stuck
        until(lambda: child.tend() is None and not child.is_stuck)
    finally:
        child.stop(0.0)
        os.close(reader)


def test_child_may_take_longer_to_start_than_to_work() -> None:
    clock = Clock()
    child, reader = worker(clock, 0, start_s=4.0, silence_s=1.0)
    try:
        assert os.read(reader, 10) == b"hangs"
        assert look(child, clock, 3.9) == []
        assert [death.hung for death in look(child, clock, 0.5)] == [True]
    finally:
        child.stop(0.0)
        os.close(reader)


def test_child_survives_a_time_in_which_nobody_could_work() -> None:
    """The machine was suspended, or the supervisor was stopped: its first look afterwards ends nothing."""
    clock = Clock()
    child, reader = worker(clock, 1, start_s=10.0, silence_s=2.0)
    try:
        assert os.read(reader, 10) == b"hangs"
        assert look(child, clock, 1.0) == []
        for pause_s in (3600.0, 31e6):
            clock.now_s += pause_s
            assert child.tend() is None
        assert child.pid is not None
        assert [death.hung for death in look(child, clock, 1.0)] == [True]
    finally:
        child.stop(0.0)
        os.close(reader)


def test_progress_is_reported_when_every_part_has_come_round() -> None:
    reader, writer = os.pipe2(os.O_NONBLOCK)
    environment = {VARIABLE: str(writer)}
    heartbeat = Heartbeat(["web", "shop"], environment)
    assert environment == {}  # not for programs that the child starts
    assert not os.get_inheritable(writer)
    for _ in range(5):
        heartbeat.beat("web")  # while shop hangs
    with pytest.raises(BlockingIOError):
        os.read(reader, 10)
    heartbeat.beat("shop")
    assert os.read(reader, 10) == b"."
    heartbeat.beat("shop")
    heartbeat.beat("web")
    assert os.read(reader, 10) == b"."
    for _ in range(100_000):  # a supervisor that does not read holds nobody up
        heartbeat.beat("shop")
        heartbeat.beat("web")
    os.close(reader)
    heartbeat.beat("shop")
    heartbeat.beat("web")
    os.close(writer)
    Heartbeat(["web"], {}).beat("web")


@pytest.mark.parametrize("settings", [LbengineSettings(), LbengineSettings(socket_timeout_s=0.2, cycle_s=1.0)])
def test_the_baseline_is_back_within_five_seconds_of_a_hang(settings: LbengineSettings) -> None:
    """All that may pass until the last weight is set, with every step at its limit."""
    noticed_s = lbengine_silent_s(settings) + LOOK_EVERY_S
    read_and_set_s = 2 * settings.socket_timeout_s
    assert noticed_s + RECORD_WITHIN_S + read_and_set_s < 5.0
    assert LOOK_EVERY_S < LONGEST_LOOK_S < lbengine_silent_s(settings) < OTHERS_SILENT_S
