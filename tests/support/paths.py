"""Where the tests find the checkout and their own files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
ROOT = TESTS.parent
EXAMPLES = ROOT / "schema" / "examples"
RECORDINGS = TESTS / "recordings"
TRACES = TESTS / "traces"
PROGRAMS = ROOT / ".build" / "bin"


def copy_of_checkout(folder: Path) -> Path:
    """The folder, with a copy of all files that git knows or would add, as they are now."""
    known = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(known, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
    return folder
