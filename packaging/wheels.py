#!/usr/bin/env python3
"""Builds the wheels of Slackwater and of its lab: the same bytes each time from the same sources (SOURCE_DATE_EPOCH, or
the last commit's time). `make wheels` calls it.

They are made of a copy of the files that git knows, with modes of our own. So neither what else lies in the checkout
nor the umask of whoever made it is in a wheel.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECTS = (".", "lab")
"""The folder of each distribution."""
EARLIEST_S = 315_532_800
"""1980 began then: a ZIP file has no earlier date."""


def output(*command: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


def copy_sources(place: Path) -> None:
    """The files that git knows, readable for everybody, and executable where they are for their owner."""
    for name in filter(None, output("git", "ls-files", "-z").split("\0")):
        source, copy = ROOT / name, place / name
        if not source.is_symlink() and not source.exists():
            continue  # deleted, and git does not know it yet
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, copy, follow_symlinks=False)
        if not copy.is_symlink():
            copy.chmod(0o755 if copy.stat().st_mode & 0o100 else 0o644)


def build(out: Path, epoch_s: int) -> list[Path]:
    """Both wheels, in `out`."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        sources, built = Path(folder, "source"), Path(folder, "built")
        copy_sources(sources)
        for project in PROJECTS:
            options = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", built)
            epoch = str(max(epoch_s, EARLIEST_S))
            output(sys.executable, "-m", "pip", "wheel", *options, sources / project, SOURCE_DATE_EPOCH=epoch)
        return [Path(shutil.copy(wheel, out)) for wheel in sorted(built.glob("*.whl"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, epilog="Example: packaging/wheels.py --out target/packages")
    parser.add_argument("--out", type=Path, default=ROOT / "target/packages", help="where the wheels are written")
    asked = parser.parse_args()
    os.umask(0o022)
    epoch_s = int(os.environ.get("SOURCE_DATE_EPOCH") or output("git", "log", "-1", "--format=%ct"))
    for file in build(asked.out, epoch_s):
        print(f"{file} {file.stat().st_size} bytes, sha256 {hashlib.sha256(file.read_bytes()).hexdigest()[:16]}")


if __name__ == "__main__":
    main()
