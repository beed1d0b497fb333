"""Commands of `slackwater` that a document names are there, with the options that it gives them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import click
import pytest

from slackwater.controller.cli.main import cli
from tests.support.paths import ROOT

COMMAND = re.compile(r"(?:`|^ *(?:sudo )?)slackwater ([a-z][^`\n#|]*)", re.MULTILINE)
QUOTED = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"")
"""One word for the command, whatever options of other programs are in it."""
OF_EACH = {"--help", "--version"}


def pages() -> list[Path]:
    """All but the results, which name commands as they were at the commit that was measured."""
    files = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [Path(name) for name in files.splitlines() if (ROOT / name).exists()]
    return [path for path in paths if "vendor" not in path.parts and path.parts[:2] != ("docs", "results")]


def unknown(words: list[str]) -> list[str]:
    """Words that are no command, and options that the command has not."""
    command: click.Command | None = cli
    while isinstance(command, click.Group) and words and re.fullmatch(r"[a-z][a-z-]*", words[0]):
        word, *words = words
        command = command.get_command(click.Context(command), word)
        if command is None:
            return [word]
    assert command is not None
    known = {name for parameter in command.params for name in [*parameter.opts, *parameter.secondary_opts]}
    options = [re.split(r"[=,.;)]", word)[0] for word in words if word.startswith("--")]
    return [option for option in options if option not in known | OF_EACH]


@pytest.mark.parametrize("page", pages(), ids=str)
def test_commands_and_options_that_a_page_names_are_there(page: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    named = [QUOTED.sub("WORD", match).split() for match in COMMAND.findall(text)]
    assert not [(" ".join(words), wrong) for words in named if (wrong := unknown(words))]


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ("status --watch", []),
        ("bus node add web web1", []),
        ("pause --all --why", []),
        ("stauts", ["stauts"]),
        ("bus node remove web1 --al", ["--al"]),
        ("lab evaluate", ["evaluate"]),
    ],
)
def test_what_is_unknown_is_named(words: str, wrong: list[str]) -> None:
    assert unknown(words.split()) == wrong
