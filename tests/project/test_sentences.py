"""No code decides by what a sentence says: reasons and errors are for people, and have causes beside them for programs.

A sentence is a value of one of the names in `SENTENCES`, an element of a Verdict's `path`, or the text of an exception.
A branch on it compares it with a text that is no sentence, looks for something in it, takes it apart, matches it with
a pattern or looks up something by it. Two questions may be asked: whether there is none (it is empty), and whether two
are the same, so that nothing is said twice. What other programs say can only be read: `ALLOWED` has each such place,
with its reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.code_places import assert_only, in_functions, places, python_files
from tests.support.paths import ROOT

PACKAGES = ("slackwater", "detector", "lbengine", "web", "lab")
CRATES = ("messages", "node", "sniffer", "monitor", "wsengine")
SENTENCES = {
    "why",
    "reason",
    "reasons",
    "sentence",
    "summary",
    "short",
    "said",
    "trouble",
    "message",
    "headline",
    "detail",
    "error",
}
SENTENCES |= {"cut_short", "search_told", "strerror"}
"""The names count with or without `_` in front."""
TOLD = "told"
"""It counts as an attribute; a name `told` may be other things that somebody told."""
TAKES_APART = {
    "startswith",
    "endswith",
    "find",
    "rfind",
    "index",
    "rindex",
    "split",
    "rsplit",
    "partition",
    "rpartition",
}
TAKES_APART |= {"removeprefix", "removesuffix", "splitlines", "count"}
MATCHES = {"match", "search", "fullmatch", "findall", "finditer", "sub", "subn", "split"}
SAME_TEXT = {"strip", "lower", "upper", "casefold", "format"}

ALLOWED = {
    ("slackwater/core/config/reading.py", "_parsed"): "tomllib's error names the line in its text only",
    ("slackwater/core/config/reading.py", "_located"): "msgspec's error names the field in its text only",
    ("slackwater/views/why.py", "as_text"): "a reason that was just printed is not printed twice",
    ("slackwater/core/bus/bus.py", "on_error"): "the client library's trouble is told once",
    ("lbengine/backends/ipvs/ipvs.py", "in_words"): "ipvsadm says what is wrong in words only",
    ("sniffer/src/capture/live.rs", "explain"): "libpcap says what is wrong in words only",
}


# --- Python


def is_sentence(node: ast.expr) -> bool:
    match node:
        case ast.Attribute(attr=name):
            return name.lstrip("_") in SENTENCES | {TOLD}
        case ast.Name(id=name):
            return name in SENTENCES
        case ast.Subscript(slice=ast.Constant(value=str() as name)):
            return name in SENTENCES
        case ast.Subscript(value=ast.Attribute(attr="path"), slice=ast.Constant(value=int())):
            return True  # of a Verdict's reasons; a file's path is not taken apart by numbers
        case ast.Subscript(value=inner, slice=ast.Slice()):
            return is_sentence(inner)
        case ast.Call(func=ast.Name(id="str" | "repr"), args=[inner]):
            return is_sentence(inner)
        case ast.Call(func=ast.Attribute(value=inner, attr=method)) if method in SAME_TEXT:
            return is_sentence(inner)
    return False


def is_reasons(node: ast.expr) -> bool:
    """A list of sentences."""
    return isinstance(node, ast.Attribute) and node.attr == "path"


def is_empty(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in ("", None)


def is_branch(node: ast.AST) -> bool:
    match node:
        case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq()], comparators=[right]):
            return is_sentence(left) != is_sentence(right) and not any(map(is_empty, (left, right)))
        case ast.Compare(left=left, ops=[ast.In() | ast.NotIn()], comparators=[right]):
            return is_sentence(left) or is_sentence(right) or is_reasons(right)
        case ast.Call(func=ast.Attribute(value=inner, attr=method)) if is_sentence(inner) and method in TAKES_APART:
            return True
        case ast.Call(func=ast.Attribute(attr=method), args=args) if method in MATCHES | {"get"}:
            return any(map(is_sentence, args))
        case ast.Subscript(slice=key, ctx=ast.Load()):
            return is_sentence(key)
        case ast.Match(subject=subject):
            return is_sentence(subject)
    return False


def branches(source: str) -> Iterator[tuple[str, str]]:
    """The function (or `module`), and the expression."""
    for function, node in in_functions(source, is_branch):
        yield function, ast.unparse(node).partition("\n")[0]


# --- Rust

RUST_NAMES = r"(?:why|reason|reasons|sentence|said|told|message|detail|error|text_of_error)"
RUST_CALLS = r"(?:contains|starts_with|ends_with|find|rfind|split\w*|rsplit\w*|strip_prefix|strip_suffix|matches|eq)"
RUST = re.compile(
    rf"\b{RUST_NAMES}(?:\.(?:as_str|as_ref|to_string|trim|to_lowercase|clone)\(\))*\s*\.{RUST_CALLS}\("
    rf'|\b{RUST_NAMES}(?:\.as_str\(\))?\s*[!=]=\s*"[^"]'
    rf'|"[^"]+"\s*[!=]=\s*(?:\w+\.)*{RUST_NAMES}\b'
    rf"|\bmatch\s+(?:\w+\.)*{RUST_NAMES}\.as_str\(\)"
)
RUST_FUNCTION = re.compile(r"\bfn (\w+)")


def rust_branches(source: str) -> Iterator[tuple[str, str]]:
    """The `branches` of Rust code that is no test; comments do not count."""
    function = "module"
    for line in source.partition("#[cfg(test)]\nmod ")[0].splitlines():
        code = line.partition("//")[0]
        if named := RUST_FUNCTION.search(code):
            function = named[1]
        if RUST.search(code):
            yield function, code.strip()


# --- the product


def rust_files() -> list[Path]:
    """Those without tests."""
    return [
        path
        for crate in CRATES
        for path in sorted((ROOT / crate / "src").rglob("*.rs"))
        if "tests" not in path.relative_to(ROOT).with_suffix("").parts and not path.stem.endswith("_tests")
    ]


def test_nothing_in_the_product_branches_on_a_sentence() -> None:
    assert_only(ALLOWED, places(python_files(*PACKAGES), branches) | places(rust_files(), rust_branches))


@pytest.mark.parametrize(
    "code",
    [
        'if change.why.startswith("put back"): pass',
        '"given back by" in change.why',
        "any(own in change.why for own in ON_ITS_OWN)",
        '{made.id for made in orders if ": renewed: " in made.why}',
        "server.why.startswith(DRAINED)",
        "server.why.startswith(state) or why in server.why",
        "server.why != state",
        "decision.short.split(',')[0]",
        "decision.short == HOLD",
        're.match(r"[a-z_]+", change.why)',
        "PATTERN.search(change.why)",
        'verdict.path[0] == "no Sample"',
        '"no Sample" in verdict.path',
        'answer["error"].startswith("lbengine")',
        '"refused" in str(error).lower()',
        'error.strerror == "Permission denied"',
        "REMEDIES[reason]",
        "REMEDIES.get(reason)",
        'match made.why:\n    case "calm": pass',
    ],
)
def test_a_branch_on_a_sentence_is_seen(code: str) -> None:
    assert list(branches(code))


@pytest.mark.parametrize(
    "code",
    [
        "if not knob.why: pass",
        'change.why != ""',
        "change.why is None",
        'change.cause == "put_back"',
        "change.cause in PUT_BACK",
        "first = verdict.path[0] if verdict.path else ''",
        'f"{change.why}; p95"',
        'self.path.startswith("unix:")',
        "request.path == '/'",
        '"error" in answer',
        "decision.short[0]",
        "said == self._said",
    ],
)
def test_what_is_no_branch_on_a_sentence_is_left_alone(code: str) -> None:
    assert not list(branches(code))


@pytest.mark.parametrize(
    "code",
    [
        'let is_back = change.after.is_some() && change.why.starts_with("put back");',
        "REMEDIES.iter().find(|(words, _)| reason.contains(words))?;",
        'Err(reason) if reason.starts_with("denied") => {',
        'if error.to_string().contains("denied") {',
        'if lease.reason == "calm" {',
        "match change.why.as_str() {",
    ],
)
def test_a_branch_on_a_sentence_is_seen_in_rust(code: str) -> None:
    assert list(rust_branches(code))


@pytest.mark.parametrize(
    "code",
    [
        "if live.said == said {",
        "if left.why.is_empty() {",
        "// why.contains(words)",
        '#[cfg(test)]\nmod tests {\n    assert!(reason.contains("x"));\n}',
        "let text = text.contains(' ');",
    ],
)
def test_what_is_no_branch_on_a_sentence_is_left_alone_in_rust(code: str) -> None:
    assert not list(rust_branches(code))
