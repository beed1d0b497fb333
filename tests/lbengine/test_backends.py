"""A new balancer is one folder and one line: nothing else in lbengine knows which balancers there are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from slackwater.core.config.balancers import BALANCERS, own_settings
from slackwater.lbengine.backends.table import BACKENDS
from tests.support.paths import ROOT

NAMES = re.compile(r"haproxy|ipvs|lvs|keepalived", re.IGNORECASE)
OWN = {"backends", "haproxy_init"}
"""`slackwater init` is for HAProxy alone."""
ELSEWHERE = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "lbengine").rglob("*.py")
    if not OWN & set(path.parts) or path.name == "balancer.py"
)


def mentions(source: str) -> Iterator[str]:
    """Names, imports and strings of a module that name a balancer; its comments and docstrings are for people."""
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    strings = {
        id(node.value)
        for parent in ast.walk(tree)
        if isinstance(parent, documented)
        for node in parent.body
        if isinstance(node, ast.Expr)
    }
    for node in ast.walk(tree):
        text = ""
        if isinstance(node, ast.Name):
            text = node.id
        elif isinstance(node, ast.Attribute):
            text = node.attr
        elif isinstance(node, ast.ImportFrom):
            text = f"{node.module} {' '.join(alias.name for alias in node.names)}"
        elif isinstance(node, ast.Import):
            text = " ".join(alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in strings:
            text = node.value
        if NAMES.search(text):
            yield f"line {getattr(node, 'lineno', 0)}: {text}"


@pytest.mark.parametrize("module", ELSEWHERE)
def test_nothing_outside_the_backends_names_a_balancer(module: str) -> None:
    assert list(mentions((ROOT / module).read_text())) == []


def test_the_search_sees_every_mention() -> None:
    source = (
        '"""About HAProxy."""\nimport slackwater.lbengine.backends.ipvs\n'
        "from slackwater.lbengine.backends.haproxy import fleet\n"
        'if pool.balancer == "lvs" or keepalived.where:\n    snapshot.haproxy = 1\n'
    )
    assert len(list(mentions(source))) == 5


def test_every_balancer_of_the_settings_has_a_backend() -> None:
    assert BACKENDS.keys() == BALANCERS.keys()


def test_each_balancer_has_words_that_the_reference_and_the_messages_need() -> None:
    for word, kind in BALANCERS.items():
        assert (kind.word(), bool(kind.title), bool(kind.needs)) == (word, True, True)
        assert set(own_settings(kind)), f"{word} has settings of its own"
