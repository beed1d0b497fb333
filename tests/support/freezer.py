"""Processes that SIGKILL does not end, as in a system call on a disk that hangs: frozen by a cgroup of version 1.

https://docs.kernel.org/admin-guide/cgroup-v1/freezer-subsystem.html
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

FREEZER = Path("/sys/fs/cgroup/freezer")
WITHIN_S = 30.0
needs_freezer = pytest.mark.skipif(
    not os.access(FREEZER, os.W_OK), reason="needs root and the freezer of cgroup version 1"
)


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """While it lasts the process does nothing, and cannot be ended."""
    group = FREEZER / f"slackwater-test-{pid}"
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(pid))
        _set(group, "FROZEN")
        yield
    finally:
        _set(group, "THAWED")
        deadline = time.monotonic() + WITHIN_S
        with contextlib.suppress(ProcessLookupError):
            (FREEZER / "cgroup.procs").write_text(str(pid))
        while (group / "cgroup.procs").read_text():
            assert time.monotonic() < deadline, f"{group} is not empty"
            time.sleep(0.01)
        group.rmdir()


def _set(group: Path, state: str) -> None:
    (group / "freezer.state").write_text(state)
    deadline = time.monotonic() + WITHIN_S
    while (group / "freezer.state").read_text().strip() != state:
        assert time.monotonic() < deadline, f"{group} does not become {state}"
        time.sleep(0.01)
