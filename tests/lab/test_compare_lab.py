"""A comparison in the real lab: one policy of each kind runs once, is recorded, and leaves nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from slackwater.detector.recordings import recording as samples
from slackwater_lab.compare import measured
from slackwater_lab.experiment import recording
from slackwater_lab.experiment.policies import POLICIES as TABLE
from tests.support.real_lab import needs_lab, run_lab

pytestmark = [
    pytest.mark.lab,
    needs_lab,
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.timeout(4300),
    pytest.mark.usefixtures("nothing_before_and_after"),
]
ORACLES = ("oracle",)
SILENT = ("leastconn", "nginx-least-time")
"""No monitor runs."""
OBSERVED = ("observed-lc",)
"""The detector runs, and no weight is changed."""
MOVED = ("ice", "slackwater-lc", "slackwater-lb-lc")
"""The detector runs, and lbengine sets weights; the last one without monitors."""
POLICIES = (*ORACLES, *SILENT, *OBSERVED, *MOVED)


def runners(names: Iterable[str]) -> set[object]:
    """What runs these policies, whatever their settings."""
    kinds = [TABLE[name].runner for name in names]
    return {kind.func if isinstance(kind, partial) else kind for kind in kinds}


def test_one_policy_of_each_kind_runs_and_leaves_its_recording(tmp_path: Path) -> None:
    assert runners(POLICIES) == runners(TABLE)
    out, data = tmp_path / "compared", tmp_path / "data.jsonl"
    asked = ["compare", "--out", str(out), "--data", str(data), "--scenario", "one", "--rounds", "1"]
    asked += [part for name in POLICIES for part in ("--policy", name)]
    done = run_lab(*asked, "--json", "-", timeout_s=1400.0)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["complete"]
    assert result["capacity_rps"][0] > 0
    cells = {cell["policy"]: cell for cell in result["cells"]}
    assert cells.keys() == set(POLICIES)
    for name in (*MOVED, *ORACLES):
        assert cells[name]["answered"] == 1, name
    for name in (*SILENT, *OBSERVED):
        assert cells[name]["answered"] == 0, name
    of_policy = {run.variant: run for run in measured.read(data)}
    folder = out / "cgroup-one-1"
    for number in range(1, len(POLICIES) + 1):
        about = json.loads(pq.read_table(recording.path_of(folder, number)).schema.metadata[recording.KEY])
        policy, facts = about["run"]["policy"], about["facts"]
        path = recording.path_of(folder, number, "samples")
        assert path.exists() == (policy in (*OBSERVED, *MOVED))
        if path.exists():
            assert {label.node for label in samples.read(path).labels} == {"host1"}
        judging = policy in (*OBSERVED, *MOVED)
        assert recording.path_of(folder, number, "verdicts").exists() == judging
        if judging:
            assert of_policy[policy].loud["detected_s"] == pytest.approx(2.0, abs=2.0), policy
        assert [neighbour["host"] for neighbour in facts["neighbours"]] == ["host1"]
        weights = pq.read_table(recording.path_of(folder, number, "weights"))
        assert set(weights["server"].to_pylist()) == {"host1", "host2", "host3"}
    assert json.loads(run_lab(*asked, "--json", "-").stdout) == result, "whole: nothing is run again"
