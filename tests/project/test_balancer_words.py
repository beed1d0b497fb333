"""The words of a balancer stay in its folder of `lbengine/backends/`: elsewhere a server has a condition."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.code_places import python_files
from tests.support.paths import ROOT

WORDS = re.compile(r"\b(UP|DOWN|MAINT|DRAIN|NOLB|no check)\b")
"""How HAProxy's `show stat` begins a server's status."""
HAPROXY = ROOT / "lbengine" / "backends" / "haproxy"
PAGES = [
    path
    for ending in ("js", "html")
    for path in sorted((ROOT / "web").rglob(f"*.{ending}"))
    if "vendor" not in path.parts
]


def texts(source: str) -> Iterator[str]:
    """The texts of a Python source, without its docstrings."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def test_no_other_code_knows_how_haproxy_calls_what_a_server_does() -> None:
    files = python_files("slackwater", "lbengine", "detector", "retune", "governor", "web")
    offenders = [
        f"{path.relative_to(ROOT)}: {text[:80]!r}"
        for path in files
        if not path.is_relative_to(HAPROXY)
        for text in texts(path.read_text())
        if WORDS.search(text)
    ]
    offenders += [str(path.relative_to(ROOT)) for path in PAGES if WORDS.search(path.read_text())]
    assert not offenders, "a server's condition is `ServerState.condition`"


@pytest.mark.parametrize("source", ['if row.status.startswith(("UP", "no check")): ...', 'x = f"DOWN in {title}"'])
def test_a_word_in_code_is_seen(source: str) -> None:
    assert any(WORDS.search(text) for text in texts(source))
