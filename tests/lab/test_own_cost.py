"""What monitors cost the web servers: the variants of a round, the rows of all rounds, and the command itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from slackwater_lab.stories.own_cost import CAPTURE, CAPTURING, COLUMNS, WITH, WITHOUT, OwnCostTest, cells, rows
from tests.support.real_lab import needs_lab, run_lab


def run(number: int, variant: str, cpu_ms: float, share: float | None = None) -> dict[str, object]:
    figures = {"p50_ms": cpu_ms, "p95_ms": 3 * cpu_ms, "p99_ms": 9 * cpu_ms}
    own = {"cpu_share": cpu_ms / 2.5, "request_cpu_ms": cpu_ms, "monitor_share": share}
    return {"round": number, "variant": variant, **own, **figures}


def test_a_round_has_the_hosts_alone_monitors_those_that_lack_a_collector_and_captures() -> None:
    test = OwnCostTest(load=0.8, seconds=5, rounds=1, off=("canary",))
    assert test.variants == {WITHOUT: None, WITH: (), f"{WITH}, canary off": ("canary",)}
    assert replace(test, captures=True).variants == {**test.variants, CAPTURING: (), CAPTURE: None}


def test_rounds_are_compared_in_pairs_so_a_slow_one_counts_no_more() -> None:
    runs = [
        *(run(2, WITH, 2.04, 0.014), run(2, WITHOUT, 2.0)),
        *(run(1, WITHOUT, 1.0), run(1, WITH, 1.02, 0.013)),
        *(run(3, WITHOUT, 1.5), run(3, WITH, 1.53, 0.015)),
    ]
    without, with_monitors = rows(runs)
    assert (without["variant"], without["rounds"], without["request_cpu_ms"]) == (WITHOUT, 3, 1.5)
    times = with_monitors["request_cpu_ms_times"]
    assert times == {key: pytest.approx(1.02) for key in ("value", "low", "high")}
    assert with_monitors["monitor_share"] == 0.014
    assert cells(without) == [WITHOUT, "60.0%", "1.500", "-", "-", "1.5", "4.5", "13.5"]
    assert cells(with_monitors)[2:5] == ["1.530", "1.96% (1.96% to 1.96%)", "1.40%"]
    assert len(cells(without)) == 1 + len(COLUMNS)


def test_one_round_has_no_interval() -> None:
    _, with_monitors = rows([run(1, WITHOUT, 1.0), run(1, WITH, 1.25)])
    assert with_monitors["request_cpu_ms_times"] == {"value": pytest.approx(1.25), "low": None, "high": None}
    assert cells(with_monitors)[3:5] == ["20.00%", "-"]


@pytest.mark.lab
@pytest.mark.slow
@needs_lab
@pytest.mark.usefixtures("nothing_before_and_after")
def test_the_command_measures_hosts_with_and_without_monitors(tmp_path: Path) -> None:
    file = tmp_path / "cost.json"
    asked = ("--hosts", "2", "--load", "0.3", "--seconds", "3", "--rounds", "1", "--capture", "--json", str(file))
    done = run_lab("cost", *asked, timeout_s=280.0)
    assert done.returncode == 0, done.stderr
    assert "round 1 of 1, without" in done.stderr
    result = json.loads(file.read_text())
    assert [row["variant"] for row in result["rows"]][:2] == [WITHOUT, WITH]
    shares = {row["variant"]: row["monitor_share"] for row in result["rows"]}
    assert {variant for variant, share in shares.items() if share is None} == {WITHOUT, CAPTURE}
    assert 0 < shares[WITH] < 1
    assert 0 < shares[CAPTURING] < 1
    assert all(run["requests"] > 0 and run["request_cpu_ms"] > 0 for run in result["runs"])
    assert "of the hosts' CPU" in done.stderr
    assert 0 < result["rows"][0]["cpu_share"] <= 1.05
