"""What a neighbour does to each signal, and the steal that the lab adds where no hypervisor reports any."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from slackwater.core.messages import Sample
from slackwater_lab.cluster import steal_shim
from slackwater_lab.cluster.paths import LabError
from slackwater_lab.cluster.steal_shim import StealShim, cpu_thread, waited_s
from slackwater_lab.stories.signals import compared


def sample(node: str = "host1", **parts: object) -> Sample:
    message = {"v": 1, "node": node, "pool": "web", "time_unix_s": 1.0, "boot_id": "b", "seq": 1, "period_s": 0.2}
    return msgspec.convert(message | parts, Sample)


def make_thread(proc: Path, name: str, waited_ns: int) -> Path:
    task = proc / "7/task/8"
    task.mkdir(parents=True, exist_ok=True)
    (task / "comm").write_text(f"{name}\n")
    (task / "schedstat").write_text(f"5000000000 {waited_ns} 12\n")
    return task


def test_medians_and_ratios_of_what_both_have() -> None:
    calm = [sample(cpu={"scope": "system", "utilisation": 0.2, "steal": 0.0}) for _ in range(5)]
    beside = [
        sample(cpu={"scope": "system", "utilisation": value, "steal": 0.3, "cores": 1.0}) for value in (0.2, 0.4, 0.8)
    ]
    rows = {row["signal"]: row for row in compared(calm, beside)}
    assert rows.keys() == {"cpu.utilisation", "cpu.steal"}, "neither the message's own fields nor what one side lacks"
    assert (rows["cpu.utilisation"]["ratio"], rows["cpu.utilisation"]["samples"]) == (pytest.approx(2.0), 3)
    assert rows["cpu.utilisation"]["ratio_low"] < 2.0 < rows["cpu.utilisation"]["ratio_high"]
    assert rows["cpu.steal"]["ratio"] is None
    assert rows["cpu.steal"]["beside"] == 0.3


def test_a_guest_s_cpu_is_found_by_its_thread(tmp_path: Path) -> None:
    task = make_thread(tmp_path, "CPU 0/TCG", 250_000_000)
    assert cpu_thread(7, tmp_path) == task
    assert waited_s(task) == 0.25
    make_thread(tmp_path, "worker", 0)
    with pytest.raises(LabError, match="process 7 has no thread `CPU 0/"):
        cpu_thread(7, tmp_path)


def test_a_sample_gets_the_steal_since_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_thread(tmp_path, "CPU 0/KVM", 1_000_000_000)
    monkeypatch.setattr(steal_shim, "cpu_thread", lambda pid: cpu_thread(pid, tmp_path))
    now_s = 10.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    shim = StealShim({"host1": 7})
    first = sample(cpu={"scope": "system", "utilisation": 0.9}, absent={"cpu.steal": "hidden", "disk": "none"})
    assert shim.with_steal(first) == first, "the first: nothing to compare with"
    now_s = 10.5
    make_thread(tmp_path, "CPU 0/KVM", 1_200_000_000)
    after = shim.with_steal(first)
    assert after.cpu is not None
    assert after.cpu.steal == pytest.approx(0.4)
    assert (after.cpu.utilisation, after.absent) == (0.9, {"disk": "none"})
