"""Ports for tests: no two processes' tests get the same one."""

from __future__ import annotations

import subprocess
import sys

from tests.support.real_processes import free_port

MANY = 130


def test_processes_that_run_at_once_get_different_ports() -> None:
    ours = [free_port() for _ in range(MANY)]
    script = f"from tests.support.real_processes import free_port; print(*[free_port() for _ in range({MANY})])"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    theirs = map(int, run.stdout.split())
    assert len({*ours, *theirs}) == 2 * MANY
