"""Where the code does something that only few places may do, and whether a list of those places is true."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from tests.support.paths import ROOT

Place = tuple[str, str]
"""A file, relative to the checkout, and the name of a function in it, or `module`."""
Look = Callable[[str], Iterator[tuple[str, str]]]
"""A source -> the function and the code of each place in it."""


def python_files(*packages: str) -> list[Path]:
    """All Python files of these packages."""
    return [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]


def in_functions(
    source: str, is_meant: Callable[[ast.AST], bool], is_left_out: Callable[[ast.AST], bool] = lambda _: False
) -> Iterator[tuple[str, ast.AST]]:
    """The function and the node, of each node that is meant. Nothing below a node that is left out is looked at."""

    def below(node: ast.AST, function: str) -> Iterator[tuple[str, ast.AST]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        if is_left_out(node):
            return
        if is_meant(node):
            yield function, node
        for child in ast.iter_child_nodes(node):
            yield from below(child, function)

    yield from below(ast.parse(source), "module")


def places(files: Iterable[Path], look: Look) -> dict[Place, list[str]]:
    """The code at each place of these files."""
    code: dict[Place, list[str]] = {}
    for path in files:
        for function, line in look(path.read_text()):
            code.setdefault((str(path.relative_to(ROOT)), function), []).append(line)
    return code


def assert_only(allowed: Mapping[Place, str], there: Mapping[Place, list[str]]) -> None:
    """No place is there but those that are allowed, and each of these is."""
    wrong = {place: code for place, code in there.items() if place not in allowed}
    assert not wrong, "\n".join(f"{file}, {function}: {code}" for (file, function), code in wrong.items())
    gone = allowed.keys() - there.keys()
    assert not gone, f"allowed, but not there: {gone}"
