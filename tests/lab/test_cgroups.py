"""Finding the CPU controller in v1, v2 and mixed machines; making and removing real cgroups."""

from __future__ import annotations

import contextlib
import subprocess
import time
from pathlib import Path

import pytest

from slackwater_lab.cluster.cgroups import PERIOD_S, Cgroups, detect
from slackwater_lab.cluster.paths import LabError
from slackwater_lab.cluster.spawn import placed
from tests.support.real_lab import eventually, needs_lab


def v2(root: Path, controllers: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    (root / "cgroup.controllers").write_text(controllers + "\n")
    return root


def test_v1_with_cpu_and_cpuacct_mounted_apart(tmp_path: Path) -> None:
    mounts = f"cgroup {tmp_path}/cpu cgroup rw,cpu 0 0\ncgroup {tmp_path}/cpuacct cgroup rw,cpuacct 0 0\n"
    cgroups = detect(mounts)
    assert (cgroups.version, cgroups.roots) == (1, (tmp_path / "cpu", tmp_path / "cpuacct"))


def test_v1_with_cpu_and_cpuacct_in_one_mount(tmp_path: Path) -> None:
    cgroups = detect(f"cgroup {tmp_path}/both cgroup rw,nosuid,cpu,cpuacct 0 0\n")
    assert (cgroups.version, cgroups.roots) == (1, (tmp_path / "both",))


def test_a_v2_mount_without_the_cpu_controller_leaves_v1_in_charge(tmp_path: Path) -> None:
    root = v2(tmp_path / "unified", "memory pids")
    mounts = f"cgroup2 {root} cgroup2 rw 0 0\ncgroup {tmp_path}/both cgroup rw,cpu,cpuacct 0 0\n"
    assert detect(mounts).version == 1


def test_v2_with_the_cpu_controller(tmp_path: Path) -> None:
    root = v2(tmp_path / "cgroup", "cpuset cpu io memory")
    cgroups = detect(f"proc /proc proc rw 0 0\ncgroup2 {root} cgroup2 rw 0 0\n")
    assert (cgroups.version, cgroups.roots) == (2, (root,))


def test_cpuset_alone_is_no_cpu_controller(tmp_path: Path) -> None:
    root = v2(tmp_path / "cgroup", "cpuset io")
    with pytest.raises(LabError, match=r"no cgroup CPU controller here.*v2 without cpu at"):
        detect(f"cgroup2 {root} cgroup2 rw 0 0\ncgroup {tmp_path} cgroup rw,cpuset 0 0\n")


def test_v2_enables_the_controller_down_the_path_and_writes_quota_and_weight(tmp_path: Path) -> None:
    root = v2(tmp_path / "cgroup", "cpu")
    for folder in (root, root / "top", root / "top/host1"):
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.subtree_control").write_text("")
    Cgroups(detect(f"cgroup2 {root} cgroup2 rw 0 0\n")).make("top/host1", quota_cores=0.4, weight=200)
    assert (root / "top/host1/cpu.max").read_text() == f"{PERIOD_S * 0.4e6:.0f} {PERIOD_S * 1e6:.0f}"
    assert (root / "top/host1/cpu.weight").read_text() == "200"
    assert (root / "cgroup.subtree_control").read_text() == "+cpu"
    assert (root / "top/cgroup.subtree_control").read_text() == "+cpu"
    assert (root / "top/host1/cgroup.subtree_control").read_text() == ""


def test_an_idle_cgroup_has_no_weight_where_the_kernel_knows_idle_and_the_least_elsewhere(tmp_path: Path) -> None:
    root = v2(tmp_path / "cgroup", "cpu")
    for folder in (root, root / "new", root / "old"):
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.subtree_control").write_text("")
    (root / "new/cpu.idle").write_text("0")
    cgroups = Cgroups(detect(f"cgroup2 {root} cgroup2 rw 0 0\n"))
    for path in ("new", "old"):
        cgroups.make(path, idle=True)
    assert (root / "new/cpu.idle").read_text() == "1"
    assert not (root / "new/cpu.weight").exists()
    assert (root / "old/cpu.weight").read_text() == "1"


def removed(cgroups: Cgroups, path: str) -> bool:
    """A cgroup is busy until the last of its processes is quite gone."""
    with contextlib.suppress(OSError):
        cgroups.remove(path)
    return not cgroups.exists(path)


@pytest.mark.lab
@needs_lab
def test_a_quota_bounds_what_a_process_in_the_cgroup_gets() -> None:
    cgroups = Cgroups.of_this_machine()
    top = "slackwater-lab-test"
    path = f"{top}/inner"
    cgroups.make(top, quota_cores=0.2)
    cgroups.make(path)
    try:
        begin_s = time.monotonic()
        spin = ["/bin/sh", "-c", "while :; do :; done"]
        process = subprocess.Popen(placed(["timeout", "-s", "KILL", "2", *spin], cgroups.procs_files(path)))
        process.wait(60)
        eventually("the loop is gone", lambda: cgroups.pids(top) == [], 60.0)
        most_s = 0.2 * (time.monotonic() - begin_s) + 0.2
        assert 0.02 < cgroups.cpu_s(top) < most_s, "some 2 s at 0.2 core; without the quota it would be near 2 s"
    finally:
        eventually("the cgroup is removed", lambda: removed(cgroups, top), 60.0)
