"""The monitor's page for Prometheus, read by the strict parser of Prometheus' own Python client."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.support.real_processes import free_address

IN_TIME_S = 60.0


@pytest.fixture
def page(tmp_path: Path) -> Iterator[str]:
    """The address of a running monitor's page that has seen some Samples."""
    monitor = shutil.which("slackwater-monitor")
    if monitor is None:
        pytest.skip("slackwater-monitor is not built (make setup)")
    listen = free_address()
    config = tmp_path / "node.toml"
    config.write_text(
        'node = "n1"\nperiod_s = 0.05\n[pace]\nby_event = false\n'
        '[bus]\nurl = "nats://127.0.0.1:9"\n[sniffer]\ninterface = "lo"\nports = [9]\n'
        f'[metrics]\nlisten = "{listen}"\n'
    )
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen([monitor, "run", "--config", config], stderr=log) as process,
    ):
        try:
            deadline_s = time.monotonic() + IN_TIME_S
            while b"slackwater_cpu_utilisation_ratio" not in fetch(listen, "/metrics"):
                assert time.monotonic() < deadline_s, (tmp_path / "log").read_text()
                time.sleep(0.05)
            yield listen
        finally:
            process.terminate()


def fetch(listen: str, path: str) -> bytes:
    try:
        with urllib.request.urlopen(f"http://{listen}{path}", timeout=IN_TIME_S) as response:
            return bytes(response.read())
    except urllib.error.HTTPError:
        raise
    except (OSError, http.client.HTTPException):
        return b""


def families(listen: str) -> dict[str, Metric]:
    text = fetch(listen, "/metrics").decode()
    return {family.name: family for family in text_string_to_metric_families(text)}  # type: ignore[no-untyped-call]


def test_the_page_is_what_prometheus_reads_and_its_counters_only_grow(page: str) -> None:
    before = families(page)
    after = families(page)
    for family in before.values():
        assert family.documentation, family.name
        assert family.type != "unknown", family.name
        assert family.name.startswith("slackwater_"), family.name
        if family.type == "counter":
            older = {str(sample.labels): sample.value for sample in family.samples}
            assert all(sample.value >= older.get(str(sample.labels), 0.0) for sample in after[family.name].samples)
    assert before["slackwater_cpu_utilisation_ratio"].type == "gauge"
    assert before["slackwater_samples_taken"].type == "counter"
    [info] = before["slackwater_monitor"].samples
    assert (info.labels["node"], info.labels["pool"]) == ("n1", "web")
    assert after["slackwater_canary_cpu_seconds"].samples[0].value > 0


def test_other_paths_are_not_there_and_orca_is_json(page: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        fetch(page, "/")
    report = json.loads(fetch(page, "/orca"))
    assert 0 <= report["cpu_utilization"] <= 1
    assert report["named_metrics"]["slackwater.wall_cpu_ratio"] > 0.9
