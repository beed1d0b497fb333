"""`--json`: which commands have it, and that it is one JSON value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from slackwater.controller.cli.main import cli
from tests.support.real_processes import free_address

WITHOUT = {
    "serve": "runs until it is stopped; what it does is in its log and its journal",
    "calibrate": "asks before it begins and before it installs; its result is a file",
    "governor run": "runs until it is stopped; `log --json` has its decisions",
    "lab up": "stays until Ctrl-C; `lab status --json` says what there is",
    "lab demo": "is for people to look at",
    "lab record": "its result is a file, in the form that `train` reads",
}
"""Commands without `--json`, with the reason."""


def commands(
    command: click.Command, path: tuple[str, ...], above: click.Context
) -> Iterator[tuple[str, click.Command]]:
    """All commands below, each with its words."""
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command, parent=above, info_name=path[-1] if path else "slackwater")
    for name in command.list_commands(context):
        subcommand = command.get_command(context, name)
        assert subcommand is not None
        yield from commands(subcommand, (*path, name), context)


ALL = dict(commands(cli, (), click.Context(cli)))


def test_every_command_has_json_but_those_that_are_listed() -> None:
    without = {
        name for name, command in ALL.items() if not any("--json" in parameter.opts for parameter in command.params)
    }
    assert without == set(WITHOUT)
    assert len(ALL) > 50


@pytest.mark.parametrize("name", ALL)
def test_numbers_are_finite(name: str) -> None:
    """Nothing is beyond a limit of `nan`, and nothing ends after `inf`."""
    of_lab = str(getattr(ALL[name].callback, "__module__", "")).startswith("slackwater_lab")
    for parameter in () if of_lab else ALL[name].params:
        if isinstance(parameter.type, click.types.FloatParamType):
            for odd in ("nan", "inf"):
                with pytest.raises(click.BadParameter):
                    parameter.type(odd, parameter)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A controller's configuration; nothing runs."""
    path = tmp_path / "controller.toml"
    path.write_text(
        f'state_dir = "{tmp_path}/state"\n[bus]\nlisten = "{free_address()}"\n'
        f'[[pool]]\nname = "web"\nbackend = "be"\nsocket = "{tmp_path}/haproxy.sock"\n'
    )
    return path


def answer(*words: str | Path, status: int = 0, **options: Any) -> Any:
    """The one JSON value that a command printed, and nothing else."""
    done = CliRunner().invoke(cli, [*map(str, words), "--json"], **options)
    assert done.exit_code == status, done.output
    return json.loads(done.stdout)


def test_the_nodes_of_the_bus(site: Path) -> None:
    config = ("--config", site)
    added = answer("bus", "node", "add", "web", "web1", *config)
    assert (added["pool"], added["node"]) == ("web", "web1")
    for part in added["parts"]:
        assert Path(part["password_file"]).is_file()
    assert [(part["part"], part["bus_user"]) for part in added["parts"]] == [
        ("monitor", "web1"),
        ("wsengine", "wsengine:web1"),
    ]
    assert answer("bus", "node", "list", *config) == {"nodes": [{"pool": "web", "name": "web1"}]}
    assert 'node = "web1"' in answer("bus", "node", "settings", "web1", *config)["node_toml"]
    assert answer("bus", "node", "remove", "web1", *config) == {"pool": "web", "node": "web1"}
    assert answer("bus", "node", "list", *config) == {"nodes": []}


def test_a_bus_of_ones_own(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.txt"
    nodes.write_text("web web1\n")
    made = answer("bus", "config", "--nodes", nodes, "--out", tmp_path / "bus")
    assert Path(made["config"]).is_file()
    assert all(Path(file).is_file() for file in made["password_files"].values())


def test_people_and_programs_that_log_in(site: Path) -> None:
    config = ("--config", site)
    added = answer("web", "user", "add", "anna", "--role", "operator", *config, input="a long password\n")
    assert added == {"name": "anna", "role": "operator"}
    assert answer("web", "user", "list", *config) == {"users": [added]}
    assert answer("web", "user", "remove", "anna", *config) == {"name": "anna"}
    assert answer("web", "token", "add", "grafana", *config)["token"].startswith("swt_")
    assert answer("web", "token", "list", *config) == {"tokens": [{"name": "grafana", "role": "viewer"}]}


def test_a_configuration_and_what_is_wrong_with_it(site: Path) -> None:
    assert answer("config", "check", site) == {"ok": True}
    site.write_text(site.read_text() + "mod = 1\n")
    wrong = answer("config", "check", site, status=1)
    assert wrong["ok"] is False
    assert f"{site}:" in wrong["error"]


def test_a_mark_for_recordings(site: Path) -> None:
    begun = answer("mark", "web1", "backup", "--begin", "--config", site)
    assert (begun["node"], begun["kind"], begun["end_unix_s"]) == ("web1", "backup", None)
    ended = answer("mark", "web1", "backup", "--end", "--config", site)
    assert ended["end_unix_s"] >= ended["start_unix_s"] == begun["start_unix_s"]


def test_what_was_restored_and_what_could_not_be(site: Path, tmp_path: Path) -> None:
    nothing = {"pool": "web", "changes": [], "error": "", "kept": []}
    assert answer("restore", "--config", site) == {"pools": [nothing]}
    baseline = tmp_path / "state/baseline/web.json"
    baseline.parent.mkdir(parents=True)
    baseline.write_text("no json")
    (pool,) = answer("restore", "--config", site, status=1)["pools"]
    assert str(baseline) in pool["error"]


def test_all_pools_of_a_controller_that_is_not_there(site: Path) -> None:
    (answered,) = answer("pause", "--all", "--config", site, status=1)["answers"]
    assert answered["pool"] == "web"
    assert answered["error"]
    assert "sentence" not in answered
