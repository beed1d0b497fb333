"""The dashboard in Chromium over a whole controller; what is looked at stands in tests/browser/dashboard.test.mjs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.live_cluster import PASSWORD, LiveCluster, live_cluster
from tests.support.paths import ROOT
from tests.support.real_haproxy import needs_haproxy

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
MODULES = ROOT / ".build/browser"
pytestmark = [
    needs_haproxy,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: `make setup` brings it"),
    pytest.mark.skipif(not (MODULES / "node_modules/playwright-core").exists(), reason="no playwright-core here"),
    pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js here"),
    pytest.mark.timeout(1200),
]

HOLD = "[detector]\ncalm_dwell_s = 600\n"
"""A drained server of the made-up cluster looks calm; its episode goes on for as long as the tests look at it."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with live_cluster(tmp_path_factory.mktemp("cluster"), HOLD) as running:
        running.noise("host1")
        yield running


def browse(cluster: LiveCluster, stage: str, only: str = "") -> str:
    """Runs the stage's tests; returns what the runner printed."""
    environment = {
        **os.environ,
        **{"CHROMIUM": str(CHROMIUM), "BROWSER_MODULES": str(MODULES), "URL": cluster.url, "PASSWORD": PASSWORD},
        **{"STAGE": stage, "CONFIG": str(cluster.config), "PYTHON": sys.executable},
    }
    script = str(ROOT / "tests/browser/dashboard.test.mjs")
    command = ["node", "--test", "--test-reporter=spec", *([f"--test-name-pattern={only}"] if only else []), script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1100)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return done.stdout


def test_pages_and_controls_in_a_browser(cluster: LiveCluster) -> None:
    printed = browse(cluster, "live")
    passed = re.search(r"pass (\d+)", printed)
    assert passed is not None
    assert int(passed.group(1)) >= 15, printed


def test_a_silent_controller_in_a_browser(cluster: LiveCluster) -> None:
    cluster.freeze()
    try:
        browse(cluster, "stale")
    finally:
        cluster.thaw()
