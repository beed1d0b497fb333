"""What Slackwater's own processes use: read from /proc."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slackwater_lab.cluster.process_use import ProcessUse, process_use
from slackwater_lab.experiment import cost


def test_a_process_that_works_uses_cpu_and_memory_and_one_that_is_gone_nothing() -> None:
    before = process_use(os.getpid())
    assert before is not None
    began = time.process_time()
    while time.process_time() - began < 0.2:
        sum(range(1000))
    after = process_use(os.getpid())
    assert after is not None
    assert after.cpu_s - before.cpu_s >= 0.1
    assert 5.0 < after.rss_mib < 10_000.0
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert process_use(gone.pid) is None


def test_the_fields_are_those_of_proc(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    fields = " ".join(["S", *["1", "7", "7", "0", "-1", "0", "0", "0", "0", "0", "150", "50", "0", "0"], "20"])
    (tmp_path / "7/stat").write_text(f"7 (a name) with) {fields}\n")
    (tmp_path / "7/statm").write_text("900 256 10 0 0 0 0\n")
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    assert process_use(7, tmp_path) == ProcessUse(200 / ticks, 256 * page / 2**20)


def test_only_processes_that_lived_all_the_time_count() -> None:
    before = {"monitor": {"1": ProcessUse(1.0, 5.0), "2": ProcessUse(2.0, 7.0)}, "web": {"9": ProcessUse(0.0, 1.0)}}
    after = {
        "monitor": {"1": ProcessUse(3.0, 6.0), "2": ProcessUse(3.0, 8.0), "3": ProcessUse(9.0, 99.0)},
        "web": {},
        "bus": {"4": ProcessUse(1.0, 1.0)},
    }
    costs = cost.between(before, after, 10.0)
    assert costs == {"monitor": {"count": 2.0, "core_share": pytest.approx(0.15), "rss_mib": 7.0}}
