"""Goals, figures and the page, from recordings whose figures are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from click.testing import CliRunner
from comparison_files import comparison

from evaluation import estimator_fit, goals, plan, report, results, validation
from evaluation.plan import CompareError
from evaluation.sim.requests import simulate
from evaluation.sim.setup import Setup
from lab.commands import lab

SIMULATED = {
    "setup": {"servers": 10_000, "balancers": 1, "noisy": 0.1, "period_s": 1.0},
    "policy": "slackwater",
    "model": "cycles",
    "felt": {"mean_ms": 9.0, "p50_ms": 5.0, "p95_ms": 20.0, "p99_ms": 40.0},
    "turns_per_server_hour": 1.0,
    "cost_ms": {part: {"p50": 200.0, "max": 400.0} for part in ("detector", "lbengine", "model")},
    "core_share": 0.6,
}


@pytest.fixture
def compared(tmp_path: Path) -> Path:
    comparison(tmp_path / "compared", scenarios=("one", "one-closed"))
    return tmp_path / "compared"


@pytest.fixture(autouse=True)
def no_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulating a lab that never was takes a minute and says nothing."""
    monkeypatch.setattr(
        validation, "validate", lambda *_: {"compared": [{"policy": "static", "error": 0.2, "fitted": True} | P95S]}
    )


P95S = {"lab_p95_ms": 50.0, "simulated_p95_ms": 60.0}


def state(found: list[goals.Goal], what: str) -> str:
    return next(goal.word for goal in found if goal.what.startswith(what))


def test_every_goal_says_reached_not_reached_or_not_decided_in_one_table(compared: Path) -> None:
    found = goals.of_comparison(results.summary(compared))
    # 60 ms under static weights, 20 under leastconn, 10 under ours, 9 under the oracle.
    assert state(found, "ICE's measure, closed loop, against `static`: `slackwater`") == "NOT reached"
    assert state(found, "ICE's measure, closed loop, against `leastconn`: `slackwater`") == "reached"
    assert state(found, "p99 against `leastconn` (DIAL: -70%): `slackwater`") == "NOT reached"
    assert state(found, "p95 against `leastconn` (DIAL: -48%): `slackwater`") == "reached"
    assert state(found, "p99 against `oracle`: `slackwater`") == "reached"
    assert state(found, "p99 against `oracle`: `slackwater-lc`") == "not decided"
    worse = next(goal for goal in found if "each scenario" in goal.what)
    assert worse.reached is None, "two of the scenarios say nothing of the others"
    assert "one -50%" in worse.found
    assert "one-closed -5" in worse.found
    assert all(goal.word == "not decided" for goal in goals.of_comparison(None))


def test_one_scenario_in_which_ours_is_worse_is_enough(compared: Path) -> None:
    summary = results.summary(compared)
    cell = next(one for one in summary["cells"] if (one["scenario"], one["policy"]) == ("one", "slackwater"))
    cell["change"]["leastconn"][goals.ICE_MS]["value"] = 0.06
    worse = next(goal for goal in goals.of_comparison(summary) if "each scenario" in goal.what)
    assert worse.word == "NOT reached"
    assert "one +6%" in worse.found


def test_fewer_rounds_than_the_goal_asks_for_decide_nothing(tmp_path: Path) -> None:
    comparison(tmp_path, runs=16)
    found = goals.of_comparison(results.summary(tmp_path))
    assert state(found, "p95 against `leastconn` (DIAL: -48%): `slackwater`") == "not decided"


def test_the_simulator_s_goals_are_real_time_and_nearness_to_the_lab() -> None:
    quick, near = goals.of_simulator([SIMULATED], [{"policy": "static", "error": 0.1, "fitted": False}])
    assert quick.word == "reached"
    assert quick.found == "60% of the core, model and learning included; slowest cycle at most 1.2 s"
    assert near.word == "reached"
    slow = SIMULATED | {"core_share": 1.1}
    assert [goal.word for goal in goals.of_simulator([slow], [{"policy": "x", "error": -0.2, "fitted": False}])] == [
        "NOT reached"
    ] * 2
    assert [goal.word for goal in goals.of_simulator([], [])] == ["not decided"] * 2


