"""A path that a module works out from its own place, or from the checkout's, is there."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT

FOLDERS = {"slackwater": "slackwater", "lab/slackwater_lab": "slackwater_lab"}
FOLDERS |= {name: f"slackwater.{name}" for name in ("detector", "lbengine", "web")}
"""Folder -> the name by which it is imported."""
MADE = (ROOT / ".build", ROOT / "target")
"""What set-up and builds make."""


def constants() -> Iterator[tuple[str, str]]:
    """(module, name) of each constant that is made of `__file__` or `ROOT`, or of such a constant."""
    for folder, package in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            source = path.read_text()
            if "__file__" not in source and "ROOT" not in source:
                continue
            module = ".".join([package, *path.relative_to(ROOT / folder).with_suffix("").parts])
            places = {"__file__", "ROOT"}
            for node in ast.parse(source).body:
                if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    names = {leaf.id for leaf in ast.walk(node.value) if isinstance(leaf, ast.Name)}
                    if names & places:
                        places.add(node.targets[0].id)
                        yield module, node.targets[0].id


@pytest.mark.parametrize(("module", "name"), list(constants()))
def test_a_path_in_the_code_is_there(module: str, name: str) -> None:
    value = getattr(importlib.import_module(module), name)
    if isinstance(value, Path) and not any(value.is_relative_to(made) for made in MADE):
        assert value.exists(), f"{module}.{name}"
