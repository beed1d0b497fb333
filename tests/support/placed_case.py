"""An input of `tests/cases/`, copied to where a test can use it."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.paths import ROOT

CASES = ROOT / "tests/cases"


def placed_case(name: str, folder: Path) -> Path:
    """Copies the case into `folder`, whose path its files get in the place of `@D@`; the copy."""
    to = folder / name
    shutil.copytree(CASES / name, to)
    for file in to.iterdir():
        file.write_bytes(file.read_bytes().replace(b"@D@", bytes(to)))
    return to
