"""Goals, figures and the page, from recordings whose figures are known."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from click.testing import CliRunner

from detector.recordings.recording import write as write_samples
from lab.commands import lab
from lab.compare import comparison as plan
from lab.compare import estimator_fit, goals, report, results, validation
from lab.experiment import recording
from lab.experiment.recording import ExperimentError
from lab.sim.requests import simulate
from lab.sim.setup import Setup
from slackwater.messages import VERSION, Counters, Cpu, Sample, Traffic
from tests.support.comparison_files import comparison, recorded

SIMULATED = {
    "setup": {"servers": 10_000, "balancers": 1, "noisy": 0.1, "period_s": 1.0},
    "policy": "slackwater",
    "model": "cycles",
    "felt": {"mean_ms": 9.0, "p50_ms": 5.0, "p95_ms": 20.0, "p99_ms": 40.0},
    "turns_per_server_hour": 1.0,
    "cost_ms": {part: {"p50": 200.0, "max": 400.0} for part in ("detector", "lbengine", "model")},
    "core_share": 0.6,
    "pace": {"cycles": 30, "late": 2, "slowest_s": 1.25, "behind_max_s": 0.3, "behind_end_s": 0.0},
}


@pytest.fixture
def compared(tmp_path: Path) -> Path:
    comparison(tmp_path / "compared", scenarios=("one", "one-closed"))
    return tmp_path / "compared"


@pytest.fixture(autouse=True)
def no_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulating a lab that never was takes a minute and says nothing."""
    compared = [{"comparison": "some", "policy": "static", "error": 0.2, "fitted": True, "rounds": 5} | P95S]
    monkeypatch.setattr(validation, "validate", lambda *_: {"compared": compared})


P95S = {"lab_p95_ms": 50.0, "simulated_p95_ms": 60.0}


def test_a_comparison_s_rounds_count_for_the_goals_as_the_evaluation_s_do(tmp_path: Path) -> None:
    comparison(tmp_path, scenarios=("two",), policies=("slackwater", "oracle"))
    line = next(one for one in goals.of_lab(results.summary(tmp_path)["runs"]) if one.what.startswith("`two`, round"))
    # 10 ms under ours, 9 under the oracle.
    assert line.word == "NOT reached"
    assert line.found.startswith("mean 1.1")
    assert line.found.endswith("`oracle`'s; 5 of 5 rounds")


def real_time(**changed: Any) -> goals.Goal:
    return goals.of_simulator([SIMULATED | changed], [])[0]


def test_real_time_means_that_no_cycle_was_late_or_all_were_caught_up_with() -> None:
    quick = real_time()
    assert quick.word == "reached"
    assert quick.found == (
        "60% of the core, model and learning included; after learning 2 of 30 cycles took longer than 1 s"
        " (slowest 1.25 s), at most 0.30 s behind, at the end 0.00 s"
    )
    pace: dict[str, Any] = SIMULATED["pace"]  # type: ignore[assignment]
    assert real_time(pace=pace | {"behind_end_s": 0.2}).word == "NOT reached", "it was still behind at the end"
    assert real_time(pace=pace | {"late": 0}).word == "reached"
    assert real_time(core_share=1.1).word == "NOT reached"
    assert real_time(pace=None).word == "not measured yet"
    slow: dict[str, Any] = SIMULATED["setup"]  # type: ignore[assignment]
    assert real_time(setup=slow | {"period_s": 2.0}).word == "not measured yet", "a decision a second was asked for"
    assert real_time(setup=slow | {"servers": 1000}).word == "not measured yet"


