"""Which state of the program measured: the commit of the checkout that it runs from."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

from lab.cluster.paths import ROOT

WAIT_S = 10.0


@functools.cache
def commit(root: Path = ROOT) -> str | None:
    """The commit's first 12 digits, with `+` when tracked files differ from it; None: this is no checkout, or there is
    no git to ask."""
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != root:
        return None
    found, changed = _git(root, "rev-parse", "--short=12", "HEAD"), _git(root, "status", "--porcelain", "-uno")
    if found is None or changed is None:
        return None
    return found + "+" * bool(changed)


def _git(root: Path, *arguments: str) -> str | None:
    try:
        # Without optional locks: a git that is ended here would leave one behind.
        argv = ["git", "--no-optional-locks", "-C", str(root), *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=WAIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
