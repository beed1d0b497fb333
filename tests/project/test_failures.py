"""The tables of failures and of promises name a test for each, and every test that they name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs/operations/failures.md"
PROMISES = ROOT / "docs/operations/security.md"
NAMED = re.compile(r"`([\w/]+\.(?:py|rs))::(\w+)`")


def rows(page: Path = PAGE, section: str = "") -> list[str]:
    """The rows of the tables of a page, or of a section of it, without their heads."""
    text = page.read_text()
    if section:
        text = text[text.index(f"\n## {section}\n") + 1 :].partition("\n## ")[0]
    lines = text.splitlines()
    heads = {number - 1 for number, line in enumerate(lines) if line.startswith("|---")}
    return [
        line
        for number, line in enumerate(lines)
        if line.startswith("|") and not line.startswith("|---") and number not in heads
    ]


def exists(file: str, test: str) -> bool:
    path = ROOT / file
    keyword = "fn" if file.endswith(".rs") else "def"
    return path.exists() and re.search(rf"\b{keyword} {test}\(", path.read_text()) is not None


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.split("|")[1].strip()[:60])
def test_each_failure_has_a_test_that_exists(row: str) -> None:
    named = NAMED.findall(row.split("|")[4])
    assert named, f"{PAGE.name}: no test in: {row}"
    assert [f"{file}::{test}" for file, test in named if not exists(file, test)] == []


def test_no_failure_stands_twice() -> None:
    failures = [row.split("|")[1].strip() for row in rows()]
    assert sorted(failures) == sorted(set(failures))


@pytest.mark.parametrize("row", rows(PROMISES, "What is promised"), ids=lambda row: row.split("|")[1].strip()[:60])
def test_each_promise_has_a_test(row: str) -> None:
    assert NAMED.findall(row.split("|")[2]), f"{PROMISES.name}: no test in: {row}"


@pytest.mark.parametrize("page", [PAGE, PROMISES], ids=lambda page: page.name)
def test_tests_that_the_text_names_exist(page: Path) -> None:
    assert [f"{file}::{test}" for file, test in NAMED.findall(page.read_text()) if not exists(file, test)] == []


def test_a_test_that_is_not_there_is_noticed() -> None:
    assert not exists("tests/project/test_failures.py", "test_that_nobody_wrote")
    assert not exists("tests/project/test_nowhere.py", "test_a_test_that_is_not_there_is_noticed")
