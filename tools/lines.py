"""Counts the lines of the code, the laboratory, the tests and the decisions: `python tools/lines.py [--json]`.

Lines are those of files that git knows, comments and empty lines too. Rust's tests are in `tests` folders, in
`tests.rs` or in the module below `#[cfg(test)]`, which ends a file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CODE = {".py", ".rs", ".c", ".js", ".mjs", ".css", ".html", ".jinja", ".j2", ".sh"}
DECIDES = ("lbengine/decision/", "lbengine/laws/")
GOALS = {"decision and laws": 1300, "code": 58_000, "lab": 15_000, "tests": 50_000, "docs/decisions": 300}
"""Group -> the most lines that are the goal. `code` is all but lab and tests."""
RUST_TESTS = "#[cfg(test)]\nmod tests {"


def groups_of(name: str, text: str) -> Counter[str]:
    """Group -> the lines of this file in it; a file of another kind has none."""
    lines = text.count("\n")
    if name.startswith("docs/decisions/0"):
        return Counter({"docs/decisions": lines})
    path = Path(name)
    if path.suffix not in CODE or "vendor" in path.parts:
        return Counter()
    if name.startswith("lab/"):
        return Counter({"lab": lines})
    if "tests" in path.parts or path.name == "tests.rs":
        return Counter({"tests": lines})
    code_lines = text.partition(RUST_TESTS)[0].count("\n") if path.suffix == ".rs" else lines
    counted = Counter({"tests": lines - code_lines, "code": code_lines})
    if name.startswith(DECIDES):
        counted["decision and laws"] = lines
    return counted


def count() -> Counter[str]:
    """Group -> its lines in this checkout."""
    listed = subprocess.run(("git", "ls-files", "-z"), cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    files = [ROOT / name for name in listed.split("\0") if name]
    counted: Counter[str] = Counter()
    for path in files:
        if path.is_file() and not path.is_symlink() and (path.suffix in CODE or path.suffix == ".md"):
            counted.update(groups_of(str(path.relative_to(ROOT)), path.read_text()))
    return counted


def main() -> None:
    """Prints each group's lines beside the goal."""
    parser = argparse.ArgumentParser(description=__doc__, epilog="Example: tools/lines.py --json")
    parser.add_argument("--json", action="store_true", help="as one JSON object, for programs")
    as_json: bool = parser.parse_args().json
    counted = count()
    if as_json:
        print(json.dumps({group: {"lines": counted[group], "goal": goal} for group, goal in GOALS.items()}))
        return
    for group, goal in GOALS.items():
        print(f"{group:18} {counted[group]:7,} lines, at most {goal:,} are the goal")


if __name__ == "__main__":
    main()
