"""The packages that the rollout tests install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT


def build_packages(out: Path, *options: str) -> None:
    subprocess.run(
        [sys.executable, str(ROOT / "packaging/build.py"), "--out", str(out), *options], check=True, timeout=1500
    )


def made_packages(out: Path) -> Path:
    """Fresh packages; or those of the folder that ROLLOUT_PACKAGES names, to save some minutes."""
    if there := os.environ.get("ROLLOUT_PACKAGES"):
        return Path(there)
    build_packages(out)
    return out
