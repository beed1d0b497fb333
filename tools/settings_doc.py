#!/usr/bin/env python3
"""Writes docs/reference/settings.md from the declarations in slackwater/config/settings.py and the node's programs.

`--check` writes nothing and exits 1 when the page is not what it would be.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

from slackwater import config

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/reference/settings.md"
Row = tuple[str, str, str]
"""Dotted name, default as TOML, help."""

INTRODUCTION = """\
# Settings

Written by `tools/settings_doc.py` from the declarations in `slackwater/config/settings.py`, `monitor/src/config.rs` and
`wsengine/src/config.rs`; change those. An unknown setting is an error that names its line and the nearest known one.

"""
CONTROLLER = """\
## The controller's file

`/etc/slackwater/controller.toml`, or what `--config` or `SLACKWATER_CONFIG` names.
Check it with `slackwater config check FILE`. The smallest that works:

```toml
[[pool]]
name = "web"
backend = "web"
socket = "/run/haproxy/admin.sock"
```

"""
NODE = """\
## The node's file

`/etc/slackwater/node.toml`, or what `--config` names. Check it with `slackwater-monitor config FILE`.

"""


WSENGINE = """\
## The wsengine's file

`/etc/slackwater/wsengine.toml`, or what `--config` names. Check it with `slackwater-wsengine config FILE`.

"""


class NotBuilt(Exception):
    """A program of the node cannot be asked; the text says what to do."""


def rows_of(name: str) -> list[Row]:
    """A program's settings, as the binary built from this checkout lists them. Raises NotBuilt."""
    built = ROOT / "target/release" / name
    program = str(built) if built.exists() else shutil.which(name)
    if program is None:
        raise NotBuilt(f"{name} is not built; `make setup` builds it")
    done = subprocess.run([program, "config", "--list", "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        raise NotBuilt(f"`{program} config --list --json` failed: {done.stderr.strip()}")
    return [(row["name"], row["default"], row["help"]) for row in json.loads(done.stdout)]


def tables(rows: list[Row], many: frozenset[str] = frozenset()) -> str:
    """One table a section; the sections in `many` may be there several times (`[[name]]`)."""
    sections: dict[str, list[Row]] = {}
    for name, default, text in rows:
        section, _, key = name.rpartition(".")
        sections.setdefault(section, []).append((key, default, text))
    parts = []
    for section, entries in sorted(sections.items(), key=lambda entry: entry[0] != ""):
        heading = "At the top" if not section else f"`[[{section}]]`" if section in many else f"`[{section}]`"
        lines = [f"### {heading}", "", "| setting | default | |", "|---|---|---|"]
        lines += [f"| `{key}` | {_default(default)} | {_cell(text)} |" for key, default, text in entries]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _default(default: str) -> str:
    return "required" if default == "(required)" else f"`{_cell(default)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def page() -> str:
    """The whole page. Raises NotBuilt."""
    return (
        INTRODUCTION
        + CONTROLLER
        + tables(config.describe(), frozenset({"pool"}))
        + "\n"
        + NODE
        + tables(rows_of("slackwater-monitor"))
        + "\n"
        + WSENGINE
        + tables(rows_of("slackwater-wsengine"))
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Example: tools/settings_doc.py --check",
    )
    parser.add_argument("--check", action="store_true", help="only say whether the page is up to date")
    check = parser.parse_args().check
    try:
        text = page()
    except NotBuilt as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if PAGE.exists() and PAGE.read_text() == text:
        return 0
    if check:
        print(f"{PAGE.relative_to(ROOT)} is out of date; run tools/settings_doc.py", file=sys.stderr)
        return 1
    PAGE.write_text(text)
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
