"""The packages on plain systems: installed from a signed repository, run, upgraded and removed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support import clean_root
from tests.support.paths import ROOT
from tools.systems import SYSTEMS

STEPS = ["install", "init", "observe", "act", "upgrade", "remove"]


@pytest.mark.slow
@pytest.mark.lab
@pytest.mark.timeout(3600)
@pytest.mark.skipif(bool(clean_root.why_not()), reason=clean_root.why_not())
@pytest.mark.parametrize("release", list(SYSTEMS))
def test_install_observe_act_upgrade_and_remove(release: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "tools.clean_install", "--release", release, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    with capsys.disabled():
        print(f"\n{release}:\n{done.stdout}", end="")
    assert done.returncode == 0, done.stderr[-5000:]
    assert [json.loads(line)["step"] for line in done.stdout.splitlines()] == STEPS
