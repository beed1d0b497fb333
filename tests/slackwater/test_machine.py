"""Which process of which machine this is."""

from __future__ import annotations

from pathlib import Path

import pytest

from slackwater.core import machine

NO_PROCESS = 2**22 + 1
"""More than any process has as its id (`/proc/sys/kernel/pid_max`)."""


def test_an_ended_process_of_this_boot_is_known_to_have_ended() -> None:
    assert machine.this_process().has_ended(NO_PROCESS)


def test_where_the_boot_has_no_id_no_process_is_said_to_have_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine.process_space()  # read once, with the id
    monkeypatch.setattr(machine, "BOOT_ID", tmp_path / "hidden")
    assert not machine.this_process().has_ended(NO_PROCESS)
