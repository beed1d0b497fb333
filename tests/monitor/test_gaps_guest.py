"""Time that a hypervisor takes away, as the monitor finds it inside a guest that is told of none, beside what the
host's scheduler knows of the guest's virtual CPU. `pytest -s` prints the figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.qemu_guest import Guest, GuestSettings, missing

# A guest boots and is watched for 20 s.
pytestmark = [pytest.mark.slow, pytest.mark.alone]

SECONDS = 20
MONITOR = ROOT / "target/release/slackwater-monitor"
SETTINGS = f'node = "g"\nperiod_s = {SECONDS}.0\n[sniffer]\ninterface = ""\n'
BUSY = "while True: pass"


@contextmanager
def neighbour(cpu: int) -> Iterator[None]:
    """A program that is always busy on this CPU."""
    busy = subprocess.Popen(["taskset", "-c", str(cpu), sys.executable, "-c", BUSY])
    try:
        yield
    finally:
        busy.kill()
        busy.wait()


def scheduled_s(pid: int) -> tuple[float, float]:
    """Seconds that the guest's virtual CPU ran, and waited for a CPU of the host."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().startswith("CPU 0/"):
            ran_ns, waited_ns, _ = (int(word) for word in (task / "schedstat").read_text().split())
            return ran_ns / 1e9, waited_ns / 1e9
    raise AssertionError("QEMU has no thread for the virtual CPU")


def test_a_busy_guest_finds_the_time_that_its_host_gives_to_others(tmp_path: Path) -> None:
    if missing():
        pytest.skip(f"no guest: {', '.join(missing())} is missing")
    cpu = min(os.sched_getaffinity(0))
    settings = GuestSettings(devices=("-name", "gaps,debug-threads=on"))
    guest = Guest(tmp_path, settings, wrap=("taskset", "-c", str(cpu)))
    guest.wait_ready()
    try:
        guest.write("/run/node.toml", SETTINGS)
        guest.ok("(while :; do :; done) >/dev/null 2>&1 & echo $! >/run/busy")
        with neighbour(cpu):
            before = scheduled_s(guest.process.pid)
            sample = json.loads(guest.ok(f"{MONITOR} once --json --config /run/node.toml 2>/dev/null"))
            ran_s, waited_s = (now - then for now, then in zip(scheduled_s(guest.process.pid), before, strict=True))
    finally:
        guest.stop()
    gaps, true_share = sample["gaps"], waited_s / (ran_s + waited_s)
    print(f"\nhost: ran {ran_s:.2f} s, waited {waited_s:.2f} s ({true_share:.3f}); guest: {gaps}, {sample['cpu']}")
    assert sample["cpu"]["steal"] == 0.0, "QEMU reports none"
    assert true_share > 0.2, "the neighbour takes about half"
    # QEMU's own thread for timers waits as well, so it may find more.
    assert 0.7 * true_share < gaps["lost_share"] < true_share + 0.25, (gaps, true_share)
    assert gaps["longest_ms"] > 1.0