def test_the_page_has_the_goals_the_figures_and_the_commands(compared: Path, tmp_path: Path) -> None:
    simulated = tmp_path / "sim.json"
    small = json.loads(json.dumps(SIMULATED)) | {"setup": {**SIMULATED["setup"], "servers": 100}}  # type: ignore[dict-item]
    simulated.write_text(json.dumps({"command": "slackwater lab simulate --seed 7", "runs": [SIMULATED, small]}))
    out = tmp_path / "page"
    arguments = ["report", "--compare", str(compared), "--simulated", str(simulated), "--out", str(out)]
    done = CliRunner().invoke(lab, arguments, catch_exceptions=False)
    assert "NOT reached" in done.output
    page = (out / report.PAGE).read_text()
    made = f"slackwater lab report --compare {compared} --simulated {simulated} --out {out}"
    ends = [page.count(f"{made}</code></{tag}>") for tag in ("figcaption", "caption")]
    assert page.count("<figcaption>") + page.count("<caption>") == sum(ends) + 1
    assert "<caption><code>slackwater lab compare --list</code></caption>" in page, "the one with another command"
    assert f": <code>slackwater lab simulate --seed 7</code>; <code>{made}</code></figcaption>" in page
    for image in ("time-one-on-roundrobin.png", "improvement-one.png", "answers.png", "cost.png"):
        assert f'src="{image}"' in page
        pixels = matplotlib.image.imread(out / image)
        assert pixels.std() > 0.01, f"{image} is not blank"
        assert np.ptp(pixels[..., :3], axis=2).max() < 0.01, f"{image} says nothing by colour"
    assert "CUT SHORT" not in page
    data = json.loads((out / report.DATA).read_text())
    assert {goal["state"] for goal in data["goals"]} == {"reached", "NOT reached", "not measured yet"}


def test_the_page_shows_what_slackwater_costs_and_how_severity_counts(tmp_path: Path) -> None:
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
    with pytest.raises(ExperimentError, match=r"odd\.json: expected what `slackwater lab simulate --json` writes"):
        report.read_simulated(odd)


def test_calibration_finds_the_overhead_and_the_variation_that_calm_was_made_with() -> None:
    setup = Setup(servers=3, capacity_rps=300.0, quota_cores=0.4, noisy=0.0, episode_s=0.0, seconds=40.0)
    truth = Setup(**{**vars(setup), "cost_cv2": 0.5, "overhead_ms": 0.7, "seed": 11})
    felt: Any = simulate(truth, "static", None).felt
    fitted = validation.calibrate(setup, felt["p50_ms"], felt["p95_ms"])
    assert fitted.overhead_ms == pytest.approx(0.7, abs=0.15)
    assert fitted.cost_cv2 in (0.25, 0.5, 1.0)


def test_without_samples_there_is_no_fit(compared: Path) -> None:
    assert estimator_fit.fit([compared]) is None
    assert plan.load(compared).rounds == 5


def test_comparisons_of_different_scenarios_make_one_report(tmp_path: Path) -> None:
    comparison(tmp_path / "open", scenarios=("one",))
    comparison(tmp_path / "closed", runs=4, scenarios=("one-closed",))
    summaries = [results.summary(tmp_path / name) for name in ("open", "closed")]
    both = results.together(summaries)
    assert results.cut_short(both).startswith("CUT SHORT: 24 of 40 runs")
    assert {cell["scenario"] for cell in both["cells"]} == {"one", "one-closed"}


def test_rounds_of_two_comparisons_count_together_and_pairs_stay_within_one(tmp_path: Path) -> None:
    comparison(tmp_path / "first", policies=("static", "leastconn", "slackwater"))
    comparison(tmp_path / "again", policies=("static", "leastconn", "oracle"))
    both = results.together([results.summary(tmp_path / name) for name in ("first", "again")])
    cells = {cell["policy"]: cell for cell in both["cells"]}
    assert {name: cell["rounds"] for name, cell in cells.items()} == {
        "static": 10, "leastconn": 10, "slackwater": 5, "oracle": 5
    }  # fmt: skip
    assert cells["leastconn"]["change"]["static"]["p99_ms"]["count"] == 10
    assert cells["slackwater"]["change"]["leastconn"]["p99_ms"]["count"] == 5
    assert "oracle" not in cells["slackwater"]["change"], "they never ran in the same round"
    assert [part["folder"] for part in both["parts"]] == [str(tmp_path / "first"), str(tmp_path / "again")]
    one = results.summary(tmp_path / "first")
    assert results.together([one])["cells"] == one["cells"]


