"""What the page of all results says of the shipped model is what the model itself says, and what the page of the calm
fleet says."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from tests.support.paths import ROOT


def test_the_results_have_both_counts_of_false_episodes_as_their_sources_have_them() -> None:
    results = (ROOT / "docs/results/README.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"(?m)^\| false episodes a node-day(.*)$", results)
    explain = [sys.executable, "-m", "slackwater.controller.cli.main", "detector", "explain", "--json"]
    done = subprocess.run(explain, cwd=ROOT, capture_output=True, text=True, check=True)
    scores = json.loads(done.stdout)["scores"]["tree"]
    low, high = scores["false_episodes_per_node_day_interval"]
    (goal,) = re.findall(r"(?m)^\| `slackwater detector explain` \|(.*)$", results)
    assert f"{scores['false_episodes']} in {scores['calm_node_hours']:.2g} node-hours" in goal
    assert f"{scores['false_during']['nothing']} of them while nothing was done" in goal
    calm = (ROOT / "docs/results/calm.md").read_text(encoding="utf-8")
    ((times, days, episodes, interval),) = re.findall(
        r"(?m)^\| all \| (\d+) \| ([\d.]+) \| (\d+) \| [\d.]+ \| (.*?) \|$", calm
    )
    assert f"{episodes} in {float(days):.3g} node-days ({24 * float(days):.1f} node-hours)" in goal
    assert f"with {times} deploys" in goal
    assert f"{interval}; {low:.1f} to {high:.1f} (95%)" in row
