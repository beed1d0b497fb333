"""The table of failures names a test for each, and every test that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs/operations/failures.md"
NAMED = re.compile(r"`([\w/]+\.(?:py|rs))::(\w+)`")


def rows() -> list[str]:
    """The tables' rows, without their heads."""
    lines = PAGE.read_text().splitlines()
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


def test_tests_that_the_text_names_exist() -> None:
    assert all(exists(file, test) for file, test in NAMED.findall(PAGE.read_text()))


def test_a_test_that_is_not_there_is_noticed() -> None:
    assert not exists("tests/project/test_failures.py", "test_that_nobody_wrote")
    assert not exists("tests/project/test_nowhere.py", "test_a_test_that_is_not_there_is_noticed")
