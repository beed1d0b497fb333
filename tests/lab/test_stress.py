"""stress-ng's stressors as neighbours, for real, outside of any cgroup."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slackwater_lab.cluster.noise import NOISES
from slackwater_lab.cluster.paths import BIN, LabError
from slackwater_lab.cluster.stress import STRESSORS, at_work, join, members, start
from tests.support.real_lab import eventually

pytestmark = pytest.mark.skipif(not (BIN / "stress-ng").exists(), reason="stress-ng is missing: run `make setup`")
WORKERS = 2


@pytest.mark.parametrize("kind", STRESSORS)
def test_each_stressor_is_at_work_when_it_is_on_and_leaves_nothing(kind: str, tmp_path: Path) -> None:
    noise = start("here", kind, 1.0, 60.0, quota_cores=0.4, procs_files=[], folder=tmp_path)
    group = noise.process.pid
    try:
        noise.check()
        assert at_work(group) >= WORKERS
        assert noise.off_mono_s is None
    finally:
        noise.stop()
    eventually("its processes are gone", lambda: not members(group), 30.0)
    assert list(tmp_path.iterdir()) == []
    assert noise.off_mono_s is not None
    assert noise.off_mono_s > noise.on_mono_s
    noise.stop()


def test_all_its_processes_join_the_cgroups(tmp_path: Path) -> None:
    files = [tmp_path / "cpu", tmp_path / "cpuacct"]
    noise = start("here", "stress-vm", 1.0, 60.0, quota_cores=0.4, procs_files=[], folder=tmp_path)
    try:
        eventually("a worker has its child", lambda: len(members(noise.process.pid)) > 2 * WORKERS, 30.0)
        join(noise.process.pid, [str(file) for file in files])
        assert int(files[0].read_text()) in members(noise.process.pid)
        assert files[0].read_text() == files[1].read_text()
    finally:
        noise.stop()


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from slackwater_lab.cluster.stress import start\n"
        "noise = start('here', 'stress-cpu', 1.0, 60.0, quota_cores=0.4, procs_files=[], folder=Path(sys.argv[1]))\n"
        "print(noise.process.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    group = int(parent.stdout.readline())
    assert members(group)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    eventually("its processes are gone", lambda: not at_work(group), 40.0)


def test_a_share_of_time_and_a_cgroup_that_cannot_be_joined_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"intensity 0\.5: stress-ng's stress-cpu works all the time, expected 1"):
        start("here", "stress-cpu", 0.5, 1.0, quota_cores=0.4, procs_files=[], folder=tmp_path)
    with pytest.raises(LabError, match=r"/no/such: process \d+ cannot join: "):
        start("here", "stress-cpu", 1.0, 60.0, quota_cores=0.4, procs_files=["/no/such"], folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_its_kinds_are_distinguished_from_the_lab_s_own() -> None:
    assert not STRESSORS.keys() & NOISES.keys()