def test_the_page_has_the_goals_the_figures_and_the_commands(compared: Path, tmp_path: Path) -> None:
    simulated = tmp_path / "sim.json"
    small = json.loads(json.dumps(SIMULATED)) | {"setup": {**SIMULATED["setup"], "servers": 100}}  # type: ignore[dict-item]
    simulated.write_text(json.dumps({"runs": [SIMULATED, small]}))
    out = tmp_path / "page"
    arguments = ["report", "--compare", str(compared), "--simulated", str(simulated), "--out", str(out)]
    done = CliRunner().invoke(lab, arguments, catch_exceptions=False)
    assert "NOT reached" in done.output
    page = (out / report.PAGE).read_text()
    assert f"slackwater lab compare --out {compared} --replay" in page
    for image in ("time-one-on-roundrobin.png", "improvement-one.png", "answers.png", "cost.png"):
        assert f'src="{image}"' in page
        pixels = matplotlib.image.imread(out / image)
        assert pixels.std() > 0.01, f"{image} is not blank"
        assert np.ptp(pixels[..., :3], axis=2).max() < 0.01, f"{image} says nothing by colour"
    assert "CUT SHORT" not in page
    data = json.loads((out / report.DATA).read_text())
    assert {goal["state"] for goal in data["goals"]} == {"reached", "NOT reached", "not decided"}


def test_the_page_tells_what_slackwater_costs_and_how_severity_counts(tmp_path: Path) -> None:
    comparison(tmp_path / "some", scenarios=("one", "one-severe"))
    out = tmp_path / "page"
    CliRunner().invoke(lab, ["report", "--compare", str(tmp_path / "some"), "--out", str(out)], catch_exceptions=False)
    page = (out / report.PAGE).read_text()
    assert "<td>slackwater</td><td>monitor</td><td>10</td><td>3</td><td>1.2%</td><td>8</td>" in page
    assert 'src="severity.png"' in page
    assert matplotlib.image.imread(out / "severity.png").std() > 0.01
    assert json.loads((out / report.DATA).read_text())["comparison"]["cost"][0]["part"] == "monitor"


def test_a_report_of_a_comparison_cut_short_says_so_first(tmp_path: Path) -> None:
    comparison(tmp_path / "half", runs=9)
    out = tmp_path / "page"
    CliRunner().invoke(lab, ["report", "--compare", str(tmp_path / "half"), "--out", str(out)], catch_exceptions=False)
    page = (out / report.PAGE).read_text()
    assert page.index("CUT SHORT: 9 of 20 runs") < page.index("<table>")
    assert json.loads((out / report.DATA).read_text())["complete"] is False


def test_a_report_of_nothing_or_of_something_else_is_refused(tmp_path: Path) -> None:
    refused = CliRunner().invoke(lab, ["report", "--out", str(tmp_path)])
    assert refused.exit_code == 2
    assert "nothing to report on" in refused.output
    odd = tmp_path / "odd.json"
    odd.write_text("[]")
    with pytest.raises(CompareError, match=r"odd\.json: expected what `slackwater lab simulate --json` writes"):
        report.read_simulated(odd)


def test_calibration_finds_the_overhead_and_the_variation_that_calm_was_made_with() -> None:
    setup = Setup(servers=3, capacity_rps=300.0, quota_cores=0.4, noisy=0.0, episode_s=0.0, seconds=40.0)
    truth = Setup(**{**vars(setup), "cost_cv2": 0.5, "overhead_ms": 0.7, "seed": 11})
    felt: Any = simulate(truth, "static", None).felt
    fitted = validation.calibrate(setup, felt["p50_ms"], felt["p95_ms"])
    assert fitted.overhead_ms == pytest.approx(0.7, abs=0.15)
    assert fitted.cost_cv2 in (0.25, 0.5, 1.0)


def test_a_richer_law_is_judged_on_what_it_did_not_see() -> None:
    dice = np.random.default_rng(1)
    inputs = dice.uniform(0.0, 1.0, (400, 3))
    assert estimator_fit.linear(inputs).shape == (400, 4)
    assert estimator_fit.quadratic(inputs).shape == (400, 10)
    curved = inputs[:, 1] ** 2
    coefficients, *_ = np.linalg.lstsq(estimator_fit.quadratic(inputs), curved, rcond=None)
    assert np.allclose(estimator_fit.quadratic(inputs) @ coefficients, curved)


def test_without_samples_there_is_no_fit(compared: Path) -> None:
    assert estimator_fit.fit(compared) is None
    assert plan.load(compared).rounds == 5


def test_comparisons_of_different_scenarios_make_one_report(tmp_path: Path) -> None:
    comparison(tmp_path / "open", scenarios=("one",))
    comparison(tmp_path / "closed", runs=4, scenarios=("one-closed",))
    summaries = [results.summary(tmp_path / name) for name in ("open", "closed")]
    both = results.together(summaries)
    assert results.cut_short(both).startswith("CUT SHORT: 24 of 40 runs")
    assert {cell["scenario"] for cell in both["cells"]} == {"one", "one-closed"}
    with pytest.raises(CompareError, match="scenario one is in more than one comparison"):
        results.together([summaries[0], summaries[0]])
