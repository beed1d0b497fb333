"""A folder of another user, who lays links in it, for commands that root runs. Needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

UID = 64999
"""An id that no user of this machine has."""


@contextmanager
def folder_of_another_user() -> Iterator[Path]:
    """It is `state`, in a folder of root's that others may pass, as /var/lib is (pytest's own folders are closed)."""
    if os.geteuid() != 0:
        pytest.skip("needs root: only root has other users")
    above = Path(tempfile.mkdtemp(prefix="slackwater-other-"))
    above.chmod(0o755)
    folder = above / "state"
    folder.mkdir(mode=0o750)
    os.chown(folder, UID, UID)
    try:
        yield folder
    finally:
        shutil.rmtree(above)


def as_user(folder: Path, script: str) -> None:
    """Runs lines of a shell as the other user, in the folder."""
    as_them = ("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "sh", "-ec", script)
    subprocess.run(as_them, cwd=folder, check=True)


def of_others(folder: Path) -> list[str]:
    """What in the folder is not that user's own."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.lstat().st_uid != UID)
