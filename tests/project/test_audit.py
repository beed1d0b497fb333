"""The audit fails for a known fault, and for nothing else: not without a network, a list of advisories or a program."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tools import audit

Program = Callable[[str, str, int], None]
VULNERABLE = {"name": "a", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}]}
SOUND = {"name": "b", "version": "1", "vulns": []}
UNKNOWN = {"name": "c", "skip_reason": "Dependency not found on PyPI"}


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Makes a program that prints this text and ends with this status; nothing else is on the path."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def make(name: str, prints: str, status: int) -> None:
        file = tmp_path / name
        file.write_text(f"#!{sys.executable}\nimport sys\nprint({prints!r})\nsys.exit({status})\n")
        file.chmod(0o755)

    return make


@pytest.mark.parametrize(
    ("printed", "faults", "not_done"),
    [
        ([SOUND, UNKNOWN], (), ""),
        ([SOUND, VULNERABLE], ("a 1: PYSEC-1 (fixed in 2)",), ""),
        ([UNKNOWN], (), "no advisories: the registry has none"),
        (None, (), "no advisories: no reason given"),
    ],
)
def test_python_packages(program: Program, printed: object, faults: tuple[str, ...], not_done: str) -> None:
    program("pip-audit", "oops" if printed is None else json.dumps({"dependencies": printed}), int(bool(faults)))
    assert audit.python_packages() == audit.Outcome("Python packages", faults, not_done)


def test_browser_packages(program: Program) -> None:
    program("npm", json.dumps({"message": "405 Method Not Allowed"}), 1)
    assert audit.browser_packages().not_done == "no advisories: 405 Method Not Allowed"
    program("npm", json.dumps({"vulnerabilities": {"ws": {"severity": "high"}}}), 1)
    assert audit.browser_packages().faults == ("ws: high",)
    program("npm", json.dumps({"vulnerabilities": {}}), 0)
    assert audit.browser_packages() == audit.Outcome("browser packages")


@pytest.mark.usefixtures("program")
def test_without_its_programs_nothing_is_looked_at_and_nothing_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["audit.py"])
    assert audit.main() == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 3
    assert all("not looked at" in line for line in printed), printed


@pytest.mark.skipif(shutil.which("cargo-deny") is None, reason="needs cargo-deny: make setup")
def test_a_licence_that_is_not_allowed_is_a_fault(tmp_path: Path) -> None:
    command = ["cargo", "metadata", "--format-version=1", "--locked", f"--filter-platform={audit.TARGET}"]
    described = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    metadata = tmp_path / "metadata.json"
    metadata.write_text(described)
    assert not audit.crates_offline(metadata).faults
    metadata.write_text(described.replace('"license":"MIT"', '"license":"GPL-3.0-only"'))
    (fault,) = audit.crates_offline(metadata).faults
    assert "GPL-3.0-only" in fault
