"""The packages on plain systems: installed from a signed repository, run, upgraded and removed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support import clean_root
from tests.support.built_packages import arm64_ready
from tests.support.paths import ROOT
from tests.support.side_by_side import ROLLOUTS
from tools.systems import SYSTEMS, own_architecture

CASES = list(dict.fromkeys([*((release, own_architecture()) for release in SYSTEMS), ("bookworm", "arm64")]))
"""arm64 is emulated on another machine, which takes a while."""
STEPS = ["install", "init", "alone", "monitors", "observe", "act", "upgrade", "remove"]


@pytest.mark.slow
@pytest.mark.xdist_group(ROLLOUTS)
@pytest.mark.lab
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("release", "architecture"), CASES)
def test_install_observe_act_upgrade_and_remove(
    release: str, architecture: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if architecture == "arm64":
        arm64_ready()
    if why := clean_root.why_not(architecture):
        pytest.skip(why)
    command = [sys.executable, "-m", "tools.clean_install", "--release", release, "--architecture", architecture]
    done = subprocess.run([*command, "--json"], cwd=ROOT, capture_output=True, text=True)
    with capsys.disabled():
        print(f"\n{release}, {architecture}:\n{done.stdout}", end="")
    assert done.returncode == 0, done.stderr[-5000:]
    assert [json.loads(line)["step"] for line in done.stdout.splitlines()] == STEPS
