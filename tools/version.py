#!/usr/bin/env python3
"""Writes the version of `slackwater/__init__.py` into every other file that has to name it: Cargo.toml and the locks of
Rust, the lab's pyproject.toml, and the Ansible collection.

`--check` writes nothing and exits 1 when a file has another version.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = "slackwater/__init__.py"
OURS = "messages|monitor|node|sniffer|wsengine"
"""Crates that have the workspace's version."""
PLACES = {
    "Cargo.toml": r'(?m)^(\[workspace\.package\]\nversion = ")([^"]*)',
    "Cargo.lock": rf'(?m)^(name = "slackwater-(?:{OURS})"\nversion = ")([^"]*)',
    "fuzz/Cargo.lock": rf'(?m)^(name = "slackwater-(?:{OURS})"\nversion = ")([^"]*)',
    "lab/pyproject.toml": r'(?m)^(version = ")([^"]*)',
    "ansible/galaxy.yml": r"(?m)^(version: )(\S+)",
}
"""File -> what stands before the version, and the version."""


def source() -> str:
    """The version as the one place has it."""
    (version,) = re.findall(r'(?m)^__version__ = "(\d+\.\d+\.\d+)"$', (ROOT / SOURCE).read_text(encoding="utf-8"))
    return str(version)


def differing(version: str) -> dict[str, tuple[list[str], str]]:
    """File -> the versions that it has, and its text with the right one; only files that have another."""
    files = {}
    for name, place in PLACES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        there = [match[2] for match in re.finditer(place, text)]
        if not there:
            raise SystemExit(f"{name} has no version where tools/version.py looks for it")
        if set(there) != {version}:
            files[name] = (sorted(set(there)), re.sub(place, rf"\g<1>{version}", text))
    return files


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Example: python tools/version.py --check",
    )
    parser.add_argument("--check", action="store_true", help="only check whether all have the same version")
    check = parser.parse_args().check
    version = source()
    files = differing(version)
    for name, (there, text) in files.items():
        if check:
            print(f"{name} has {', '.join(there)} where {SOURCE} has {version}", file=sys.stderr)
        else:
            (ROOT / name).write_text(text, encoding="utf-8")
            print(f"wrote {version} into {name}")
    return int(check and bool(files))


if __name__ == "__main__":
    sys.exit(main())
