"""Old names of settings, API fields and options are accepted for one release, with a warning that names the new one."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner

from slackwater import config, renamed
from slackwater.cli.main import cli
from slackwater.config import ConfigError, parse

POOL = '[[pool]]\nname = "web"\nbackend = "be"\nsocket = "/run/haproxy.sock"\n'
WARNING = "`way` is now called `weight_delivery`; the old name will be refused from the next release on"


def test_a_setting_under_its_old_name_is_taken_with_a_warning_and_its_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        settings = parse(POOL + POOL.replace("web", "b").replace("be", "b") + '\nway = "agent-check"\n', "f.toml")
    assert [msgspec.to_builtins(pool)["weight_delivery"] for pool in settings.pool] == ["socket", "agent-check"]
    assert caplog.messages == [f"f.toml:10: {WARNING}"]


def test_a_wrong_value_under_an_old_name_is_refused_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"f\.toml:5: pool\[0\]\.weight_delivery: invalid enum value 'post'"):
        parse(POOL + 'way = "post"\n', "f.toml")


def test_both_names_of_a_setting_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"f\.toml:6: `way` is the old name of `weight_delivery`, and both are given"):
        parse(POOL + 'weight_delivery = "socket"\nway = "socket"\n', "f.toml")


def test_the_warning_reaches_whoever_checks_a_file(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(POOL + 'way = "socket"\n')
    result = CliRunner().invoke(cli, ["config", "check", str(file)])
    assert (result.exit_code, result.stdout) == (0, "OK\n")


def test_new_names_of_settings_exist_and_old_ones_do_not() -> None:
    names = {name for name, _, _ in config.describe()}
    assert set(renamed.SETTINGS.values()) <= names
    assert not names & set(renamed.SETTINGS)


def command(path: str) -> click.Command:
    found: click.Command = cli
    for word in path.split():
        assert isinstance(found, click.Group)
        inner = found.get_command(click.Context(found), word)
        assert inner is not None
        found = inner
    return found


def test_each_renamed_option_is_declared_as_one() -> None:
    for path, names in renamed.OPTIONS.items():
        declared = [one for one in command(path).params if isinstance(one, renamed.RenamedOption)]
        assert {opt for one in declared for opt in one.opts} == set(names.values())


@pytest.fixture
def nodes(tmp_path: Path) -> list[Any]:
    (tmp_path / "nodes.txt").write_text("web n1\n")
    return ["bus", "config", "--nodes", str(tmp_path / "nodes.txt")]


def test_an_option_under_its_old_name_is_taken_with_a_warning(nodes: list[Any], tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, [*nodes, "--folder", str(tmp_path / "bus")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "bus/nats.conf").exists()
    assert result.stderr.startswith("warning: `--folder` is now called `--out`; ")
    assert "--folder" not in CliRunner().invoke(cli, ["bus", "config", "--help"]).output


def test_both_names_of_an_option_are_refused(nodes: list[Any]) -> None:
    result = CliRunner().invoke(cli, [*nodes, "--folder", "a", "--out", "b"])
    assert result.exit_code == 2
    assert "`--folder` is the old name of `--out`, and both are given" in result.stderr
