"""Chaos in the real lab: what must hold does, and Ctrl-C leaves nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slackwater_lab.cluster.traces import traces
from tests.support.real_lab import eventually, needs_lab

COMMAND = [sys.executable, "-m", "tests.chaos.commands"]

pytestmark = [pytest.mark.lab, needs_lab, pytest.mark.usefixtures("nothing_before_and_after")]


def outcome(minutes: float, seed: int, file: Path) -> tuple[str, dict[str, list[dict[str, object]]]]:
    words = [*COMMAND, "--minutes", str(minutes), "--seed", str(seed), "--json", str(file)]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=minutes * 60 + 300, stdin=subprocess.DEVNULL, check=False
    )
    assert file.exists(), done.stderr[-2000:]
    return done.stdout, json.loads(file.read_text())


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_nothing_breaks_in_twenty_minutes(tmp_path: Path) -> None:
    text, result = outcome(20.0, 20, tmp_path / "chaos.json")
    assert result["not_injected"] == []
    assert result["broken"] == [], text


@pytest.mark.slow
def test_ctrl_c_leaves_nothing_behind() -> None:
    process = subprocess.Popen(
        [*COMMAND, "--minutes", "5", "--seed", "3"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "full disk" in line or "reboot" in line or "hang" in line:
            break
    process.send_signal(signal.SIGINT)
    process.stderr.read()
    process.wait(120)
    eventually("nothing is left", lambda: traces() == [], 10.0)
