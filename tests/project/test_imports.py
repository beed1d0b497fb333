"""Data flows one way, and so do the imports (docs/how-it-works/README.md): downwards only, and never in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support.paths import ROOT

LAYERS = (
    ("slackwater.core",),
    ("slackwater.orders", "slackwater.detector", "slackwater.lbengine"),
    ("slackwater.retune", "slackwater.governor", "slackwater.views"),
    ("slackwater.web", "slackwater.replace"),
    ("slackwater.controller",),
    ("slackwater_lab",),
)
"""A part imports from those above it here; those of one line don't import from each other."""
LAYER = {part: number for number, parts in enumerate(LAYERS) for part in parts}
FOLDERS = {"slackwater": "slackwater", "lab/slackwater_lab": "slackwater_lab"}
FOLDERS |= {name: f"slackwater.{name}" for name in ("detector", "lbengine", "web")}
"""Folder -> the name by which it is imported."""
VERSION = "slackwater.__version__"
"""All that `slackwater/__init__.py` has."""
OURS = {"slackwater", "slackwater_lab", "tools", "tests", "fuzz"}
HELPERS = ("tests.support.", "tests.site.", "tests.chaos.", "tests.simulation.")


def imported_modules(source: str) -> Iterator[str]:
    """The modules that a module imports, anywhere in it, or names in them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "a relative import would be a second name of a module"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part_of(module: str) -> str:
    """`slackwater.web` of `slackwater.web.users`, and `slackwater_lab` of all in the lab."""
    return ".".join(module.split(".")[: 2 if module.startswith("slackwater.") else 1])


def imported_parts(source: str) -> set[str]:
    """The parts that a module imports, and `tools` and `tests` if it does."""
    names = (name for name in imported_modules(source) if name.partition(".")[0] in OURS and name != VERSION)
    return {part_of(name) for name in names if name != "slackwater"}


@cache
def modules() -> dict[str, Path]:
    """Module -> its file."""
    paths = {}
    for folder, name in FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            words = path.relative_to(ROOT / folder).with_suffix("").parts
            paths[".".join([name, *words]).removesuffix(".__init__")] = path
    return paths


@cache
def imports() -> dict[str, set[str]]:
    """Module -> the modules that it imports."""
    targets_of: dict[str, set[str]] = {}
    for module, path in modules().items():
        names = imported_modules(path.read_text())
        targets = {name if name in modules() else name.rpartition(".")[0] for name in names}
        targets_of[module] = (targets & modules().keys()) - {module}
    return targets_of


def folder(module: str) -> str:
    """Where a module's file stands; one that stands directly in its part's folder is a folder of its own here."""
    is_package = modules()[module].name == "__init__.py"
    parent = module if is_package else module.rpartition(".")[0]
    return module if parent == part_of(module) else parent


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """One circle of a graph, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("module", sorted(modules()))
def test_module_imports_only_what_is_below(module: str) -> None:
    parts = imported_parts(modules()[module].read_text()) - {part_of(module)}
    if module == "slackwater":
        assert not parts
        return
    height = LAYER[part_of(module)]
    assert not {part for part in parts if LAYER.get(part, len(LAYERS)) >= height}


def test_no_modules_import_each_other_not_even_lazily() -> None:
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
    source = "import slackwater_lab.hosts\nfrom slackwater import __version__, web\nfrom slackwater.core import bus\n"
    source += "def f():\n    import slackwater.detector.x as d\nimport slackwater\nimport numpy\n"
    assert imported_parts(source) == {"slackwater_lab", "slackwater.web", "slackwater.core", "slackwater.detector"}


def test_every_part_has_a_layer_and_every_layer_its_parts() -> None:
    assert {part_of(module) for module in modules()} - {"slackwater"} == set(LAYER)


def test_the_links_lead_to_the_folders_beside_the_package() -> None:
    links = {path.name: path.readlink() for path in (ROOT / "slackwater").iterdir() if path.is_symlink()}
    assert links == {name: Path("..", name) for name in ("detector", "lbengine", "web")}


def test_no_test_imports_from_another() -> None:
    """What several tests need stands in tests/support; what is a command too in a folder of its own."""
    wrong = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / "tests").rglob("*.py")
        for name in imported_modules(path.read_text())
        if name.startswith("tests.") and (not name.startswith(HELPERS) or ".test_" in name)
    }
    assert not wrong, sorted(wrong)


SAME = {"Bucket"}
"""The lease's is a protocol: the part of the bus's that it needs."""


def test_the_name_of_a_class_means_one_thing() -> None:
    """The lab is a distribution of its own, and names what it plays like the real thing."""
    places: dict[str, list[str]] = {}
    for module, path in modules().items():
        if part_of(module) != "slackwater_lab":
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(module)
    shared = {name for name, modules_with_it in places.items() if len(modules_with_it) > 1}
    assert shared == SAME, {name: places[name] for name in shared}
