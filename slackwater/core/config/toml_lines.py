"""The line of each key in a TOML text, for error messages."""

from __future__ import annotations

import re

KeyPath = tuple[str | int, ...]
"""Path of a setting: `("pool", 0, "name")`."""


def key_lines(text: str) -> dict[KeyPath, int]:
    """Line number of each key and table of a TOML text, by its path; tables of an array carry their index.

    Keys inside an inline table have no line of their own here: take the line of the key that holds it.
    """
    lines: dict[KeyPath, int] = {}
    table: KeyPath = ()
    counts: dict[KeyPath, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if head := re.match(r"\s*(\[\[?)\s*([^\]]+?)\s*\]", line):
            table = ()
            for part in _key_parts(head.group(2)):
                table = (*table, part)
                if table in counts:
                    table = (*table, counts[table])
            if head.group(1) == "[[":
                if isinstance(table[-1], int):
                    table = table[:-1]
                counts[table] = counts.get(table, -1) + 1
                table = (*table, counts[table])
            lines.setdefault(table, number)
        elif pair := re.match(r"\s*([A-Za-z0-9_.\"'-]+?)\s*=", line):
            lines.setdefault((*table, *_key_parts(pair.group(1))), number)
    return lines


def _key_parts(key: str) -> list[str]:
    return [part.strip().strip("\"'") for part in key.split(".")]


def line_of(path: KeyPath, lines: dict[KeyPath, int]) -> int:
    """The line of a key, or of the nearest table around it that has one."""
    return next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), 1)


def dotted(path: KeyPath) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
