"""No two Rust modules import each other, neither directly nor through others.

A module is a file or a folder directly below a crate's `src`; `lib.rs` and `main.rs` only put them together. Tests
inside a module may use any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT

CRATES = ("messages", "node", "monitor", "sniffer", "wsengine")
ROOTS = {"lib", "main"}
USE = re.compile(r"\bcrate::(\{[^;]*?\}|\w+)")
TESTS = re.compile(r"^#\[cfg\(test\)\]\n(?:pub(?:\(crate\))? )?mod \w+ \{$.*?^\}$", re.MULTILINE | re.DOTALL)


def imports(source: str) -> set[str]:
    """The modules of its own crate that a file names: `crate::a::b` and `crate::{a, b::c}`."""
    names: set[str] = set()
    for imported in USE.findall(TESTS.sub("", source)):
        names |= set(re.findall(r"(?:^\{|,)\s*(\w+)", imported)) if imported.startswith("{") else {imported}
    return names


def edges(source: Path) -> dict[str, set[str]]:
    """Each module of a crate with the other modules that it imports."""
    modules: dict[str, set[str]] = {}
    for path in sorted(source.rglob("*.rs")):
        name = path.relative_to(source).parts[0].removesuffix(".rs")
        if name not in ROOTS and "tests" not in path.relative_to(source).parts:
            modules.setdefault(name, set()).update(imports(path.read_text()))
    return {name: (named & modules.keys()) - {name} for name, named in modules.items()}


def circles(modules: dict[str, set[str]]) -> Iterator[list[str]]:
    """A path from each module that comes back to it."""
    for start in modules:
        paths = [[start]]
        seen: set[str] = set()
        while paths:
            path = paths.pop()
            for following in modules[path[-1]]:
                if following == start:
                    yield [*path, start]
                elif following not in seen:
                    seen.add(following)
                    paths.append([*path, following])


@pytest.mark.parametrize("crate", CRATES)
def test_no_modules_import_each_other(crate: str) -> None:
    modules = edges(ROOT / crate / "src")
    assert modules or crate == "messages"
    assert [" -> ".join(circle) for circle in circles(modules)] == []


def test_imports_are_found_in_each_form_and_tests_do_not_count() -> None:
    source = """use crate::a::{B, C};
use crate::{d, e::F};
fn f() { crate::g::h(); }
#[cfg(test)]
mod tests {
    use crate::z::Z;
}
"""
    assert imports(source) == {"a", "d", "e", "g"}


SUBTRACTS = {
    "counter_delta.rs": "the place for it",
    "pmu/group.rs": "counts of perf_event, which wrap",
    "collectors/memory.rs": "two counters of one reading",
}


def test_only_one_place_subtracts_readings_of_counters() -> None:
    """There a difference is compared with the time that passed, so no collector can forget it."""
    source = ROOT / "monitor/src"
    files = {
        str(path.relative_to(source))
        for path in source.rglob("*.rs")
        if re.search(r"\.(checked|wrapping|overflowing)_sub\(", path.read_text())
    }
    assert files == set(SUBTRACTS)
