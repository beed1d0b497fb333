"""Disturbances: the stepped clock for one program, the shared service, what a deploy makes of a request."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater_lab.cluster.controller import start_bus
from slackwater_lab.cluster.database import set_delay
from slackwater_lab.cluster.lab import Lab, LabSettings
from slackwater_lab.cluster.paths import LabError
from slackwater_lab.cluster.traces import traces
from slackwater_lab.disturb.disturb import CLOCK_SOURCE, DISTURBERS, Clock, DisturbableCluster, prelude
from slackwater_lab.disturb.timetable import DISTURBANCES, LOADS, Disturbance
from slackwater_lab.disturb.turn import Turn
from tests.support.real_lab import eventually, needs_lab
from tests.support.real_processes import free_port

CLOCKS = "import time\nwhile input(): print(time.time(), time.monotonic(), flush=True)"


def test_each_disturbance_is_done_by_a_load_or_by_a_line_of_the_table() -> None:
    assert set(DISTURBANCES) == {*DISTURBERS, "flash_crowd"}
    assert not set(DISTURBERS) & set(LOADS)


@pytest.mark.skipif(shutil.which("cc") is None, reason="cc is not on this machine")
def test_a_clock_step_moves_the_wall_clock_of_one_program_alone(tmp_path: Path) -> None:
    shim = tmp_path / "clock.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", shim, CLOCK_SOURCE, "-lm"], check=True)
    clock = Clock(tmp_path / "clock")
    env = {**os.environ, "LD_PRELOAD": str(shim), "SLACKWATER_LAB_CLOCK": str(clock.file)}
    with subprocess.Popen(
        [sys.executable, "-c", CLOCKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None

        def clocks() -> tuple[float, float]:
            program.stdin.write("now\n")  # type: ignore[union-attr]
            program.stdin.flush()  # type: ignore[union-attr]
            wall_s, monotonic_s = map(float, program.stdout.readline().split())  # type: ignore[union-attr]
            return wall_s, monotonic_s

        for step_s in (0.0, 20.5, -2.25, 0.0):
            clock.step(step_s)
            before_s = time.time(), time.monotonic()
            wall_s, monotonic_s = clocks()
            after_s = time.time(), time.monotonic()
            assert before_s[0] - 0.1 <= wall_s - step_s <= after_s[0] + 0.1
            assert before_s[1] - 0.1 <= monotonic_s <= after_s[1] + 0.1
        program.stdin.write("\n")


@pytest.fixture
def service() -> Iterator[int]:
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "slackwater_lab.cluster.database", "127.0.0.1", str(port)])

    def answers() -> bool:
        try:
            set_delay("127.0.0.1", port, "web", 0.0)
        except OSError:
            return False
        return True

    try:
        eventually("it listens", answers, 60.0)
        yield port
    finally:
        process.kill()
        process.wait()


def asked_s(port: int, pool: str = "web") -> float:
    with socket.create_connection(("127.0.0.1", port), timeout=20.0) as client:
        begin = time.monotonic()
        client.sendall(f"{pool}\n".encode())
        assert client.recv(16) == b"ok\n"
        return time.monotonic() - begin


def test_the_shared_service_takes_as_long_as_it_is_set_to(service: int) -> None:
    set_delay("127.0.0.1", service, "web", 0.3)
    assert asked_s(service) >= 0.3
    eventually("another pool is answered at once", lambda: asked_s(service, "shop") < 0.3, 60.0)
    set_delay("127.0.0.1", service, "web", 0.0)
    eventually("it is quick again", lambda: asked_s(service) < 0.3, 60.0)


def test_a_deploy_adds_work_to_each_request() -> None:
    assert "$i < 0;" in prelude("web", 0)
    assert "$i < 1234;" in prelude("web", 1234)


def until_over(turn: Turn) -> None:
    """Waits for the disturbance's end. Raises LabError when it could not be done."""
    eventually(f"the end of {turn.disturbance.kind}", lambda: turn.over, 60.0)


@pytest.mark.lab
@needs_lab
def test_a_real_lab_outlives_every_disturbance_and_serves_afterwards() -> None:
    if left_behind := traces():
        pytest.skip(f"a lab is up or was left behind: {left_behind}")
    with Lab(LabSettings(hosts=2)) as lab:
        site = DisturbableCluster(lab)
        start_bus(lab)
        site.start_monitors()
        site.cpu_s = 0.01
        host = lab.hosts[1]
        for kind in DISTURBERS:
            before = site.monitors[host.name]
            with Turn(site, Disturbance(1, kind, 2.0, 0.0, 0.0), host, time.monotonic()) as turn:
                until_over(turn)
            eventually(f"all serve after {kind}", lambda: all(site.serves(host) for host in lab.hosts), 60.0)
            lab.check()
            assert (site.monitors[host.name] is not before) == (kind == "start")
        assert lab.balancer.snapshot().weight == {"host1": 100, "host2": 100}
    assert traces() == []


@pytest.mark.lab
@needs_lab
def test_a_restart_that_fails_is_reported() -> None:
    if left_behind := traces():
        pytest.skip(f"a lab is up or was left behind: {left_behind}")
    with Lab(LabSettings(hosts=2)) as lab:
        site = DisturbableCluster(lab)
        site.start_monitors()
        del site.monitors["host2"]
        disturbance = Disturbance(1, "start", 1.0, 0.0, 0.0)
        with (
            pytest.raises(LabError, match="start on host2 cannot go on: 'host2'"),  # its monitor is not known
            Turn(site, disturbance, lab.hosts[1], time.monotonic()) as turn,
        ):
            until_over(turn)
