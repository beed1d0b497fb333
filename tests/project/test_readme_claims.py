"""What README.md says of the shipped model is what the model itself says, and what the page of the calm fleet says."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from tests.support.paths import ROOT


def test_the_readme_has_both_counts_of_false_episodes_as_their_sources_have_them() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"(?m)^\| false episodes a node-day(.*)$", readme)
    explain = [sys.executable, "-m", "slackwater.controller.cli.main", "detector", "explain", "--json"]
    done = subprocess.run(explain, cwd=ROOT, capture_output=True, text=True, check=True)
    scores = json.loads(done.stdout)["scores"]["tree"]
    low, high = scores["false_episodes_per_node_day_interval"]
    calm = (ROOT / "docs/results/calm.md").read_text(encoding="utf-8")
    (interval,) = re.findall(r"(?m)^\| all \| \d+ \| [\d.]+ \| \d+ \| [\d.]+ \| (.*?) \|$", calm)
    assert f"{interval}; {low:.1f} to {high:.1f} (95%)" in row
