"""Counters of the kernel that cannot be true, in the place of this machine's: they are absent, with the reason."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.real_wsengine import wait_for

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(shutil.which("slackwater-monitor") is None, reason="make setup was not run"),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts"),
]
IN_TIME_S = 60.0
REST = "intr 1 0 0\nctxt 100\nbtime 1700000000\nprocesses 10\nprocs_running 1\nprocs_blocked 0\nsoftirq 1 2 3\n"
LEAPT = "the counter leapt: it grew by more than the time that passed allows"


def stat(*lines: str) -> str:
    return "\n".join(lines) + "\n" + REST


CALM = stat("cpu  2000 0 0 18000 0 0 0 0 0 0", "cpu0 1000 0 0 9000 0 0 0 0 0 0", "cpu1 1000 0 0 9000 0 0 0 0 0 0")


def settings(folder: Path) -> Path:
    file = folder / "node.toml"
    file.write_text(
        'node = "n1"\nperiod_s = 2.0\n[sniffer]\ninterface = ""\n[canary]\nenabled = false\n[pmu]\nenabled = false\n'
    )
    return file


def monitor(folder: Path, name: str, first: str, command: str) -> subprocess.Popen[str]:
    """The monitor's command where this text is bound over the file of /proc."""
    text = folder / name
    text.write_text(first)
    script = f"mount --bind {text} /proc/{name} && exec slackwater-monitor {command} --config {settings(folder)} --json"
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(["unshare", "-m", "bash", "-c", script], stdout=pipe, stderr=nowhere, text=True)


def sampled(folder: Path, name: str, first: str, later: Callable[[str], str]) -> dict[str, Any]:
    """A Sample between two texts of a file of /proc."""
    with monitor(folder, name, first, "once") as process:
        files = Path(f"/proc/{process.pid}/fd")

        def is_open() -> bool:
            links = [link.readlink() for link in files.iterdir() if link.is_symlink()]
            return Path(f"/proc/{name}") in links

        wait_for(is_open, "the file was read")
        (folder / name).write_text(later(first))
        return dict(json.loads(process.communicate(timeout=IN_TIME_S)[0]))


@pytest.mark.parametrize(
    ("kind", "more"),
    [("steal", "2100 0 0 18300 0 0 0 3689348814740 0 0"), ("idle", "2100 0 0 98000 0 0 0 0 0 0")],
)
def test_ticks_that_leap_give_no_utilisation(tmp_path: Path, kind: str, more: str) -> None:
    sample = sampled(tmp_path, "stat", CALM, lambda text: text.replace("2000 0 0 18000 0 0 0 0 0 0", more))
    assert sample["cpu"] == {"scope": "system", "cores": 2.0}
    assert sample["absent"]["cpu.utilisation"] == f"{kind} in /proc/stat: {LEAPT}"


def test_two_cpu_lines_are_no_third_core(tmp_path: Path) -> None:
    text = stat("cpu  0 0 0 0 0 0 0 0 0 0", *CALM.splitlines()[:3])
    sample = sampled(tmp_path, "stat", text, lambda text: text)
    assert "cpu" not in sample
    assert sample["absent"]["cpu"] == "/proc/stat: two `cpu` lines"
    with monitor(tmp_path, "stat", text, "check") as process:
        items = json.loads(process.communicate(timeout=IN_TIME_S)[0])
    cpu = next(item for item in items if item["what"] == "cpu")
    assert (cpu["works"], cpu["needed"]) == (False, True)


def test_a_line_that_is_not_understood_hides_its_own_disk_only(tmp_path: Path) -> None:
    machine = Path("/proc/diskstats").read_text()
    blocks = Path("/sys/block")
    disks = [
        block.name for block in blocks.iterdir() if (block / "device").exists() and not block.name.startswith("sr")
    ]
    if not disks:
        pytest.skip("this machine has no disk")
    sample = sampled(tmp_path, "diskstats", machine, lambda text: text + "   9   9 nonsense x y z\n")
    assert sample["disk"]["device"] in disks
