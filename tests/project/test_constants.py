"""A module's constant has one value. A merge that keeps both sides gives it two, and only the last one counts."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from tests.support.code_places import python_files
from tests.support.paths import ROOT

PACKAGES = ("slackwater", "detector", "lbengine", "web", "lab", "tools", "tests", "packaging", "fuzz")


def bound_twice(source: str) -> list[str]:
    """The names in capitals that are assigned to more than once at the top of a module."""

    def targets() -> Iterator[ast.expr]:
        for node in ast.parse(source).body:
            if isinstance(node, ast.Assign):
                yield from node.targets
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                yield node.target

    names = Counter(
        node.id
        for target in targets()
        for node in ast.walk(target)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id.isupper()
    )
    return sorted(name for name, count in names.items() if count > 1)


def test_a_constant_that_is_set_twice_is_found() -> None:
    assert bound_twice("A = 1\nB: int = 2\nA, C = 3, 4\nB |= 5\nB[0] = 6\nD: int\nD = 7\n") == ["A"]


def test_no_constant_is_set_twice() -> None:
    twice = {path.relative_to(ROOT): bound_twice(path.read_text()) for path in python_files(*PACKAGES)}
    assert {str(path): names for path, names in twice.items() if names} == {}
