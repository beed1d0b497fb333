"""Scores on labelled recordings: counted by hand, by kind, with kinds left out; and the report of a model."""

from __future__ import annotations

import json
import re
from math import comb, exp, log
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from slackwater.controller.cli import detector_commands as commands
from slackwater.core.messages import Sample, State, Verdict
from slackwater.detector.classify import tree
from slackwater.detector.features.columns import Floats
from slackwater.detector.recordings.recording import Label, Recording, read
from slackwater.detector.train.cross_validation import pairs_of
from slackwater.detector.train.fit import compare_laws, quadratic
from slackwater.detector.train.learned import Learned, learn
from slackwater.detector.train.scores import rate_interval, score, share_interval
from tests.support.synthetic_recording import make

KINDS = (("cpu", "dcopy"), ("llcprobe", "disk"), ("cpu", "disk"))
FIRE_S = 100.0


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recordings")
    for seed, kinds in enumerate(KINDS):
        make(folder / f"r{seed}.parquet", seed, kinds=kinds)
    return folder


@pytest.fixture(scope="module")
def trained(recordings: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    folder = tmp_path_factory.mktemp("models")
    model, report = folder / "m.skops", folder / "out" / "report.html"
    run = CliRunner().invoke(commands.train, [str(recordings), "--out", str(model), "--report", str(report)])
    assert run.exit_code == 0, run.output
    return model, report, run.output


def verdict(at_s: float, state: State, node: str = "n1", p95: float = 5.0) -> Verdict:
    return Verdict(1, node, "web", FIRE_S + at_s, state, FIRE_S, 0.0, [], "m", rt_p95_ms=p95)


def recording(*labels: Label) -> Recording:
    samples = [Sample(1, node, "web", FIRE_S + at_s, "b", 0, 0.2) for node in ("n1", "n2") for at_s in (0, 100)]
    return Recording(samples, list(labels), "", "", ["n1", "n2"])


def label(node: str, begin_s: float, end_s: float, kind: str = "cpu", intensity: float = 1.0) -> Label:
    return Label(node, kind, intensity, FIRE_S + begin_s, FIRE_S + end_s)


def test_noises_delays_episodes_and_hours_are_counted() -> None:
    """One found after 2 s, one missed, one false episode on the other node, which also ends in an episode too soon."""
    labels = [label("n1", 10, 20), label("n1", 40, 50, "dcopy", 0.5)]
    ticks = [
        verdict(at_s, "interference" if 12 <= at_s < 21 else "calm", p95=9.0 if 10 <= at_s < 20 else 5.0)
        for at_s in range(101)
    ]
    ticks += [verdict(at_s, "interference" if 70 <= at_s < 75 else "calm", "n2") for at_s in range(101)]
    scores = score(recording(*labels), ticks).as_dict()
    assert (scores["noises"], scores["missed"], scores["recall"]) == (2, 1, 0.5)
    assert (scores["false_episodes"], scores["precision"]) == (1, 0.5)
    assert scores["detection_delay_median_s"] == 2.0
    assert scores["delays_s"] == [2.0]
    assert scores["felt"]["noises"] == 1, "only one raised the response time"
    assert scores["by_noise"]["cpu"]["1"] == {
        "noises": 1, "missed": 0, "recall": 1.0, "recall_interval": [0.025, 1.0], "detection_delay_median_s": 2.0,
        "detection_delay_p95_s": 2.0,
    }  # fmt: skip
    assert scores["by_noise"]["dcopy"]["0.5"]["missed"] == 1
    assert scores["by_kind"]["cpu"]["felt"]["recall"] == 1.0
    assert (scores["by_kind"]["dcopy"]["missed"], scores["by_kind"]["dcopy"]["felt"]["noises"]) == (1, 0)
    assert scores["by_kind"]["cpu"]["harm_median"] == pytest.approx(1.8)
    assert scores["false_during"] == {"nothing": 1}
    assert scores["disturbances"] == {"nothing": {"node_s": 180.0, "false_episodes": 1}}
    hours = (200 - 20) / 3600
    assert scores["calm_node_hours"] == pytest.approx(hours, abs=1e-4)
    assert scores["false_episodes_per_node_day"] == pytest.approx(24 / hours, rel=0.01)
    assert scores["confusion"]["interference"] == {
        "calm": 12, "interference": 8, "overload": 0, "all_slow": 0, "unknown": 0,
    }  # fmt: skip
    assert scores["confusion"]["calm"]["interference"] == 5, "a tick just after a noise counts neither way"


@pytest.mark.parametrize(
    ("own_ms", "peers_ms", "is_slow"),
    [(11.0, 5.0, True), (9.0, 5.0, False), (11.0, 8.0, False), (11.0, None, False)],
    ids=["slow by itself", "hardly slower", "its peers too", "no peers"],
)
def test_a_server_that_was_slow_to_its_users_was_not_called_slow_falsely(
    own_ms: float, peers_ms: float | None, is_slow: bool
) -> None:
    """Beside its own backup, say: no neighbour, but less load helps its users. The word `interference` claims one."""
    backup = label("n1", 50, 60, "own_backup")
    for state in ("slow", "interference"):
        word: State = "slow" if state == "slow" else "interference"
        ticks = [
            verdict(at_s, word if 51 <= at_s < 62 else "calm", p95=own_ms if 50 <= at_s < 60 else 5.0)
            for at_s in range(101)
        ]
        if peers_ms is not None:
            ticks += [verdict(at_s, "calm", "n2", p95=peers_ms if 50 <= at_s < 60 else 5.0) for at_s in range(101)]
        scores = score(recording(label("*", 10, 60, "deploy"), backup), ticks)
        true = is_slow and state == "slow"
        assert (scores.slow_during, scores.false_during) == (
            ({"own_backup": 1}, {}) if true else ({}, {"own_backup": 1})
        ), "what began last is what it was beside"
        assert (scores.slow_episodes, scores.false_episodes) == (int(true), int(not true))


def test_a_second_of_slow_answers_makes_no_slow_server() -> None:
    ticks = [
        verdict(number / 5, "slow" if 252 <= number < 262 else "calm", p95=20.0 if 250 <= number < 255 else 5.0)
        for number in range(500)
    ]
    ticks += [verdict(number / 5, "calm", "n2") for number in range(500)]
    assert score(recording(), ticks).false_during == {"nothing": 1}


def test_a_recall_has_its_exact_interval() -> None:
    """The ends are where the share found has a chance of 2.5% to be as high, and as low, as it was."""
    assert share_interval(0, 0) is None
    interval = share_interval(40, 47)
    assert interval is not None
    low, high = interval
    assert low < 40 / 47 < high
    at_least = sum(comb(47, k) * low**k * (1 - low) ** (47 - k) for k in range(40, 48))
    at_most = sum(comb(47, k) * high**k * (1 - high) ** (47 - k) for k in range(41))
    assert at_least == pytest.approx(0.025, rel=0.01)
    assert at_most == pytest.approx(0.025, rel=0.01)


def test_a_rate_of_false_episodes_has_its_exact_interval() -> None:
    """None in half a day shows at most 7.4 a day; two in half a day show that there are some."""
    assert rate_interval(0, 0.0) is None
    assert rate_interval(0, 0.5) == [0.0, pytest.approx(-log(0.025) / 0.5, abs=0.01)]
    interval = rate_interval(2, 0.5)
    assert interval is not None
    below, above = interval[0] * 0.5, interval[1] * 0.5
    assert 1 - exp(-below) * (1 + below) == pytest.approx(0.025, rel=0.05)
    assert exp(-above) * (1 + above + above**2 / 2) == pytest.approx(0.025, rel=0.05)


def test_all_five_states_are_distinguished() -> None:
    labels = [label("*", 10, 20, "overload"), label("*", 30, 40, "slow_database"), label("*", 50, 60, "deploy")]
    states: dict[int, State] = {15: "overload", 35: "all_slow", 55: "calm", 80: "unknown"}
    scores = score(recording(*labels), [verdict(at_s, state) for at_s, state in states.items()]).as_dict()
    assert scores["confusion"]["overload"]["overload"] == 1
    assert scores["confusion"]["all_slow"]["all_slow"] == 1
    assert scores["confusion"]["calm"] == {"calm": 1, "interference": 0, "overload": 0, "all_slow": 0, "unknown": 1}
    assert (scores["noises"], scores["false_episodes"]) == (0, 0)


def test_how_long_each_disturbance_was_done_to_nodes_stands_beside_its_false_episodes() -> None:
    labels = [label("*", 10, 20, "deploy"), label("n2", 60, 90, "reload")]
    ticks = [
        verdict(at_s, "interference" if node == "n2" and 70 <= at_s < 75 else "calm", node)
        for node in ("n1", "n2")
        for at_s in range(101)
    ]
    disturbances = score(recording(*labels), ticks).as_dict()["disturbances"]
    assert disturbances["deploy"] == {"node_s": 20.0, "false_episodes": 0}
    assert disturbances["reload"] == {"node_s": 30.0, "false_episodes": 1}
    assert disturbances["nothing"] == {"node_s": 150.0, "false_episodes": 0}


def test_a_noise_within_a_label_of_the_pool_is_still_a_noise() -> None:
    labelled = recording(label("*", 0, 90, "flash_crowd"), label("n1", 10, 20))
    assert (labelled.truth("n1", FIRE_S + 15), labelled.kind("n1", FIRE_S + 15)) == ("interference", "cpu")
    assert (labelled.truth("n2", FIRE_S + 15), labelled.kind("n2", FIRE_S + 15)) == ("calm", "flash_crowd")


def test_the_command_prints_scores_and_json(recordings: Path, trained: tuple[Path, Path, str]) -> None:
    run = CliRunner().invoke(commands.detector, ["evaluate", str(recordings), "--model", str(trained[0]), "--json"])
    assert run.exit_code == 0, run.output
    report = json.loads(run.output)
    assert (report["model"], report["noises"], report["false_episodes"]) == ("m", 6, 0)
    assert set(report["by_noise"]) == {"cpu", "dcopy", "llcprobe", "disk"}
    assert report["trained_on"] == ["cpu", "dcopy", "disk", "llcprobe"]
    assert set(report["confusion"]) == {"calm", "interference", "overload", "all_slow"}
    assert report["law"]["r2"] > 0.5
    assert set(report["law"]["quadratic"]) == {"r2", "mean_absolute_error"}
    path = str(recordings / "r0.parquet")
    run = CliRunner().invoke(commands.detector, ["evaluate", path, "--model", str(trained[0])])
    for words in (
        "m: 2 noises, 0 missed; found 1 (0.158 to 1, 95% sure)",
        "false episodes per node-day: 0 (0 to ",
        "dcopy, noticed by users: ",
        "dcopy 0.9: 1 noises",
    ):
        assert words in run.output


def test_the_shipped_model_is_explained_whatever_scores_it_holds() -> None:
    """It may be older than a score that is printed."""
    run = CliRunner().invoke(commands.detector, ["explain"])
    assert run.exit_code == 0, run.output
    assert "noises" in run.output


def test_evaluate_refuses_what_is_no_recording_and_no_model(recordings: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.parquet"
    bad.write_text("no")
    run = CliRunner().invoke(commands.detector, ["evaluate", str(bad)])
    assert run.exit_code == 1
    assert "bad.parquet" in run.output
    run = CliRunner().invoke(commands.detector, ["evaluate", str(recordings), "--model", str(bad)])
    assert run.exit_code == 1
    assert "not a model file" in run.output


def test_two_kinds_at_a_time_are_left_out_of_training_and_scored(trained: tuple[Path, Path, str]) -> None:
    left_out = tree.load(trained[0]).metadata["scores"]["kinds_left_out"]
    assert {kind: scores["left_out_with"] for kind, scores in left_out.items()} == {
        "cpu": ["dcopy"], "dcopy": ["cpu"], "disk": ["llcprobe"], "llcprobe": ["disk"],
    }  # fmt: skip
    assert {kind: scores["noises"] for kind, scores in left_out.items()} == {
        "cpu": 2,
        "dcopy": 1,
        "disk": 2,
        "llcprobe": 1,
    }
    assert "disk, never trained on: 2 noises, 0 missed" in trained[2]
    assert pairs_of(["a", "b", "c"]) == [("a", "b"), ("c", "a")]


def test_ticks_of_kinds_left_out_teach_nothing(recordings: Path) -> None:
    whole = learn(read(recordings / "r0.parquet"))
    assert set(whole.kinds) == {"", "cpu", "dcopy"}
    rest = whole.without(["cpu", "dcopy"])
    assert set(rest.kinds) == {""}
    assert not rest.interfered.any()
    assert len(rest.matrix) == (whole.kinds == "").sum()


def test_quadratic_terms_are_found_where_they_are() -> None:
    random = np.random.default_rng(0)
    terms = np.concatenate([random.random((400, 3)), np.ones((400, 1))], axis=1)
    cpu = 0.2 + 0.5 * terms[:, 1] ** 2 + 0.3 * terms[:, 0] * terms[:, 2]
    law = np.concatenate([terms, cpu[:, None]], axis=1)
    assert quadratic(law).shape == (400, 11)
    part = learn_of(law)
    laws = compare_laws([part], [part])
    assert laws["quadratic"]["r2"] > 0.99 > laws["linear"]["r2"]
    assert laws["quadratic"]["mean_absolute_error"] < laws["linear"]["mean_absolute_error"]


def learn_of(law: Floats) -> Learned:
    nothing = np.zeros(0)
    return Learned(nothing, nothing.astype(bool), nothing.astype(np.int64), law, nothing.astype(np.str_), nothing)


def test_the_report_is_one_file_with_all_figures(trained: tuple[Path, Path, str]) -> None:
    text = trained[1].read_text()
    assert text.startswith("<!doctype html>")
    assert text.count("<svg") == 7
    assert not re.search(r"(src|href)=\"(?!#|data:)", text), "nothing outside the file is needed"
    for words in (
        "Confusion of states",
        "area ",
        "average precision",
        "share of the noises found",
        "share beside a neighbour",
        "expected calibration error",
        "Decision tree",
        "PAAE, %",
        "random forest",
        "with quadratic terms",
    ):
        assert words in text
    assert "felt cause" in text
    again = CliRunner().invoke(commands.detector, ["explain", "--model", str(trained[0]), "--report", str(trained[1])])
    assert again.exit_code == 0
    assert trained[1].read_text() == text, "a report can be made again from the model alone"


def test_curves_are_of_ticks_held_out(trained: tuple[Path, Path, str]) -> None:
    curves = tree.load(trained[0]).metadata["scores"]["curves"]
    assert 0.9 < curves["roc_auc"] <= 1.0
    assert curves["roc"][0] == [0.0, 0.0]
    assert curves["roc"][-1] == [1.0, 1.0]
