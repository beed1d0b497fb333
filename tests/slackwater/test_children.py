"""A supervisor's child: how it dies, comes back, and is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slackwater.supervise.children import Child, Death, how_it_ended, wait_before_start_s
from slackwater.supervise.serve import Outage
from tests.support.real_processes import is_alive

IN_TIME_S = 20.0


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


def test_ends_are_told_in_words() -> None:
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
        "import sys, time\nfrom slackwater.supervise.children import Child\n"
        "child = Child('sleeper', ['sleep', '1000'])\nchild.start()\nprint(child.pid, flush=True)\ntime.sleep(1000)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        pid = int(supervisor.stdout.readline())
        assert is_alive(pid)
        supervisor.kill()
    until(lambda: not is_alive(pid))


def test_outage_is_overdue_when_lbengine_died_over_and_over_for_a_lease() -> None:
    outage = Outage(lease_s=3.0)
    assert not outage.is_overdue(0.0, running=True)
    outage.died(Death("lbengine", 10.0, 60.0))
    assert not outage.is_overdue(12.9, running=False)
    outage.died(Death("lbengine", 12.9, 0.5))
    assert not outage.is_overdue(13.5, running=True)  # it may be well now
    outage.died(Death("lbengine", 13.6, 0.5))
    assert outage.is_overdue(13.7, running=False)
    assert not outage.is_overdue(13.8, running=False)  # said once
    outage.died(Death("lbengine", 15.0, 1.0))
    assert outage.is_overdue(15.1, running=False)


def test_a_life_of_a_lease_ends_the_outage() -> None:
    outage = Outage(lease_s=3.0)
    outage.died(Death("lbengine", 10.0, 60.0))
    outage.died(Death("lbengine", 14.0, 3.5))
    assert not outage.is_overdue(14.1, running=False)
    assert outage.is_overdue(17.0, running=False)
