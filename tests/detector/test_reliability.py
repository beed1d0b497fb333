"""How often stated probabilities were right: counted by hand, errors by their definitions, and what does not count."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from slackwater.controller.cli import detector_commands as commands
from slackwater.core.messages import Sample, Verdict
from slackwater.detector.recordings.recording import Label, Recording
from slackwater.detector.train.reliability import EDGES, Reliability, lines
from slackwater.detector.train.scores import score
from tests.support.paths import RECORDINGS

RECORDING = RECORDINGS / "events-all-noisy.parquet"


def test_errors_are_those_of_their_definitions() -> None:
    stated, beside = [0.05, 0.05, 0.95, 0.95, 0.95, 1.0], [False, True, True, True, False, True]
    reliability = Reliability()
    reliability.count(stated, beside)
    scores = reliability.as_dict()
    assert scores is not None
    assert (scores["verdicts"], scores["beside"]) == (6, 4)
    assert [(row["from"], row["to"], row["verdicts"], row["beside"]) for row in scores["bins"]] == [
        (0.01, 0.1, 2, 1), (0.9, 0.99, 3, 2), (0.99, 1.0, 1, 1),
    ]  # fmt: skip
    expected = (2 * abs(0.05 - 1 / 2) + 3 * abs(0.95 - 2 / 3) + 1 * 0.0) / 6
    assert scores["expected_calibration_error"] == pytest.approx(expected, abs=1e-4)
    brier = np.mean((np.array(stated) - np.array(beside)) ** 2)
    assert scores["brier_score"] == pytest.approx(brier, abs=1e-4)


def test_a_probability_that_is_right_as_often_as_it_says_has_no_calibration_error() -> None:
    reliability, dice = Reliability(), np.random.default_rng(3)
    stated = dice.random(200_000)
    reliability.count(stated.tolist(), (dice.random(len(stated)) < stated).tolist())
    scores = reliability.as_dict()
    assert scores is not None
    assert scores["expected_calibration_error"] < 0.01
    assert scores["brier_score"] == pytest.approx(1 / 6, abs=0.01)
    assert len(scores["bins"]) == len(EDGES) - 1


def test_parts_add_up_to_the_whole() -> None:
    dice = np.random.default_rng(4)
    stated, beside = dice.random(500).tolist(), (dice.random(500) < 0.3).tolist()
    whole, parts = Reliability(), Reliability()
    whole.count(stated, beside)
    for begin in range(0, 500, 100):
        part = Reliability()
        part.count(stated[begin : begin + 100], beside[begin : begin + 100])
        parts.merge(part)
    assert parts.as_dict() == whole.as_dict()


def test_nothing_was_stated() -> None:
    assert Reliability().as_dict() is None


@pytest.mark.parametrize("wrong", [float("nan"), -0.1, 1.1, float("inf")])
def test_what_is_no_probability_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="expected 0 to 1"):
        Reliability().count([0.5, wrong], [True, True])


def verdict(at_s: float, probability: float | None, p95_ms: float = 5.0) -> Verdict:
    return Verdict(1, "n1", "web", at_s, "calm", 0.0, 0.0, [], "m", rt_p95_ms=p95_ms, probability=probability)


def test_beside_a_noise_that_nobody_felt_and_just_after_one_nothing_counts() -> None:
    samples = [Sample(1, "n1", "web", at_s, "b", 0, 0.2) for at_s in (0.0, 100.0)]
    labels = [Label("n1", "cpu", 1.0, 20.0, 30.0), Label("n1", "disk", 1.0, 60.0, 70.0)]
    ticks = [
        verdict(10.0, 0.0),
        verdict(11.0, None),  # a node that has gone quiet: nothing is stated
        verdict(25.0, 1.0, 50.0),
        verdict(29.0, 0.5, 50.0),
        verdict(31.0, 1.0),  # just after
        verdict(65.0, 0.0),  # not felt
        verdict(90.0, 0.0),
    ]
    scores = score(Recording(samples, labels, "", "", ["n1"]), ticks).reliability.as_dict()
    assert scores is not None
    assert (scores["verdicts"], scores["beside"]) == (4, 2)
    assert scores["brier_score"] == pytest.approx(0.25 / 4)


def test_the_command_prints_the_table_and_draws_the_plot(tmp_path: Path) -> None:
    plot = tmp_path / "reliability.svg"
    run = CliRunner().invoke(commands.detector, ["evaluate", str(RECORDING), "--plot", str(plot), "--json"])
    assert run.exit_code == 0, run.output
    scores = json.loads(run.output)["reliability"]
    assert scores["verdicts"] == sum(row["verdicts"] for row in scores["bins"]) > 500
    assert 0.0 <= scores["expected_calibration_error"] <= 1.0
    assert plot.read_text().startswith("<svg")
    assert "share beside a neighbour" in plot.read_text()
    (about, head, *rows) = lines(scores)
    assert f"Brier score {scores['brier_score']:g}" in about
    assert "beside a neighbour" in head
    assert len(rows) == len(scores["bins"])
    assert all(re.fullmatch(r" {4}[0-9.]+ to [0-9.]+ +[0-9.]+ +[0-9]+ +[0-9]+ \([01]\.[0-9]{3}\)", row) for row in rows)


def test_a_plot_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere/plot.svg"
    nowhere.parent.write_text("no folder")
    run = CliRunner().invoke(commands.detector, ["evaluate", str(RECORDING), "--plot", str(nowhere)])
    assert run.exit_code == 1
    assert "/nowhere" in run.output
