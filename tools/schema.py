#!/usr/bin/env python3
"""Writes schema/{sample,verdict,order,weight,change,cycle,knobs}.json from the structs in slackwater/messages.py.

`--check` writes nothing and exits 1 when a file is not what it would be.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from slackwater import messages

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "schema"


def field_docs(source: str) -> dict[str, dict[str, str]]:
    """Class -> field -> the string that stands below the field."""
    docs: dict[str, dict[str, str]] = {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for field, text in zip(node.body, node.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                docs.setdefault(node.name, {})[field.target.id] = inspect.cleandoc(str(text.value.value))
    return docs


def schema_of(kind: str, docs: dict[str, dict[str, str]]) -> dict[str, Any]:
    """The JSON Schema of one kind of message, with the fields' docstrings as descriptions."""
    struct = messages.KINDS[kind]
    schema = msgspec.json.schema(struct)
    definitions = schema.pop("$defs")
    for name, definition in definitions.items():
        for field, text in docs.get(name, {}).items():
            definition["properties"][field]["description"] = text
    whole = definitions.pop(struct.__name__)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$comment": "Written by tools/schema.py from slackwater/messages.py; unknown fields are tolerated.",
        **whole,
        **({"$defs": definitions} if definitions else {}),
    }


def files() -> dict[Path, str]:
    """Each schema file and what stands in it."""
    docs = field_docs(inspect.getsource(messages))
    return {
        FOLDER / f"{kind}.json": json.dumps(schema_of(kind, docs), indent=2, ensure_ascii=False) + "\n"
        for kind in messages.KINDS
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Example: tools/schema.py --check",
    )
    parser.add_argument("--check", action="store_true", help="only say whether the files are up to date")
    check = parser.parse_args().check
    outdated = {path: text for path, text in files().items() if not path.exists() or path.read_text() != text}
    if check:
        for path in outdated:
            print(f"{path.relative_to(ROOT)} is out of date; run tools/schema.py", file=sys.stderr)
        return 1 if outdated else 0
    for path, text in outdated.items():
        path.write_text(text)
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
