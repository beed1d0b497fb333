"""Builds and unpacks our Debian packages."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.paths import ROOT


def packaging_module(name: str) -> ModuleType:
    """A module of packaging/, which is no package: its modules import each other by their plain names."""
    pytest.importorskip("cyclonedx", reason="needs the locked packages: make setup")
    folder = str(ROOT / "packaging")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)


def arm64_ready() -> None:
    """What packages for arm64 need besides, which setup brings; skips the test with the reason where it cannot."""
    done = subprocess.run([sys.executable, str(ROOT / "tools/setup.py"), "arm64"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"needs what builds for arm64: {done.stderr.strip()}")


def build(out: Path, name: str, *options: str, **environment: str) -> Path:
    pytest.importorskip("cyclonedx", reason="needs the locked packages: make setup")
    for program in ("dpkg-deb", "chrpath", "strip", "git"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")
    if not (ROOT / "target/release/slackwater-monitor").exists():
        pytest.skip("needs the release binaries: make setup")
    asked = ["--out", str(out), "--only", name, "--revision", "7", *options]
    subprocess.run(
        [sys.executable, str(ROOT / "packaging/build.py"), *asked],
        env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000", **environment},
        check=True,
        timeout=1500,
    )
    (file,) = out.glob("*.deb")
    return file


def unpacked(file: Path, place: Path) -> Path:
    subprocess.run(["dpkg-deb", "-R", str(file), str(place)], check=True)
    return place


def revised(file: Path, out: Path, revision: str, architecture: str = "") -> Path:
    """The same package with another revision, and on request said to be for another architecture, packed quickly: its
    `control` and file name are all that differs."""
    with tempfile.TemporaryDirectory() as folder:
        root = unpacked(file, Path(folder, "root"))
        control = root / "DEBIAN/control"
        text, replaced = re.subn(r"(?m)^(Version: [^-\n]+)-\d+", rf"\1-{revision}", control.read_text())
        assert replaced == 1, text
        if architecture:
            text = re.sub(r"(?m)^Architecture: .*$", f"Architecture: {architecture}", text)
        control.write_text(text)
        name, version, architecture = (
            re.search(rf"(?m)^{field}: (.*)$", text)[1]  # type: ignore[index]
            for field in ("Package", "Version", "Architecture")
        )
        place = out / f"{name}_{version}_{architecture}.deb"
        packed = ["dpkg-deb", "--root-owner-group", "-Zzstd", "-z1", "--build", str(root), str(place)]
        subprocess.run(packed, check=True, capture_output=True)
    return place
