"""The packages that the rollout tests install."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.support.paths import ROOT
from tools.systems import DEBIAN_12, System


def build_packages(out: Path, *options: str) -> None:
    subprocess.run(
        [sys.executable, str(ROOT / "packaging/build.py"), "--out", str(out), *options], check=True, timeout=1500
    )


def made_packages(out: Path, others: Iterable[System] = ()) -> Path:
    """Fresh packages for Debian 12 and for other systems; or those of the folder that ROLLOUT_PACKAGES names, to save
    some minutes."""
    if there := os.environ.get("ROLLOUT_PACKAGES"):
        return Path(there)
    build_packages(out)
    for system in others:
        if system != DEBIAN_12:
            build_packages(out, "--only", "slackwater-controller", "--release", system.release)
    return out


def newer(packages: Path, out: Path, revision: str, monitor: str = "") -> Path:
    """The packages under another version; `monitor`: a script in the monitor's place."""
    for file in sorted(packages.glob("*.deb")):
        root = out / "root"
        subprocess.run(["dpkg-deb", "-R", str(file), str(root)], check=True)
        control = root / "DEBIAN/control"
        text, replaced = re.subn(r"(?m)^(Version: [^-\n]+)-\d+", rf"\1-{revision}", control.read_text())
        assert replaced == 1, text
        control.write_text(text)
        program = root / "usr/bin/slackwater-monitor"
        if monitor and program.exists():
            program.write_text(monitor)
        name, replaced = re.subn(r"-\d+(\+[^_]+)?_", rf"-{revision}\1_", file.name)
        assert replaced == 1, file.name
        subprocess.run(
            ["dpkg-deb", "-Zgzip", "-z1", "--root-owner-group", "-b", str(root), str(out / name)], check=True
        )
        shutil.rmtree(root)
    return out
