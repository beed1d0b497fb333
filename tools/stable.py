#!/usr/bin/env python3
"""Compares what users rely on with the previous release: settings, API, metrics, messages and commands.

docs/reference/stable.json has the names of that release. A name that is gone, and neither renamed nor removed in
slackwater/renamed.py, is printed, and the exit status is 1. `--record` writes the file: do that for each release.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slackwater import __version__, renamed
from slackwater.messages import KINDS
from web.blueprints.api import described as described_api

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs/reference"
RECORD = REFERENCE / "stable.json"
MAY_CHANGE = ("slackwater lab", "slackwater governor")
"""Commands that experiments are made with: they may change in any release, with all that is below them."""
FILES = {"The controller's file": "controller", "The node's file": "node", "The wsengine's file": "wsengine"}
Names = dict[str, list[str]]


def page(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def settings(text: str) -> Iterator[str]:
    """`FILE SECTION.NAME`, from settings.md."""
    file, section = "", ""
    for line in text.splitlines():
        if line.startswith("## "):
            file = FILES[line[3:]]
        elif line.startswith("### "):
            found = re.fullmatch(r"### `\[+([\w.]+)\]+`", line)
            section = f"{found[1]}." if found else ""
        elif found := re.match(r"\| `([^`]+)` \|", line):
            yield f"{file} {section}{found[1]}"


def metrics(text: str) -> Iterator[str]:
    """Name and labels, from metrics.md."""
    for name, labels in re.findall(r"^\| `(\w+)` \| ([^|]*) \|", text, re.MULTILINE):
        words = [label.split(":")[0].strip() for label in labels.split(",")] if ":" not in labels else [labels]
        yield name
        yield from (f"{name}{{{word.split(':')[0].strip()}}}" for word in words if word.strip())


def commands(text: str) -> Iterator[str]:
    """Each command and its options, from command-line.md."""
    for name, body in re.findall(r"^###? ([\w -]+)\n\n```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if name.startswith(MAY_CHANGE):
            continue
        yield name
        options = body.partition("\nOptions:\n")[2].partition("\n  Example")[0]
        for words in re.findall(r"^ {2,6}((?:-\w, )?--[\w-]+(?:[,/] ?--[\w-]+)*)", options, re.MULTILINE):
            yield from (f"{name} {option}" for option in re.findall(r"--[\w-]+", words) if option != "--help")


def fields(prefix: str, schema: Mapping[str, Any]) -> Iterator[str]:
    """Field names of an object, words of an enum."""
    yield from (f"{prefix}.{name}" for name in schema.get("properties", {}))
    yield from (f"{prefix} {word}" for word in schema.get("enum", ()))


def messages() -> Iterator[str]:
    for kind in KINDS:
        schema = json.loads((ROOT / f"schema/{kind}.json").read_text(encoding="utf-8"))
        yield from fields(schema["title"], schema)
        for name, part in schema.get("$defs", {}).items():
            yield from fields(name, part)


def api() -> Iterator[str]:
    whole = described_api.description()
    for path, methods in whole["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}"
            given = [word["name"] for word in operation.get("parameters", []) if word.get("in") == "query"]
            yield from (f"{method.upper()} {path}?{name}" for name in given)
    for name, schema in whole["components"]["schemas"].items():
        yield from fields(name, schema)


def current() -> Names:
    """What this checkout has."""
    found = {
        "settings": settings(page("settings.md")),
        "api": api(),
        "metrics": metrics(page("metrics.md")),
        "messages": messages(),
        "commands": commands(page("command-line.md")),
    }
    return {kind: sorted(set(names)) for kind, names in found.items()}


def renamed_names(before: Names) -> dict[str, dict[str, str]]:
    """Kind -> old name -> new name, of those in the record that slackwater/renamed.py renames."""
    options = {
        f"slackwater {command} {old}": f"slackwater {command} {new}"
        for command, names in renamed.OPTIONS.items()
        for old, new in names.items()
    }
    asked = {
        name: f"{request}?{renamed.REQUEST_FIELDS[field]}"
        for name in before.get("api", [])
        for request, _, field in [name.partition("?")]
        if field in renamed.REQUEST_FIELDS
    }
    files = {f"controller {old}": f"controller {new}" for old, new in renamed.SETTINGS.items()}
    return {"settings": files, "api": asked, "commands": options}


def gone(before: Names, now: Names, removed: Mapping[str, str] = renamed.REMOVED) -> list[str]:
    """What was there and is there no more, under no new name, and is not in `removed`."""
    new_names = renamed_names(before)
    return [
        f"{kind}: {name}"
        for kind, names in before.items()
        for name in names
        if name not in now.get(kind, [])
        and new_names.get(kind, {}).get(name) not in now.get(kind, [])
        and f"{kind}: {name}" not in removed
    ]


def recorded() -> tuple[str, Names]:
    """The release and its names."""
    whole = json.loads(RECORD.read_text(encoding="utf-8"))
    return whole["release"], whole["names"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Example: python -m tools.stable",
    )
    parser.add_argument("--record", action="store_true", help="write the names of this checkout as this release's")
    if parser.parse_args().record:
        text = json.dumps({"release": __version__, "names": current()}, indent=1, ensure_ascii=False)
        RECORD.write_text(text + "\n", encoding="utf-8")
        print(f"wrote {RECORD.relative_to(ROOT)}")
        return 0
    release, before = recorded()
    now = current()
    missing = gone(before, now)
    for name in missing:
        print(f"gone since {release}: {name}", file=sys.stderr)
    new = sum(len(set(names) - set(before.get(kind, []))) for kind, names in now.items())
    print(f"{sum(map(len, now.values())):,} stable names, {new} of them new since {release}, {len(missing)} gone")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
