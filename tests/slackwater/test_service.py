"""What the units need of the commands: lines for journald, and the way back of all pools at once."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from slackwater.controller.cli.commands import ForJournald, goes_to_journald
from slackwater.controller.cli.main import cli
from slackwater.core.config import load
from slackwater.lbengine.baseline import BaselineStore

POOLS = """
state_dir = "{folder}"
[[pool]]
name = "web"
backend = "web"
socket = "/nowhere/a.sock"
[[pool]]
name = "api"
backend = "api"
socket = "/nowhere/b.sock"
"""


def test_for_journald_a_line_begins_with_its_level_and_has_no_time() -> None:
    form = ForJournald("%(name)s: %(message)s")

    def line(level: int, text: str) -> str:
        return form.format(logging.LogRecord("lbengine", level, "", 0, text, None, None))

    assert line(logging.ERROR, "no\nway") == "<3>lbengine: no␊way"
    assert [line(level, "a")[:3] for level in (logging.WARNING, logging.INFO, logging.DEBUG)] == ["<4>", "<6>", "<7>"]


def test_only_a_descriptor_that_systemd_connected_goes_to_journald(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    try:
        opened = os.fstat(write)
        monkeypatch.setenv("JOURNAL_STREAM", f"{opened.st_dev}:{opened.st_ino}")
        assert goes_to_journald(write)
        monkeypatch.setenv("JOURNAL_STREAM", f"{opened.st_dev}:{opened.st_ino + 1}")
        assert not goes_to_journald(write)
    finally:
        os.close(read)
        os.close(write)


def test_restore_of_all_pools_goes_through_each_whatever_became_of_the_others(tmp_path: Path) -> None:
    file = tmp_path / "controller.toml"
    file.write_text(POOLS.format(folder=tmp_path))
    done = CliRunner().invoke(cli, ["restore", "--all", "--config", str(file)])
    assert done.exit_code == 0
    assert done.output.splitlines() == ["web: nothing to put back", "api: nothing to put back"]
    settings = load(file)
    stored = BaselineStore(tmp_path, settings.pool[0]).path
    stored.parent.mkdir()
    stored.write_text("broken")
    done = CliRunner().invoke(cli, ["restore", "--all", "--config", str(file)])
    assert done.exit_code == 1
    assert "api: nothing to put back" in done.output
    assert "rror: web: " in done.output


def test_all_and_a_pool_exclude_each_other() -> None:
    done = CliRunner().invoke(cli, ["restore", "--all", "--pool", "web"])
    assert done.exit_code == 2
    assert "--all and --pool exclude each other" in done.output
