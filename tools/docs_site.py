#!/usr/bin/env python3
"""Writes the documentation as a site with search, in target/site, by MkDocs (mkdocs.yml). A broken link is an error.

The pages are those of the repository, in the same places, so that their links lead where they lead in the repository.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / ".build/docs-source"
SITE = ROOT / "target/site"
MKDOCS = ROOT / ".build/docs-venv/bin/mkdocs"
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [Path(name) for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]


def pages_and_files() -> set[Path]:
    """The pages, and the files of the repository that they link to."""
    pages = {
        path for path in tracked("*.md") if path.parts[0] in ("docs", "ansible", "wsengine") or not path.parent.name
    }
    for page in list(pages):
        for target in LINK.findall((ROOT / page).read_text(encoding="utf-8")):
            place = (ROOT / page.parent / target).resolve()
            if place.is_file() and place.is_relative_to(ROOT):
                pages.add(place.relative_to(ROOT))
    return pages


def lay_out(folder: Path) -> int:
    """Copies all that the site shows; gives the number of pages."""
    shutil.rmtree(folder, ignore_errors=True)
    files = pages_and_files()
    for path in files:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, folder / path)
    return sum(path.suffix == ".md" for path in files)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, epilog="Example: make docs-site"
    )
    parser.parse_args()
    if not MKDOCS.exists():
        print(f"{MKDOCS} is missing: run `make docs-site`, or `tools/setup.py docs`", file=sys.stderr)
        return 1
    pages = lay_out(SOURCE)
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run([MKDOCS, "build", "--strict", "--quiet", "--clean", "--site-dir", SITE], cwd=ROOT, env=quiet)
    if done.returncode == 0:
        print(f"{pages} pages: {(SITE / 'index.html').relative_to(ROOT)}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
