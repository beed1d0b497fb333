"""The noise makers, compiled and run for real, outside of any cgroup."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from slackwater_lab.cluster.noise import NOISES, Noise, begin, cache_mib, last_level_cache_mib, prepare
from slackwater_lab.cluster.paths import LabError
from slackwater_lab.cluster.spawn import compiled
from tests.support.real_lab import eventually
from tests.support.real_processes import is_alive

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="cc is not on this machine")
IN_TIME_S = 60.0


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compiled("noise", tmp_path_factory.mktemp("noise"))


def start(*arguments: Any, **place: Any) -> Noise:
    """One alone."""
    return begin([prepare(*arguments, **place)])[0]


@pytest.mark.parametrize("kind", NOISES)
def test_each_kind_of_the_table_begins_works_and_ends_by_itself(maker: str, kind: str) -> None:
    waiting = prepare(maker, "here", kind, 0.3, 0.4, quota_cores=0.4, procs_files=[])
    told_mono_s = time.monotonic()
    (noise,) = begin([waiting])
    assert noise.process.wait(IN_TIME_S) == 0
    assert time.monotonic() - told_mono_s >= 0.4
    noise.stop()
    assert noise.off_mono_s is not None
    assert noise.off_mono_s > noise.on_mono_s


def test_a_stopped_noise_is_gone_at_once_and_knows_when(maker: str) -> None:
    noise = start(maker, "here", "cpu", 0.2, 60.0, quota_cores=0.4, procs_files=[])
    noise.check()
    noise.stop()
    assert noise.off_unix_s is not None
    assert not is_alive(noise.process.pid)
    noise.stop()


def test_a_noise_that_was_killed_by_another_is_reported(maker: str) -> None:
    noise = start(maker, "here", "cpu", 0.2, 60.0, quota_cores=0.4, procs_files=[])
    noise.process.kill()
    noise.process.wait()
    with pytest.raises(LabError, match="the noise cpu in here ended with status -9"):
        noise.check()
    noise.stop()


def test_it_joins_the_cgroups_before_it_begins(maker: str, tmp_path: Path) -> None:
    files = [tmp_path / "cpu", tmp_path / "cpuacct"]
    noise = start(maker, "here", "cpu", 0.2, 60.0, quota_cores=0.4, procs_files=[str(file) for file in files])
    try:
        assert [file.read_text() for file in files] == [f"{noise.process.pid}\n"] * 2
    finally:
        noise.stop()


def test_a_cgroup_that_cannot_be_joined_is_reported(maker: str) -> None:
    with pytest.raises(LabError, match="did not begin in here: noise: /no/such: No such file"):
        start(maker, "here", "cpu", 0.2, 1.0, quota_cores=0.4, procs_files=["/no/such"])


def test_it_dies_with_the_process_that_started_it(maker: str) -> None:
    script = (
        "import sys, time; from slackwater_lab.cluster.noise import begin, prepare\n"
        "(noise,) = begin([prepare(sys.argv[1], 'here', 'cpu', 0.1, 600.0, quota_cores=0.4, procs_files=[])])\n"
        "print(noise.process.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, maker], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert is_alive(pid)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    eventually("the noise is gone", lambda: not is_alive(pid), IN_TIME_S)


def test_an_unknown_kind_and_an_intensity_out_of_range_are_refused(maker: str) -> None:
    with pytest.raises(LabError, match=r"no noise `disco`; there are: llcprobe, dcopy, cpu, disk, .*forks"):
        start(maker, "here", "disco", 0.5, 1.0, quota_cores=0.4, procs_files=[])
    with pytest.raises(LabError, match=r"intensity 1\.5: expected more than 0 and at most 1"):
        start(maker, "here", "cpu", 1.5, 1.0, quota_cores=0.4, procs_files=[])


@pytest.mark.parametrize(("text", "mib"), [("32768K\n", 32), ("32M\n", 32), ("512K\n", 1)])
def test_sizes_of_sysfs_are_read(text: str, mib: int) -> None:
    assert cache_mib(text) == mib


def test_the_largest_cache_counts_and_a_machine_that_shows_none_gets_a_guess(tmp_path: Path) -> None:
    assert last_level_cache_mib(tmp_path) == 32
    for index, size in enumerate(("32K", "1024K", "8192K")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}/size").write_text(size + "\n")
    assert last_level_cache_mib(tmp_path) == 8


def test_several_wait_for_each_other_and_begin_at_the_same_moment(maker: str) -> None:
    waiting = [
        prepare(maker, name, "cpu", 0.2, 60.0, quota_cores=0.4, procs_files=[]) for name in ("host1", "host2", "host3")
    ]
    assert all(is_alive(prepared.process.pid) for prepared in waiting)
    noises = begin(waiting)
    try:
        assert [noise.host for noise in noises] == ["host1", "host2", "host3"]
        assert all(is_alive(noise.process.pid) for noise in noises)
    finally:
        for noise in noises:
            noise.stop()


def test_one_that_is_not_started_ends_with_whom_it_waits_for(maker: str) -> None:
    filled = prepare(maker, "here", "cpu", 0.2, 60.0, quota_cores=0.4, procs_files=[])
    assert filled.process.stdin is not None
    filled.process.stdin.close()
    assert filled.process.wait(IN_TIME_S) == 1


def test_when_one_of_several_cannot_begin_none_goes_on(maker: str) -> None:
    waiting = [prepare(maker, "a", "cpu", 0.2, 60.0, quota_cores=0.4, procs_files=[])]
    waiting.append(prepare(maker, "b", "cpu", 0.2, 60.0, quota_cores=0.4, procs_files=["/no/such"]))
    with pytest.raises(LabError, match="did not begin in b"):
        begin(waiting)
    assert not any(is_alive(prepared.process.pid) for prepared in waiting)
