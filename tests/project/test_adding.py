"""CONTRIBUTING.md's lists of what a new part needs: each is tried with a dummy in a copy of the checkout."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT
from tools.reference_docs import contributing

Json = dict[str, Any]
LISTS: list[Json] = tomllib.loads((ROOT / "tools/adding.toml").read_text(encoding="utf-8"))["list"]
CODE = ("slackwater", "detector", "lbengine", "web", "lab")
NOT_NEEDED = ("__pycache__", "*.pyc", "*.jsonl", "*.parquet", "*.png", "node_modules", "target")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the dummies are added to."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in {*CODE, *(edit["file"].partition("/")[0] for each in LISTS for edit in each["dummy"])}:
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, folder / name)
        else:
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns(*NOT_NEEDED))
    return folder


def in_place_of(word: str, text: str) -> str:
    return text.replace(word, "dummy").replace(word.title(), "Dummy")


def edited(edit: Json, checkout: Path) -> str:
    """The text of the dummy's file with the edit."""
    if "text" in edit:
        return str(edit["text"])
    if "copy" in edit:
        return in_place_of(edit["word"], (checkout / edit["copy"]).read_text())
    text = (checkout / edit["file"]).read_text()
    if "part" in edit:
        assert edit["part"] in text, edit
        return str(text.replace(edit["part"], edit["with"]))
    lines = text.splitlines()
    if "lines_with" in edit:
        word = edit["lines_with"]
        assert word in text, edit
        return "".join(f"{line}\n{in_place_of(word, line)}\n" if word in line else f"{line}\n" for line in lines)
    position = next((n for n, line in enumerate(lines) if line.startswith(edit["after"])), None)
    assert position is not None, edit
    lines.insert(position if edit.get("before") else position + 1, edit["add"])
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("each", LISTS, ids=lambda each: each["name"])
def test_a_list_names_places_that_there_are(each: Json) -> None:
    assert [place for place, _ in each["steps"] if not (ROOT / place).exists()] == []
    spans = re.findall(r"`((?:\w+/)+[\w.-]*)`", each.get("more", "") + " ".join(text for _, text in each["steps"]))
    assert [place for place in spans if not (ROOT / place).exists()] == []


@pytest.mark.parametrize("each", LISTS, ids=lambda each: each["name"])
def test_a_dummy_needs_the_files_of_its_list_and_no_others(each: Json, checkout: Path) -> None:
    before: dict[Path, str | None] = {}
    try:
        for edit in each["dummy"]:
            file = checkout / edit["file"]
            before.setdefault(file, file.read_text() if file.exists() else None)
            file.parent.mkdir(exist_ok=True)
            file.write_text(edited(edit, checkout))
        done = subprocess.run(
            [sys.executable, "-c", each["proof"]],
            cwd=checkout,
            capture_output=True,
            text=True,
            env={"PYTHONPATH": str(checkout / "lab")},
        )
        assert done.returncode == 0, done.stderr
        touched = {str(file.relative_to(checkout)) for file, text in before.items() if file.read_text() != text}
        places = [place for place, _ in each["steps"]]
        named = touched & set(places)
        assert named == {place for place in places if not place.endswith("/")}
        for folder in (place for place in places if place.endswith("/")):
            there = {file for file in touched - named if file.startswith(folder)}
            assert there, f"the dummy did not need {folder}"
            named |= there
        assert named == touched
    finally:
        for file, text in before.items():
            if text is None:
                file.unlink(missing_ok=True)
            else:
                file.write_text(text)


def test_contributing_has_the_lists() -> None:
    assert (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8") == contributing()
