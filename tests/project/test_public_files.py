"""Files for a public forge: its checks call what everybody calls, and forms ask for commands that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from slackwater.controller.cli.main import cli
from tests.support.paths import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = sorted(path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
MAY_CALL = {"git", "apt-get", "rustup", "make"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_calls_make_and_runs_nothing_of_strangers(path: Path) -> None:
    whole = yaml.safe_load(path.read_text())
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert whole["permissions"] == {"contents": "read"}
    for job in whole["jobs"].values():
        assert not [step for step in job["steps"] if "uses" in step], "an action needs a commit that was verified"
        commands = [line.split() for step in job["steps"] for line in step["run"].splitlines() if line.strip()]
        assert {words[0] for words in commands} <= MAY_CALL
        made = [words[1] for words in commands if words[0] == "make"]
        assert len(made) == 1
        assert set(made) <= targets


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_a_form_is_whole_and_its_commands_exist(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= set(form)
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)
    named = set(re.findall(r"`slackwater ([a-z][a-z-]*)", path.read_text()))
    assert named <= set(cli.list_commands(None)), named  # type: ignore[arg-type]


def test_there_are_forms_and_workflows() -> None:
    assert len(WORKFLOWS) >= 2
    assert len(FORMS) >= 3
