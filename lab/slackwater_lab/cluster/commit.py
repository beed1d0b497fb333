"""Which state of the program measured: the commit of the checkout that it runs from."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

from slackwater_lab.cluster.paths import ROOT

WAIT_S = 10.0
DECISION_CODE = ("monitor", "sniffer", "detector", "lbengine")
"""The code that decides about weights. Figures of different states of it are figures of different programs."""


@functools.cache
def commit(root: Path = ROOT) -> str | None:
    """The commit's first 12 digits, with `+` when tracked files other than documents differ from it; None: this is no
    checkout, or there is no git to ask."""
    return _state(root, ("rev-parse", "HEAD"), ":(exclude)docs")


@functools.cache
def decision_commit(root: Path = ROOT) -> str | None:
    """The last commit that changed the decision code, in the same form."""
    return _state(root, ("log", "-1", "--format=%H", "--", *DECISION_CODE), *DECISION_CODE)


def _state(root: Path, found_by: tuple[str, ...], *paths: str) -> str | None:
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != root:
        return None
    sha, changed = _git(root, *found_by), _git(root, "status", "--porcelain", "-uno", "--", *paths)
    if not sha or changed is None:
        return None
    return sha[:12] + "+" * bool(changed)


def _git(root: Path, *arguments: str) -> str | None:
    try:
        # Without optional locks: a git that is ended here would leave one behind.
        argv = ["git", "--no-optional-locks", "-C", str(root), *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=WAIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
