"""Builds and unpacks our Debian packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT


def build(out: Path, name: str, **environment: str) -> Path:
    for program in ("dpkg-deb", "chrpath", "strip", "git"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")
    if not (ROOT / "target/release/slackwater-monitor").exists():
        pytest.skip("needs the release binaries: make setup")
    subprocess.run(
        [sys.executable, str(ROOT / "packaging/build.py"), "--out", str(out), "--only", name, "--revision", "7"],
        env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000", **environment},
        check=True,
        timeout=1500,
    )
    (file,) = out.glob("*.deb")
    return file


def unpacked(file: Path, place: Path) -> Path:
    subprocess.run(["dpkg-deb", "-R", str(file), str(place)], check=True)
    return place
