"""The files for Prometheus and Grafana: they ask for metrics that there are, and alerts fire when they should."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "web/monitoring"
DASHBOARDS = sorted(MONITORING.glob("*.json"))
RULES = sorted(path for path in MONITORING.glob("*.yml") if not path.stem.endswith("_test"))
HISTOGRAM = "slackwater_response_time_seconds"


def documented() -> set[str]:
    """The metrics of docs/reference/metrics.md, which is generated from the code."""
    text = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`(slackwater_\w+)`", text))
    assert HISTOGRAM in names
    return names | {f"{HISTOGRAM}_{part}" for part in ("bucket", "count", "sum")}


def expressions(parsed: Any) -> Iterator[str]:
    """Every PromQL expression in a JSON of Grafana or in rules."""
    if isinstance(parsed, dict):
        for key, value in parsed.items():
            if key in ("expr", "query", "definition") and isinstance(value, str) and value != "prometheus":
                yield value
            else:
                yield from expressions(value)
    elif isinstance(parsed, list):
        for value in parsed:
            yield from expressions(value)


def recorded() -> set[str]:
    """Names that our rules record."""
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}


@pytest.mark.parametrize("path", [*DASHBOARDS, *RULES], ids=lambda path: path.name)
def test_each_asks_for_metrics_that_there_are(path: Path) -> None:
    whole = json.loads(path.read_text()) if path.suffix == ".json" else yaml.safe_load(path.read_text())
    asked = list(expressions(whole))
    assert len(asked) > 10
    for expression in asked:
        ours = set(re.findall(r"slackwater:\w+:\w+", expression))
        names = set(re.findall(r"slackwater_\w+", re.sub(r'"[^"]*"', "", expression)))
        assert names | ours, expression
        assert names <= documented(), f"{expression}: {names - documented()}"
        assert ours <= recorded(), f"{expression}: {ours - recorded()}"


def test_panels_of_a_dashboard_do_not_overlap() -> None:
    for path in DASHBOARDS:
        panels = json.loads(path.read_text())["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        taken = [
            (x, y)
            for panel in panels
            for place in [panel["gridPos"]]
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert len(set(taken)) == len(taken), path.name
        assert max(x for x, _ in taken) < 24


def test_each_rule_file_has_a_test_beside_it() -> None:
    assert [path.name for path in RULES if not path.with_stem(f"{path.stem}_test").exists()] == []


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not in PATH; `make setup` brings it")
@pytest.mark.parametrize("path", RULES, ids=lambda path: path.name)
def test_promtool_takes_the_rules_and_they_fire_when_they_should(path: Path) -> None:
    for command in (["check", "rules", path.name], ["test", "rules", f"{path.stem}_test.yml"]):
        done = subprocess.run(["promtool", *command], cwd=MONITORING, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
