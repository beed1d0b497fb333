"""Tail estimators against a queue whose p95 is known in closed form, and on recordings."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from slackwater.controller.cli import detector_commands as commands
from slackwater.detector.recordings.recording import read
from slackwater.detector.tail.curves import ESTIMATORS, TooFewRows, compare, part_of, scores
from slackwater.detector.tail.data import COLUMNS, Rows, rows_of
from slackwater.detector.tail.estimator import NotFitted, TailEstimator, paae, r2
from slackwater.detector.tail.table import ACTIONS, TabularLearner
from tests.support.synthetic_recording import make

RATE_PER_CORE = 120.0


def queue_p95_ms(rps: float, cores: float) -> float:
    """M/M/1: the response time is exponential with rate μ - λ, so its p95 is ln(20) / (μ - λ)."""
    return 1e3 * math.log(20) / (cores * RATE_PER_CORE - rps)


def queue_rows(seconds: int = 120, seed: int = 0) -> Rows:
    """Servers of one to three cores whose load goes up in steps and down again, as in the paper."""
    random = np.random.default_rng(seed)
    inputs, p95, configuration = [], [], []
    for number, cores in enumerate((1.0, 2.0, 3.0)):
        for second in range(seconds):
            share = 0.1 + 0.7 * (1 - abs(2 * second / seconds - 1))
            rps = share * cores * RATE_PER_CORE * random.normal(1, 0.02)
            inputs.append([rps, cores, 2000.0, 0.0])
            p95.append(queue_p95_ms(rps, cores) * random.normal(1, 0.03))
            configuration.append(number)
    return Rows(np.array(inputs), np.array(p95), np.array(configuration))


def test_the_measures_are_the_papers() -> None:
    actual, predicted = np.array([1.0, 2.0, 4.0]), np.array([1.1, 1.8, 4.0])
    assert paae(predicted, actual) == pytest.approx((0.1 + 0.1 + 0.0) / 3)
    assert r2(predicted, actual) == pytest.approx(1 - 0.05 / ((4 / 3) ** 2 + (1 / 3) ** 2 + (5 / 3) ** 2))
    assert r2(actual, actual) == 1.0
    assert math.isnan(r2(actual, np.array([2.0, 2.0, 2.0])))


@pytest.mark.parametrize(("make_one", "error", "fit"), [(ESTIMATORS[0], 0.05, 0.97), (ESTIMATORS[1], 0.2, 0.5)])
def test_forest_and_svm_find_the_queues_p95(make_one: Callable[[], TailEstimator], error: float, fit: float) -> None:
    rows = queue_rows()
    train = part_of(rows, 0.7, seed=1)
    estimator = make_one()
    estimator.fit(rows.only(train))
    figures = scores(estimator, rows.only(~train))
    assert figures["paae"] < error
    assert figures["r2"] > fit


def test_the_table_learns_online_and_gets_better_with_iterations() -> None:
    rows = queue_rows(600)
    once, often = TabularLearner(seed=1), TabularLearner(seed=1)
    once.fit(rows)
    often.fit(rows)
    for _ in range(40):
        for row, p95_ms in zip(rows.inputs, rows.p95_ms, strict=True):
            often.learn(row, float(p95_ms))
    assert often.correctness(rows) > max(0.5, once.correctness(rows))
    assert scores(often, rows)["paae_within_target"] < 0.3


def test_the_table_has_ten_estimates_and_all_violations_in_the_uppermost() -> None:
    table = TabularLearner(least_ms=0.5, target_ms=1.1)
    rows = queue_rows()
    table.fit(rows)
    assert len(table.levels_ms) == ACTIONS
    assert table.levels_ms[0] == pytest.approx(0.53)
    assert table.buckets(np.array([0.1, 0.5, 0.57, 1.05, 1.1, 700.0])).tolist() == [0, 0, 1, 9, 9, 9]
    before = {state: values.copy() for state, values in table._values.items()}
    table.predict_ms(rows.inputs * 7)
    assert all((before[state] == values).all() for state, values in table._values.items()), "asking teaches nothing"


@pytest.mark.parametrize("make_one", ESTIMATORS)
def test_an_estimator_that_learnt_nothing_says_so(make_one: Callable[[], TailEstimator]) -> None:
    with pytest.raises(NotFitted, match="has learnt nothing yet"):
        make_one().predict_ms(np.zeros((1, len(COLUMNS))))


def test_learning_curves_train_on_the_first_rows_of_each_configuration_and_get_better() -> None:
    rows = queue_rows()
    assert part_of(rows, 0.25).reshape(3, -1)[:, :30].all()
    assert part_of(rows, 0.25).sum() == 90
    compared = compare(rows, shares=(0.1, 0.5, 1.0))
    assert set(compared) == {"random forest", "SVM", "reinforcement learning"}
    curve = compared["random forest"]["learning_curve"]
    assert [share for share, _, _ in curve] == [0.1, 0.5, 1.0]
    assert curve[0][1] > 2 * curve[1][1], "from half the data on, the load steps are revisited"
    with pytest.raises(TooFewRows, match="2 seconds of servers"):
        compare(rows.only(np.arange(2)))


def test_recordings_give_a_row_a_second_and_the_command_compares_the_estimators(tmp_path: Path) -> None:
    make(tmp_path / "r.parquet", 3)
    recording = read(tmp_path / "r.parquet")
    rows = rows_of([recording])
    assert 3 * 38 <= len(rows.p95_ms) <= 3 * 42
    assert rows.inputs[:, 1] == pytest.approx(0.4)
    assert len(np.unique(rows.configuration)) == 3
    run = CliRunner().invoke(commands.detector, ["tail", str(tmp_path / "r.parquet"), "--json"])
    assert run.exit_code == 0, run.output
    compared = json.loads(run.output)
    assert compared["random forest"]["paae"] < 0.5
    assert compared["random forest"]["r2"] > 0.5
    run = CliRunner().invoke(commands.detector, ["tail", str(tmp_path / "r.parquet")])
    assert "random forest: PAAE" in run.output
