"""What the tests of the lab share: whether it can run here, and the command line."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from slackwater_lab.cluster.traces import missing

LACKS = missing()
needs_lab = pytest.mark.skipif(bool(LACKS), reason=f"the lab cannot run here; missing: {'; '.join(LACKS)}")


def lab_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "slackwater.controller.cli.main", "lab", *arguments]


def run_lab(*arguments: str, timeout_s: float = 180.0) -> subprocess.CompletedProcess[str]:
    """`slackwater lab ARGUMENTS` to its end."""
    return subprocess.run(
        lab_command(*arguments), capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL
    )


def eventually(event: str, happened: Callable[[], bool], within_s: float) -> float:
    """Polls until it happened; gives the seconds it took. Fails the test, saying what did not happen."""
    begin = time.monotonic()
    while not happened():
        if time.monotonic() - begin > within_s:
            pytest.fail(f"not within {within_s:g} s: {event}")
        time.sleep(0.05)
    return time.monotonic() - begin
