"""`make test` tries the same Hypothesis examples, whatever else a process has loaded."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers

from tests.support import same_examples


def examples_tried() -> list[tuple[int, str]]:
    tried = []

    @settings(max_examples=200, derandomize=True, database=None)
    @given(st.integers(), st.text())
    def look(number: int, text: str) -> None:
        tried.append((number, text))

    look()
    return tried


def module_of_constants(directory: Path) -> ModuleType:
    file = directory / "constants_of_its_own.py"
    file.write_text(f"NUMBERS = {[1_000_003 * n for n in range(1, 400)]}\nWORDS = {[f'word{n}' for n in range(400)]}\n")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(not settings().derandomize, reason="this run looks for other examples each time")
def test_examples_do_not_follow_from_the_modules_that_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = examples_tried()
    monkeypatch.setitem(sys.modules, "constants_of_its_own", module_of_constants(tmp_path))
    assert examples_tried() == before


def test_a_version_of_hypothesis_that_collects_constants_elsewhere_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(providers, same_examples.COLLECTS)
    with pytest.raises(RuntimeError, match="_get_local_constants"):
        same_examples.without_local_constants()