def test_peers_are_in_the_figure_and_in_a_table_of_changes(tmp_path: Path) -> None:
    comparison(tmp_path / "peers", policies=("static", "leastconn", "outlier", "agent-check"))
    out = tmp_path / "page"
    CliRunner().invoke(lab, ["report", "--compare", str(tmp_path / "peers"), "--out", str(out)], catch_exceptions=False)
    page = (out / report.PAGE).read_text()
    for policy in ("outlier", "agent-check"):
        # 30 ms under the peers, 60 under static weights, 20 under leastconn.
        row = page[page.index(f"<td>{policy}</td><td>static</td>") :]
        assert re.match(f"<td>{policy}</td><td>static</td><td>-(49|50|51)% \\[", row)
        row = page[page.index(f"<td>{policy}</td><td>leastconn</td>") :]
        assert re.match(f"<td>{policy}</td><td>leastconn</td><td>\\+(48|49|50|51|52)% \\[", row)
    assert matplotlib.image.imread(out / "improvement-one.png").std() > 0.01
    assert not (out / "detections.png").exists()
    assert "these recordings hold no Verdicts" in page


def test_detections_are_reported_by_scenario_and_drawn(compared: Path, tmp_path: Path) -> None:
    out = tmp_path / "page"
    CliRunner().invoke(lab, ["report", "--compare", str(compared), "--out", str(out)], catch_exceptions=False)
    page = (out / report.PAGE).read_text()
    assert "<td>one-closed</td><td>slackwater</td><td>5 of 5</td><td>0.40</td>" in page
    assert 'src="detections.png"' in page
    assert "0123456789ab" in page, "the commit that measured"


def test_a_streaming_service_s_delays_are_taken_in_as_a_table(tmp_path: Path) -> None:
    streaming = tmp_path / "streaming.json"
    row = {"frames": 2040, "noisy_share": 0.33, "late_share": 0.29, "p50_ms": 2.6, "p95_ms": 202.0, "p99_ms": 245.0}
    streaming.write_text(json.dumps({"command": "pytest here", "policies": {"static wrr": row}}))
    out = tmp_path / "page"
    CliRunner().invoke(lab, ["report", "--streaming", str(streaming), "--out", str(out)], catch_exceptions=False)
    page = (out / report.PAGE).read_text()
    assert "<code>pytest here</code>" in page
    assert "<td>static wrr</td><td>2040</td><td>33%</td><td>29%</td><td>2.6</td><td>202.0</td><td>245.0</td>" in page
    streaming.write_text('{"policies": {"static wrr": {"frames": 1}}}')
    with pytest.raises(ExperimentError, match=r"streaming\.json: expected what the streaming service's test writes"):
        report.read_streaming(streaming)


def test_the_law_is_fitted_on_odd_rounds_of_samples_and_judged_on_even_ones(tmp_path: Path) -> None:
    """CPU made of the square of the request rate: the quadratic law finds it, the linear one not quite."""
    made = comparison(tmp_path, runs=0, policies=("slackwater",))
    dice = np.random.default_rng(3)
    for run in made.runs:
        recording.write(tmp_path, recorded(run))
        rates, cycles = dice.uniform(0.0, 100.0, 300), dice.uniform(50.0, 60.0, 300)
        heard = [
            Sample(
                v=VERSION,
                node="host1",
                pool="web",
                time_unix_s=float(number),
                boot_id="b",
                seq=number,
                period_s=0.2,
                cpu=Cpu(scope="cgroup", utilisation=float(0.1 + rate**2 / 2e4 + dice.normal(0.0, 0.005))),
                counters=Counters(source="canary", cpi=float(cpi)),
                traffic=Traffic(rps=float(rate)),
            )
            for number, (rate, cpi) in enumerate(zip(rates, cycles, strict=True))
        ]
        write_samples(recording.path_of(tmp_path, run.number, "samples"), heard, [], "a test")
    found = estimator_fit.fit([tmp_path])
    assert found is not None
    assert found["samples"] == 2 * 299, "two even rounds; the first Sample has no CPU before it"
    assert found["quadratic"]["r2"] > 0.99
    assert 0.85 < found["linear"]["r2"] < 0.97
    assert found["quadratic"]["mean_error"] < 0.01 < found["linear"]["mean_error"]
