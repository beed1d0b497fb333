"""The live run of the governor: its figures, the hosts' cpusets, and once the whole of it in the lab."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from slackwater_lab.cluster.cgroups import Cgroups, Hierarchy
from slackwater_lab.cluster.cpusets import Cpuset
from slackwater_lab.cluster.load import Requests
from slackwater_lab.cluster.paths import LabError
from slackwater_lab.stories.governed import count, second_p95s_ms
from tests.support.real_lab import needs_lab, run_lab


@pytest.mark.parametrize(("cores", "number"), [("0\n", 1), ("0-1", 2), ("0-2,5,7-8", 6)])
def test_a_list_of_cores_is_counted(cores: str, number: int) -> None:
    assert count(cores) == number


def test_each_second_has_its_p95() -> None:
    due_s = np.array([10.1, 10.2, 11.5, 13.0, 20.0])
    requests = Requests(due_s, np.array([0.01, 0.03, 0.05, 0.07, 9.0]), np.full(5, 200), {}, np.zeros(5))
    seconds = second_p95s_ms(requests, 10.0, 14.0)
    assert seconds[:, 0].tolist() == [0.0, 1.0, 3.0], "empty seconds are none"
    assert seconds[:, 1].tolist() == pytest.approx([29.0, 50.0, 70.0])


def test_a_cpuset_of_version_1_has_all_cores_of_the_one_above(tmp_path: Path) -> None:
    root, cpu = tmp_path / "cpuset", tmp_path / "cpu"
    for folder in (root, cpu / "top/host1"):
        folder.mkdir(parents=True)
    (root / "cpuset.cpus").write_text("0-3\n")
    (root / "cpuset.mems").write_text("0\n")
    (cpu / "top/host1/cgroup.procs").write_text("41\n42\n")
    cpuset = Cpuset(Cgroups(Hierarchy(1, (cpu,))), "top/host1", root)
    cpuset.__enter__()
    assert cpuset.file == root / "top/host1/cpuset.cpus"
    assert cpuset.file.read_text() == "0-3\n"
    assert (root / "top/host1/cgroup.procs").read_text() == "42", "the last one that was moved"


def test_without_the_controller_there_is_no_cpuset(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="the cpuset controller is not mounted"):
        Cpuset(Cgroups(Hierarchy(1, (tmp_path,))), "top", tmp_path / "cpuset").__enter__()


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(1000)
@needs_lab
@pytest.mark.usefixtures("nothing_before_and_after")
def test_it_takes_at_low_load_gives_at_high_and_puts_everything_back() -> None:
    done = run_lab("governor", "--seconds", "20", "--json", "-", timeout_s=900)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    without, governed = result["phases"]["without"], result["phases"]["with"]
    own = result["without_governor"]
    assert all(phase["last"] == own for phase in without)
    low, high, again = governed
    assert all(host["quota_cores"] < own[0]["quota_cores"] for host in low["last"])
    assert high["cpu_cores_mean"] > again["cpu_cores_mean"]
    assert {change["cause"] for change in result["changes"] if change["by"] == "governor"} == {"governor"}
    assert sum(phase["errors"] for phase in governed) == 0
