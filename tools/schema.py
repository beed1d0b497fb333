#!/usr/bin/env python3
"""Writes schema/*.json, a file for each message, from the structs in slackwater/core/messages/.

`--check` writes nothing and exits 1 when a file is not what it would be.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import msgspec

from slackwater.core import messages
from slackwater.core.messages import causes

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "schema"
SOURCES = sorted((ROOT / "slackwater/core/messages").glob("*.py"))


def docs_below(body: list[ast.stmt]) -> dict[str, str]:
    """Name of each field or type in a body -> the string that stands below it."""
    docs: dict[str, str] = {}
    for named, text in pairwise(body):
        if isinstance(named, ast.AnnAssign):
            target: ast.expr = named.target
        elif isinstance(named, ast.Assign):
            target = named.targets[0]
        else:
            continue
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(target, ast.Name):
            docs[target.id] = inspect.cleandoc(str(text.value.value))
    return docs


def words(kind: object) -> frozenset[str]:
    """The words of a Literal, or of several in a union."""
    return frozenset({kind}) if isinstance(kind, str) else frozenset().union(*map(words, get_args(kind)))


def named_enums() -> dict[frozenset[str], str]:
    """Words of each enum of slackwater/core/messages/causes.py -> its name."""
    kinds = {name: kind for name, kind in vars(causes).items() if not isinstance(kind, str)}
    return {words(kind): name for name, kind in kinds.items() if words(kind)}


def with_references(schema: Any, enums: dict[frozenset[str], str], used: dict[str, Any]) -> Any:
    """The schema with a reference in place of each enum that has a name; these go to `used`."""
    if isinstance(schema, list):
        return [with_references(part, enums, used) for part in schema]
    if not isinstance(schema, dict):
        return schema
    name = enums.get(frozenset(schema["enum"])) if isinstance(schema.get("enum"), list) else None
    if name is None:
        return {key: with_references(part, enums, used) for key, part in schema.items()}
    used[name] = {"title": name, "enum": schema["enum"]}
    return {"$ref": f"#/$defs/{name}", **{key: part for key, part in schema.items() if key != "enum"}}


def schema_of(kind: str) -> dict[str, Any]:
    """The JSON Schema of one kind of message, with docstrings as descriptions and a definition of each named enum."""
    body = [part for path in SOURCES for part in ast.parse(path.read_text()).body]
    struct = messages.KINDS[kind]
    schema = msgspec.json.schema(struct)
    enums: dict[str, Any] = {}
    definitions = with_references(schema.pop("$defs"), named_enums(), enums)
    for described in body:
        if isinstance(described, ast.ClassDef) and described.name in definitions:
            definitions[described.name]["description"] = ast.get_docstring(described)
            for field, text in docs_below(described.body).items():
                definitions[described.name]["properties"][field]["description"] = text
    for name, text in docs_below(body).items():
        if name in enums:
            enums[name]["description"] = text
    whole = definitions.pop(struct.__name__)
    definitions |= enums
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$comment": "Written by tools/schema.py from slackwater/core/messages/; unknown fields are tolerated.",
        **whole,
        **({"$defs": definitions} if definitions else {}),
    }


def files() -> dict[Path, str]:
    """Each schema file and what stands in it."""
    return {
        FOLDER / f"{kind}.json": json.dumps(schema_of(kind), indent=2, ensure_ascii=False) + "\n"
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
