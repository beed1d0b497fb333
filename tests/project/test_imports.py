"""Data flows one way, and so do the imports (docs/how-it-works/README.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.support.paths import ROOT

PARTS = {"slackwater", "detector", "lbengine", "retune", "web", "lab"}
MAY_IMPORT = {
    "slackwater": {"slackwater"},
    "detector": {"slackwater", "detector"},
    "lbengine": {"slackwater", "lbengine"},
    "retune": {"slackwater", "retune"},
    "web": {"slackwater", "web"},
    "lab": PARTS,
}
STARTS_THE_PARTS = {"slackwater/cli/main.py", "slackwater/cli/commands.py", "slackwater/supervise/serve.py"}


def imported_modules(source: str, package: str = "") -> Iterator[str]:
    """The modules that a module imports, anywhere in it; a relative import is of its own package."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = package if node.level else node.module or ""
            yield from (f"{module}.{alias.name}" for alias in node.names)


def imported_parts(source: str, package: str) -> Iterator[str]:
    """The parts that a module imports."""
    yield from (part for name in imported_modules(source, package) if (part := name.partition(".")[0]) in PARTS)


def modules() -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for part in PARTS for path in (ROOT / part).rglob("*.py"))


@pytest.mark.parametrize("module", modules())
def test_module_imports_only_what_is_upstream(module: str) -> None:
    package = module.partition("/")[0]
    allowed = PARTS if module in STARTS_THE_PARTS else MAY_IMPORT[package]
    wrong = set(imported_parts((ROOT / module).read_text(), package)) - allowed
    assert not wrong, f"{module} imports {wrong}; {package} may import {sorted(allowed)}"


def test_the_search_sees_every_way_to_import() -> None:
    source = "import lab.hosts\nfrom web import x\ndef f():\n    import detector as d\nfrom . import y\nimport numpy\n"
    assert set(imported_parts(source, "lbengine")) == {"lab", "web", "detector", "lbengine"}


def test_the_modules_that_start_the_parts_are_there() -> None:
    assert set(modules()) >= STARTS_THE_PARTS


def test_no_test_imports_from_another() -> None:
    """What several tests need stands in tests/support."""
    wrong = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / "tests").rglob("*.py")
        for name in imported_modules(path.read_text())
        if name.startswith("tests.") and not name.startswith("tests.support.")
    }
    assert not wrong, sorted(wrong)
