"""Lists every text that a person may see, with the place where it is made: `python tools/texts.py [--json] [PATH...]`.

These are strings of at least three words in the code of page, commands, detector, lbengine and the controller's other
parts (reasons, errors, log lines, help), the text of the page's templates and scripts, what the programs of the node
print, and what alerts mail. Docstrings and comments are for developers and are left out, but for those of commands,
which are their help; so is what is SQL. Packages and playbooks are not read. In a text `{...}` stands for a value.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("slackwater", "detector", "lbengine", "web", "monitor/src", "node/src", "sniffer/src", "wsengine/src")
KINDS = ("py", "html", "js", "rs", "yml")
LEFT_OUT = re.compile(r"web/static/vendor/|/tests?[./]|_test\.yml$")
SHOWN_ATTRIBUTES = ("alt", "aria-label", "placeholder", "title")
CLAP = re.compile(r"#\[derive\(.*\b(Parser|Args|Subcommand|ValueEnum)\b")
"""Before a type of Rust whose comments are the help of a command, as is the comment before it."""
SQL = re.compile(r"\s*(SELECT|INSERT|DELETE|UPDATE|CREATE|ALTER|DROP|PRAGMA|WITH|BEGIN|VACUUM) ")
LEAST_WORDS = 3
MAKES_A_COMMAND = re.compile(r"\b(command|group)\b")
WORD = re.compile(r"[A-Za-z]{2,}")


@dataclass(frozen=True)
class Text:
    """One text, and the line in which it begins."""

    path: str
    line: int
    text: str


def texts(path: Path, root: Path = ROOT) -> Iterator[Text]:
    """The texts of a Python file or a template below `root`, in the order of their lines."""
    source, name = path.read_text(encoding="utf-8"), str(path.relative_to(root))
    readers = {".html": _of_template, ".js": _of_script, ".rs": _of_rust, ".yml": _of_alerts}
    made = readers.get(path.suffix, _of_python)(source)
    for line, text in sorted(made):
        if not SQL.match(text) and sum(bool(WORD.search(word)) for word in text.split()) >= LEAST_WORDS:
            yield Text(name, line, " ".join(text.split()))


def _of_python(source: str) -> Iterator[tuple[int, str]]:
    tree = ast.parse(source)
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)} - set(_help(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield (
                node.lineno,
                "".join(str(part.value) if isinstance(part, ast.Constant) else "{...}" for part in node.values),
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not {id(node)} & (inside | alone):
            yield node.lineno, node.value


def _help(tree: ast.AST) -> Iterator[int]:
    """The docstrings that a command prints: those of functions with a decorator of click."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(
            MAKES_A_COMMAND.search(ast.unparse(mark)) for mark in node.decorator_list
        ):
            first = node.body[0]
            if isinstance(first, ast.Expr):
                yield id(first.value)


def _of_template(source: str) -> list[tuple[int, str]]:
    """The text between tags and in shown attributes, with `{...}` for what Jinja fills in; and Jinja's own strings."""
    chosen: list[tuple[int, str]] = []

    def filled(made: re.Match[str]) -> str:
        if not made[0].startswith("{#"):
            line = source.count("\n", 0, made.start()) + 1
            chosen.extend((line, string[1]) for string in re.finditer(r'"([^"]*)"', made[0]))
        return ("{...}" if made[0].startswith("{{") else "") + "\n" * made[0].count("\n")

    parser = _Template()
    parser.feed(re.sub(r"\{[{%#].*?[}%#]\}", filled, source, flags=re.DOTALL))
    return parser.kept + chosen


class _Template(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[int, str]] = []

    def handle_starttag(self, _tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keeps the attributes that a person sees or hears."""
        self.kept += [(self.getpos()[0], text) for name, text in attrs if text and name in SHOWN_ATTRIBUTES]

    def handle_data(self, data: str) -> None:
        """Keeps a text with its line."""
        self.kept.append((self.getpos()[0], data))


def _of_script(source: str) -> Iterator[tuple[int, str]]:
    """Strings of JavaScript, outside comments."""
    literals = r"//[^\n]*|/\*.*?\*/|\"((?:[^\"\\\n]|\\.)*)\"|`((?:[^`\\]|\\.)*)`"
    for found in re.finditer(literals, source, re.DOTALL):
        text = found[1] if found[1] is not None else found[2]
        if text:
            yield source.count("\n", 0, found.start()) + 1, re.sub(r"\$\{[^}]*\}", "{...}", text)


def _of_rust(source: str) -> Iterator[tuple[int, str]]:
    """Strings of Rust, outside comments and tests, and the help of commands."""
    yield from _help_of_rust(source)
    literals = r"//[^\n]*|'(?:\\.|[^'\\])'|r#\"(?:.*?)\"#|\"((?:[^\"\\]|\\.)*)\""
    for found in re.finditer(literals, source.partition("#[cfg(test)]")[0], re.DOTALL):
        if found[1]:
            text = re.sub(r"\\\n\s*", "", found[1])
            yield source.count("\n", 0, found.start()) + 1, re.sub(r"\{[^}]*\}", "{...}", text)


def _help_of_rust(source: str) -> Iterator[tuple[int, str]]:
    """Each paragraph of the comments that a command prints."""
    inside = False
    before: list[tuple[int, str]] = []
    for number, line in enumerate(source.splitlines(), 1):
        comment = re.match(r" *///(.*)", line)
        if comment and before and before[-1][1] and comment[1]:
            before[-1] = before[-1][0], before[-1][1] + comment[1]
        elif comment:
            before.append((number, comment[1]))
        elif CLAP.match(line) or inside:
            yield from before
            inside, before = line != "}", []
        elif not line.startswith("#["):
            before = []


def _of_alerts(source: str) -> Iterator[tuple[int, str]]:
    """The annotations of Prometheus' alerts, each on a line of its own."""
    for found in re.finditer(r"^ *(?:summary|description): (.*)$", source, re.MULTILINE):
        yield source.count("\n", 0, found.start()) + 1, re.sub(r"\{\{[^}]*\}\}", "{...}", found[1].strip("'\""))


def files() -> list[Path]:
    """The files that git knows and that make texts."""
    asked = ("git", "ls-files", "-z", "--", *(f"{folder}/*.{kind}" for folder in FOLDERS for kind in KINDS))
    listed = subprocess.run(asked, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    names = [name for name in listed.split("\0") if name and not LEFT_OUT.search(name)]
    return [path for name in names if not (path := ROOT / name).is_symlink()]


def main() -> None:
    """Prints each text after its place."""
    parser = argparse.ArgumentParser(description=__doc__, epilog="Example: tools/texts.py lbengine/decision/explain.py")
    parser.add_argument("--json", action="store_true", help="an object a line, for programs")
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="only these files")
    given = parser.parse_args()
    for path in [path.resolve() for path in given.paths] or files():
        for text in texts(path):
            print(json.dumps(asdict(text)) if given.json else f"{text.path}:{text.line}: {text.text}")


if __name__ == "__main__":
    main()
