"""Calibration on a live bus with a noise command that is a real process: recorded, trained, asked, bounded, stopped."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slackwater.controller.cli.main import cli
from slackwater.core.bus import nats_server
from slackwater.core.bus.bus import Bus
from slackwater.core.messages import Cycle, Sample, Traffic
from slackwater.detector.classify import tree
from slackwater.detector.recordings.recording import read
from slackwater.detector.train import calibrate
from slackwater.detector.train.calibrate import (
    CalibrationError,
    CalibrationMonitor,
    NoiseSchedule,
    StopLimits,
    argv_of,
    beyond,
)
from tests.support.paths import PROGRAMS
from tests.support.real_processes import free_address
from tests.support.synthetic_cluster import Cluster

NATS = shutil.which("nats-server", path=str(PROGRAMS)) or shutil.which("nats-server")
DEADLINE_S = 60.0
PATIENT = """
from slackwater.detector.train import calibrate
from slackwater.controller.cli.main import main
calibrate.QUIET_S = 60.0
main()
"""
"""The command, where a busy machine may keep Samples waiting for longer than a cluster may."""


@dataclass
class Site:
    """A bus with a pool of three nodes on it; a file in `loud` that bears a node's name makes that node's noise."""

    config: Path
    url: str
    loud: Path
    begun: threading.Event = field(default_factory=threading.Event)
    end: threading.Event = field(default_factory=threading.Event)

    @property
    def noise(self) -> str:
        """A command that is loud until it is stopped; it writes down its process number."""
        code = (
            "import sys,time,os,pathlib;p=pathlib.Path(sys.argv[1]);n=p.with_suffix('.new');"
            "n.write_text(str(os.getpid()));n.rename(p);time.sleep(600)"
        )
        return f'{sys.executable} -c "{code}" {self.loud}/{{node}}'

    @property
    def stop(self) -> str:
        return f"rm -f {self.loud}/{{node}}"

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        bus = await Bus.connect(self.url, "test")
        cluster = Cluster()
        while not self.end.is_set():
            for name in cluster.names:
                cluster.hosts[name].neighbour = 0.9 if (self.loud / name).exists() else 0.0
                sample = cluster.sample(name, cluster.now_s)
                sample.time_unix_s = time.time()
                await bus.publish(sample)
            self.begun.set()
            await asyncio.sleep(0.04)
        await bus.close()

    def calibrate(self, out: Path, *arguments: str, answers: str = "") -> Result:
        argv = ["calibrate", "--config", str(self.config), "--out", str(out), "--node", "host1"]
        argv += ["--noise-command", self.noise, "--stop-command", self.stop, "--intensity", "0.5", "--intensity", "1"]
        argv += ["--rounds", "1", "--noise-s", "4", "--calm-s", "2", *arguments]
        return CliRunner().invoke(cli, argv, input=answers)


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    assert NATS, "nats-server is missing: run `make setup`"
    monkeypatch.setattr(calibrate, "QUIET_S", DEADLINE_S)
    monkeypatch.setattr(calibrate, "HEAR_S", DEADLINE_S)
    address = free_address()
    host, _, port = address.rpartition(":")
    server = subprocess.Popen([NATS, "-a", host, "-p", port], stderr=subprocess.DEVNULL)
    nats_server.wait_until_it_answers(address, tmp_path / "no.log", DEADLINE_S)
    config = tmp_path / "controller.toml"
    config.write_text(
        f'state_dir = "{tmp_path}/state"\n[bus]\nurl = "nats://{address}"\n'
        '[[pool]]\nname = "web"\nbackend = "web"\nsocket = "/nowhere"\n'
    )
    (tmp_path / "loud").mkdir()
    made = Site(config, f"nats://{address}", tmp_path / "loud")
    thread = threading.Thread(target=made.run, daemon=True)
    thread.start()
    assert made.begun.wait(DEADLINE_S), "the nodes speak"
    yield made
    made.end.set()
    thread.join(DEADLINE_S)
    server.terminate()
    server.wait(DEADLINE_S)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_noise_is_made_recorded_and_trained_on_and_the_model_is_installed_when_the_answer_is_yes(
    live: Site, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = live.calibrate(out, "--kind", "dcopy", answers="y\ny\n")
    assert done.exit_code == 0, done.output
    assert "Begin? [y/N]" in done.output
    recordings = [read(path) for path in sorted(out.glob("*.parquet"))]
    assert len(recordings) == 1
    for recording in recordings:
        assert [(label.node, label.kind, label.intensity) for label in recording.labels] == [
            ("host1", "dcopy", 0.5),
            ("host1", "dcopy", 1.0),
        ]
        assert all(3.5 < label.end_unix_s - label.start_unix_s < 60 for label in recording.labels)
    assert "<svg" in (out / "report.html").read_text()
    installed = tmp_path / "state" / "model.skops"
    model = tree.load(installed)
    assert model.name == "web-calibrated"
    assert "0 of 1 recordings scored" in model.metadata["scores"]["cross_validation"]
    assert f'set `model = "{installed}"` under [detector]' in done.output
    assert list(live.loud.iterdir()) == [], "the stop command was run"
    again = live.calibrate(out)
    assert "holds recordings already" in again.output


def test_a_limit_stops_the_noise_at_once_and_nothing_is_trained(live: Site, tmp_path: Path) -> None:
    out = tmp_path / "out"
    keep = live.loud / "kept"
    argv = ["--max-rt-p95-ms", "25", "--noise-s", "200", "--yes", "--stop-command", f"mv {live.loud}/host1 {keep}"]
    begin_s = time.monotonic()
    done = live.calibrate(out, *argv)
    assert done.exit_code == 1
    assert "stopped: host1: p95 response time" in done.output
    assert "> 25 ms; recorded so far: " in done.output
    assert time.monotonic() - begin_s < 150
    assert gone(int(keep.read_text())), "the noise command has been ended"
    (recording,) = [read(path) for path in out.glob("*.parquet")]
    assert [label.intensity for label in recording.labels] == [0.5], (
        "what was made is labelled, also when it was broken off"
    )
    assert not (out / "model.skops").exists()


def test_ctrl_c_stops_the_noise_too(live: Site, tmp_path: Path) -> None:
    out = tmp_path / "out"
    argv = [sys.executable, "-c", PATIENT, "calibrate", "--config", str(live.config), "--out", str(out)]
    argv += ["--node", "host1", "--noise-command", live.noise, "--calm-s", "1", "--noise-s", "500", "--yes"]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    try:
        end_s = time.monotonic() + DEADLINE_S
        while not ((live.loud / "host1").exists() and (live.loud / "host1").read_text()):
            assert time.monotonic() < end_s
            assert process.poll() is None
            time.sleep(0.05)
        noise = int((live.loud / "host1").read_text())
        process.send_signal(signal.SIGINT)
        _, printed = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
        process.wait(DEADLINE_S)
    assert process.returncode == 1
    assert "stopped by hand" in printed
    assert gone(noise)


def test_a_no_begins_nothing(live: Site, tmp_path: Path) -> None:
    assert live.calibrate(tmp_path / "out", answers="n\n").exit_code == 1
    assert not (tmp_path / "out").exists()


IDLE = ("--max-load", "0.95")
"""The played node is never called busy, whatever load was drawn for it."""


def test_what_cannot_be_is_refused_before_any_noise(
    live: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    for arguments, says in (
        (["--node", "host9"], "no Sample of host9 came within"),
        (["--max-load", "0.01"], "is busy"),
        (["--noise-command", "stress-ng {cores}"], "what can be filled in: {intensity}, {node}"),
        (["--noise-command", ""], "the command is empty"),
        (["--noise-command", "/nowhere/stress", *IDLE], "cannot be started: No such file"),
        (["--noise-command", "false", *IDLE], "false: ended with status 1"),
    ):
        # For one that never comes it is not waited long.
        monkeypatch.setattr(calibrate, "HEAR_S", 4.0 if "host9" in arguments else DEADLINE_S)
        done = live.calibrate(out / says[:4], "--yes", "--noise-s", "60", *arguments)
        assert done.exit_code == 1, done.output
        assert says in done.output
    assert list(live.loud.iterdir()) == []


def test_commands_are_words_and_no_shell_reads_them() -> None:
    argv = argv_of("ssh {node} stress-ng --cpu-load {percent} '{seconds} s; rm'", "web1", 0.25, 20.0)
    assert argv == ["ssh", "web1", "stress-ng", "--cpu-load", "25", "20 s; rm"]
    with pytest.raises(CalibrationError, match="what can be filled in"):
        argv_of("x '", "n", 1.0, 1.0)


def sample(p95: float | None, errors: float = 0.0) -> Sample:
    return Sample(1, "n", "web", 1.0, "b", 0, 0.2, traffic=Traffic(rt_p95_ms=p95, errors_per_s=errors))


def test_limits_are_for_two_samples_in_a_row_and_a_quiet_node_ends_it() -> None:
    limits = StopLimits(100.0, 1.0, 0.5)
    assert beyond(sample(99.0, 0.5), limits) == ""
    assert beyond(sample(None, 2.0), limits) == "2.0 errors/s > 1"
    assert beyond(Sample(1, "n", "web", 1.0, "b", 0, 0.2), limits) == ""
    now = [0.0]
    watch = CalibrationMonitor(limits, clock=lambda: now[0])
    for p95 in (500.0, 50.0, 500.0):
        watch.take(sample(p95))
        watch.check(["n"])
    watch.take(sample(500.0))
    with pytest.raises(CalibrationError, match="n: p95 response time 500 ms > 100 ms"):
        watch.check(["n"])
    quiet = CalibrationMonitor(limits, clock=lambda: now[0])
    quiet.take(sample(5.0))
    now[0] = 10.0
    with pytest.raises(CalibrationError, match="n: no Sample for 3 s"):
        quiet.check(["n"])


def test_an_engine_that_moves_weights_is_noticed() -> None:
    watch = CalibrationMonitor(StopLimits(100.0, 1.0, 0.5))
    for mode, paused, acting in (("act", False, True), ("act", True, False), ("observe", False, False)):
        watch.cycle(Cycle(1, "web", 1.0, mode, paused, "roundrobin", "optimal", "", []))  # type: ignore[arg-type]
        assert watch.acting is acting


def test_a_plan_says_how_long_it_takes() -> None:
    assert NoiseSchedule(["a", "b"], "k", [0.5, 1.0], 3, 20.0, 10.0, "x").seconds == 3 * (4 * 30 + 10)
