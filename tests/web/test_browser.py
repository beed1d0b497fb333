"""The dashboard in Chromium over a whole controller; what is looked at stands in tests/browser/dashboard.test.mjs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import pytest

from tests.support.chromium import browse, needs_chromium
from tests.support.live_cluster import PASSWORD, LiveCluster, live_cluster
from tests.support.real_haproxy import needs_haproxy

pytestmark = [
    needs_haproxy,
    *needs_chromium,
    pytest.mark.timeout(1200),
]

HOLD = "[detector]\ncalm_dwell_s = 600\n"
"""A drained server of the made-up cluster looks calm; its episode goes on for as long as the tests look at it."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with live_cluster(tmp_path_factory.mktemp("cluster"), HOLD) as running:
        running.noise("host1")
        yield running


def look(cluster: LiveCluster, stage: str, only: str = "") -> str:
    """Runs the stage's tests; returns what the runner printed."""
    options = [f"--test-name-pattern={only}"] if only else []
    variables = {"STAGE": stage, "CONFIG": str(cluster.config), "PYTHON": sys.executable}
    return browse("dashboard.test.mjs", cluster.url, PASSWORD, 1100, *options, **variables)


def test_pages_and_controls_in_a_browser(cluster: LiveCluster) -> None:
    printed = look(cluster, "live")
    passed = re.search(r"pass (\d+)", printed)
    assert passed is not None
    assert int(passed.group(1)) >= 15, printed


def test_a_silent_controller_in_a_browser(cluster: LiveCluster) -> None:
    cluster.freeze()
    try:
        look(cluster, "stale")
    finally:
        cluster.thaw()
