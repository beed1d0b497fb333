"""Data flows one way, and so do the imports (docs/how-it-works/README.md): downwards only, and never in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PARTS = {"slackwater", "detector", "lbengine", "retune", "governor", "web", "lab"}
MAY_IMPORT = {
    "slackwater": {"slackwater"},
    "detector": {"slackwater", "detector"},
    "lbengine": {"slackwater", "lbengine"},
    "retune": {"slackwater", "retune"},
    "governor": {"slackwater", "detector", "governor"},
    "web": {"slackwater", "web"},
    "lab": PARTS,
}
STARTS_THE_PARTS = {
    "slackwater/cli/main.py",
    "slackwater/cli/commands.py",
    "slackwater/cli/try_command.py",
    *(f"slackwater/supervise/{name}.py" for name in ("give_back", "serve", "start")),
    "slackwater/supervise/trial.py",
    *(f"slackwater/playback/{name}.py" for name in ("page", "player", "pool", "rounds")),
}
HELPERS = ("tests.support.", "tests.site.", "tests.chaos.", "tests.simulation.")
OURS = PARTS | {"tools", "tests", "fuzz"}


def imported_modules(source: str, package: str = "") -> Iterator[str]:
    """The modules that a module imports, anywhere in it; a relative import is of its own package."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = package if node.level else node.module or ""
            yield from (f"{module}.{alias.name}" for alias in node.names)


def imported_parts(source: str, package: str) -> Iterator[str]:
    """The parts that a module imports, and `tools` and `tests` if it does."""
    yield from (part for name in imported_modules(source, package) if (part := name.partition(".")[0]) in OURS)


def modules() -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for part in PARTS for path in (ROOT / part).rglob("*.py"))


@cache
def imports() -> dict[str, set[str]]:
    """File -> the files that it imports, both relative to the checkout."""
    file_of = {module.removesuffix(".py").removesuffix("/__init__").replace("/", "."): module for module in modules()}
    found: dict[str, set[str]] = {}
    for module in modules():
        package = str(Path(module).parent).replace("/", ".")
        names = imported_modules((ROOT / module).read_text(), package)
        files = {file_of.get(name) or file_of.get(name.rpartition(".")[0]) for name in names}
        found[module] = {file for file in files if file is not None and file != module}
    return found


def folder(module: str) -> str:
    """Where a file stands; a file that stands directly in its part's folder is a folder of its own here."""
    parent = str(Path(module).parent)
    return module if parent in PARTS else parent


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """One circle of a graph, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("module", modules())
def test_module_imports_only_what_is_upstream(module: str) -> None:
    package = module.partition("/")[0]
    allowed = PARTS if module in STARTS_THE_PARTS else MAY_IMPORT[package]
    wrong = set(imported_parts((ROOT / module).read_text(), package)) - allowed
    assert not wrong, f"{module} imports {wrong}; {package} may import {sorted(allowed)}"


def test_no_files_import_each_other_not_even_lazily() -> None:
    assert sum(map(len, imports().values())) > 500, "the search found the imports"
    assert circle(imports()) == []


def test_no_folders_import_each_other() -> None:
    folders: dict[str, set[str]] = {}
    for module, targets in imports().items():
        folders.setdefault(folder(module), set()).update({folder(target) for target in targets} - {folder(module)})
    assert circle(folders) == []


def test_a_circle_is_found() -> None:
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}


def test_the_search_sees_every_way_to_import() -> None:
    source = "import lab.hosts\nfrom web import x\ndef f():\n    import detector as d\nfrom . import y\nimport numpy\n"
    assert set(imported_parts(source, "lbengine")) == {"lab", "web", "detector", "lbengine"}


def test_the_modules_that_start_the_parts_are_there() -> None:
    assert set(modules()) >= STARTS_THE_PARTS


def test_no_test_imports_from_another() -> None:
    """What several tests need stands in tests/support; what is a command too in a folder of its own."""
    wrong = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / "tests").rglob("*.py")
        for name in imported_modules(path.read_text())
        if name.startswith("tests.") and (not name.startswith(HELPERS) or ".test_" in name)
    }
    assert not wrong, sorted(wrong)
