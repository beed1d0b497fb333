"""Training: the tree and the estimator from recordings, honest scores, and model files refused when they must be."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skops.io
from click.testing import CliRunner
from sklearn.tree import DecisionTreeClassifier

from slackwater.controller.cli import detector_commands as commands
from slackwater.core.messages import Verdict
from slackwater.detector.classify import tree
from slackwater.detector.estimator import START, TERMS
from slackwater.detector.features.features import FEATURES
from slackwater.detector.judge import Judge
from slackwater.detector.recordings.recording import read
from slackwater.detector.train.learned import TrainingError, learn
from slackwater.detector.train.replay import batches, play
from slackwater.detector.train.scores import score
from slackwater.detector.train.training import train_model
from tests.support.judges import new_judge
from tests.support.synthetic_cluster import Cluster
from tests.support.synthetic_recording import make

Content = dict[str, Any]


def quiet(_what: str, _done: int, _of: int) -> None:
    """No progress."""


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recordings")
    for seed in range(3):
        make(folder / f"r{seed}.parquet", seed)
    return folder


@pytest.fixture(scope="module")
def model_file(recordings: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "made.skops"
    parts = [read(file) for file in sorted(recordings.glob("*.parquet"))]
    train_model(parts, path, "made", "2026-11-21", quiet)
    return path


def test_a_trained_model_says_what_it_was_trained_on_and_how_well_it_does_on_held_out_recordings(
    model_file: Path,
) -> None:
    model = tree.load(model_file)
    about = model.metadata
    assert (model.name, about["trained"]) == ("made", "2026-11-21")
    assert [part["description"] for part in about["data"]] == [f"synthetic, seed {seed}" for seed in range(3)]
    assert set(about["versions"]) >= {"slackwater", "scikit-learn", "skops", "numpy"}
    assert "3 of 3 recordings scored" in about["scores"]["cross_validation"]
    held_out = about["scores"]["tree"]
    assert (held_out["noises"], held_out["missed"], held_out["false_episodes"]) == (6, 0, 0)
    assert held_out["detection_delay_p95_s"] < 2.0
    assert held_out["states"]["interference"]["recall"] > 0.8
    assert held_out["states"]["interference"]["precision"] > 0.8
    assert len(model.coefficients) == len(TERMS)
    assert about["scores"]["law"]["mean_absolute_error"] < 0.2


def test_random_trees_are_walked_as_scikit_learn_does() -> None:
    random = np.random.default_rng(1)
    for seed in range(10):
        matrix = random.normal(0, 1, (500, len(FEATURES))).astype(np.float32)
        kinds = np.array(tree.CLASSES)[(matrix[:, seed % len(FEATURES)] + random.normal(0, 0.5, 500) > 0).astype(int)]
        classifier = DecisionTreeClassifier(max_depth=tree.MAX_DEPTH, random_state=seed).fit(matrix, kinds)
        ours = tree.Tree.of(tree.plain(classifier))
        leaves = ours.walk(matrix.astype(np.float64))
        assert leaves.tolist() == classifier.apply(matrix).tolist()
        shares = classifier.predict_proba(matrix)[:, 1]
        assert ours.interference[leaves] == pytest.approx(shares)
        assert (np.diff(shares[np.argsort(ours.level[leaves])]) >= 0).all(), "levels are in the order of the shares"


@pytest.mark.parametrize("shipped", [True, False])
def test_more_of_anything_never_argues_against_a_neighbour(model_file: Path, shipped: bool) -> None:
    random = np.random.default_rng(3)
    less = random.exponential(1.5, (3000, len(FEATURES)))
    more = less + random.exponential(1.0, less.shape) * (random.random(less.shape) < 0.4)
    for fitted in tree.load(tree.SHIPPED if shipped else model_file).trees:
        ratios = fitted.evidence.ratios
        assert (np.diff(ratios) > 0).all()
        assert (ratios[fitted.level[fitted.walk(more)]] >= ratios[fitted.level[fitted.walk(less)]]).all()


def test_a_verdict_shows_the_trees_path_in_words_with_values(model_file: Path) -> None:
    judge = Judge("web", stale_after_s=1.0, calm_dwell_s=2.0, model=tree.load(model_file))
    cluster, verdicts = Cluster(seed=11), []
    for now_s, samples in cluster.run(
        12.0, lambda at_s: setattr(cluster.hosts["host1"], "neighbour", 0.9 * (at_s > 6))
    ):
        verdicts += judge.tick(now_s, samples)
    last: Verdict = [verdict for verdict in verdicts if verdict.node == "host1"][-1]
    assert (last.state, last.model) == ("interference", "made")
    assert any("x its" in line and "cause > " in line for line in last.path)
    assert {verdict.state for verdict in verdicts if verdict.node != "host1"} == {"calm"}


def test_a_node_without_run_delay_is_judged_by_what_it_has(model_file: Path) -> None:
    judge = Judge("web", stale_after_s=1.0, calm_dwell_s=2.0, model=tree.load(model_file))
    cluster, all_verdicts = Cluster(seed=11, sched=False, steal=True), []
    for now_s, samples in cluster.run(
        14.0, lambda at_s: setattr(cluster.hosts["host1"], "neighbour", 0.9 * (at_s > 7))
    ):
        all_verdicts += judge.tick(now_s, samples)
    verdicts = [verdict for verdict in all_verdicts if verdict.node == "host1"]
    assert verdicts[-1].state == "interference"
    assert not any("run delay" in line for line in verdicts[-1].path)


def test_a_replay_gives_the_same_verdicts_each_time_and_scores_them(recordings: Path) -> None:
    recording = read(recordings / "r0.parquet")

    def once() -> list[Verdict]:
        return play(recording, new_judge())

    verdicts = once()
    assert verdicts == once()
    assert len(verdicts) == len(recording.samples) == sum(len(batch) for _, batch in batches(recording))
    scores = score(recording, verdicts).as_dict()
    assert (scores["noises"], scores["missed"]) == (2, 0)
    assert 0.0 < scores["detection_delay_median_s"] < 2.0
    everything_calm = [Verdict(**{**_fields(verdict), "state": "calm"}) for verdict in verdicts]
    blind = score(recording, everything_calm).as_dict()
    assert (blind["missed"], blind["states"]["interference"]["recall"]) == (2, 0.0)
    alarm = [Verdict(**{**_fields(verdict), "state": "interference"}) for verdict in verdicts]
    loud = score(recording, alarm).as_dict()
    assert loud["false_episodes"] == 3
    assert loud["states"]["calm"]["recall"] == 0.0


def _fields(verdict: Verdict) -> dict[str, Any]:
    return {name: getattr(verdict, name) for name in verdict.__struct_fields__}


def test_ticks_of_a_server_without_requests_and_at_the_edges_of_labels_teach_nothing(
    recordings: Path, tmp_path: Path
) -> None:
    recording = read(recordings / "r0.parquet")
    whole_s = sum(label.end_unix_s - label.start_unix_s for label in recording.labels)
    taught = int(learn(recording).interfered.sum())
    assert 0.8 * whole_s / 0.2 < taught < whole_s / 0.2, "nearly all of the noise, without its first and last tick"
    make(tmp_path / "drained.parquet", 0, rps_when_loud=0.0)
    drained = learn(read(tmp_path / "drained.parquet"))
    assert drained.interfered.sum() < 0.2 * taught


def test_too_little_of_a_class_is_refused_with_the_counts(tmp_path: Path) -> None:
    make(tmp_path / "calm.parquet", 0, noise=0.0)
    with pytest.raises(TrainingError, match="0 ticks of `interference` with requests; expected at least"):
        train_model([read(tmp_path / "calm.parquet")], tmp_path / "m.skops", "m", "", quiet)
    assert not (tmp_path / "m.skops").exists()


def test_one_recording_trains_but_is_not_scored_on_itself(tmp_path: Path) -> None:
    make(tmp_path / "one.parquet", 0)
    model = train_model([read(tmp_path / "one.parquet")], tmp_path / "m.skops", "m", "", quiet)
    assert model.metadata["scores"]["tree"] is None
    assert "0 of 1 recordings scored" in model.metadata["scores"]["cross_validation"]
    assert "not scored: too few recordings" in commands.describe(model)


def rewritten(model_file: Path, path: Path, change: Callable[[Content], None]) -> None:
    """A model file with something in its arrays or metadata changed."""
    with zipfile.ZipFile(model_file) as good, zipfile.ZipFile(path, "w") as bad:
        content = json.loads(good.read(tree.PLAIN))
        content["metadata"] = json.loads(content["metadata"])
        change(content)
        content["metadata"] = json.dumps(content["metadata"])
        bad.writestr(tree.PLAIN, json.dumps(content))


def other_features(content: Content) -> None:
    content["metadata"]["features"] = ["phase_of_the_moon", *FEATURES[1:]]


def other_format(content: Content) -> None:
    content["metadata"]["format"] = 99


def no_trees(content: Content) -> None:
    content["trees"] = {}


def too_deep(content: Content) -> None:
    matrix = np.random.default_rng(0).random((200, len(FEATURES))).astype(np.float32)
    kinds = np.array(tree.CLASSES)[np.random.default_rng(1).integers(0, 2, 200)]
    content["trees"]["cgroup"] = tree.plain(DecisionTreeClassifier(max_depth=9).fit(matrix, kinds))


def wrong_coefficients(content: Content) -> None:
    content["coefficients"] = [1.0, float("nan"), 0.0, 0.0]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (other_features, r"other features than this program has \(phase_of_the_moon\): train it again"),
        (other_format, "format 99; this program reads format 2"),
        (no_trees, "the model has no tree for a cgroup or machine"),
        (too_deep, r"the tree is \d+ deep; expected 0 to 6"),
        (wrong_coefficients, "expected 4 coefficients"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_in_words(
    model_file: Path, tmp_path: Path, change: Callable[[Content], None], says: str
) -> None:
    path = tmp_path / "bad.skops"
    rewritten(model_file, path, change)
    with pytest.raises(tree.ModelError, match=says) as caught:
        tree.load(path)
    assert str(path) in str(caught.value)


def shorter(arrays: Content) -> None:
    arrays["threshold"] = arrays["threshold"][:-1]


def words_for_numbers(arrays: Content) -> None:
    arrays["left"] = ["one"] * len(arrays["left"])


def endless_number(arrays: Content) -> None:
    arrays["right"][0] = 10**30


def column_that_is_not_there(arrays: Content) -> None:
    arrays["feature"][0] = len(FEATURES)


def cats_and_dogs(arrays: Content) -> None:
    arrays["classes"] = ["cat", "dog"]


def nothing(arrays: Content) -> None:
    arrays.clear()


def level_that_is_not_there(arrays: Content) -> None:
    arrays["level"] = [99 if level >= 0 else -1 for level in arrays["level"]]


def less_than_no_time(arrays: Content) -> None:
    arrays["evidence"]["calm"][0] = -1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (shorter, "the tree's arrays differ in length"),
        (words_for_numbers, "holds no fitted decision tree"),
        (endless_number, "holds no fitted decision tree"),
        (column_that_is_not_there, "splits on a feature that there is not"),
        (cats_and_dogs, "tells cat, dog apart; expected calm, interference"),
        (nothing, "holds no fitted decision tree"),
        (level_that_is_not_there, "of levels that there are not"),
        (less_than_no_time, "expected counts of at least 0"),
    ],
)
def test_arrays_that_are_no_tree_are_refused_in_words(
    model_file: Path, tmp_path: Path, change: Callable[[Content], None], says: str
) -> None:
    path = tmp_path / "bad.skops"
    rewritten(model_file, path, lambda content: change(content["trees"]["cgroup"]))
    with pytest.raises(tree.ModelError, match=says) as caught:
        tree.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("shipped", [True, False])
def test_the_arrays_in_a_model_file_decide_as_scikit_learns_trees_do(model_file: Path, shipped: bool) -> None:
    path = tree.SHIPPED if shipped else model_file
    classifiers = skops.io.load(path, trusted=tree.REVIEWED)["classifiers"]
    assert list(classifiers) == (["cgroup", "machine", "balancer"] if shipped else ["cgroup", "balancer"])
    random = np.random.default_rng(2)
    model = tree.load(path)
    for kind, classifier in classifiers.items():
        matrix = random.exponential(1.5, (4000, len(FEATURES)))
        at_edge = classifier.tree_.threshold[classifier.tree_.feature >= 0]
        matrix[: len(at_edge), :] = at_edge[:, None]
        ours = model.trees[tree.KINDS.index(kind)]
        leaves, asked = ours.walk(matrix), matrix.astype(np.float32)
        assert leaves.tolist() == classifier.apply(asked).tolist()
        assert len(set(leaves.tolist())) > 1
        assert ours.interference[leaves] == pytest.approx(classifier.predict_proba(asked)[:, 1], abs=1e-12)


def test_a_model_file_of_an_earlier_program_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "older.skops"
    skops.io.dump({"tree": [1.0], "coefficients": list(START), "metadata": "{}"}, path)
    with pytest.raises(tree.ModelError, match="no trees as arrays, as those of earlier programs: train it again"):
        tree.load(path)


def test_damaged_and_foreign_files_are_refused_in_words(model_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.skops"
    for content in (b"", b"no zip at all", model_file.read_bytes()[:500]):
        path.write_bytes(content)
        with pytest.raises(tree.ModelError, match=r"not a model file \(expected one that `slackwater train` wrote\)"):
            tree.load(path)
    with zipfile.ZipFile(path, "w") as other:
        other.writestr("readme.txt", "hello")
    with pytest.raises(tree.ModelError, match="no trees as arrays"):
        tree.load(path)
    with pytest.raises(tree.ModelError, match="cannot be read"):
        tree.load(tmp_path / "none.skops")


def test_a_tree_whose_nodes_point_nowhere_is_refused(model_file: Path) -> None:
    good = tree.load(model_file).trees[tree.CGROUP]
    fields = {name: getattr(good, name) for name in good.__dataclass_fields__}
    for name, value in (("left", 99), ("right", 0), ("feature", len(FEATURES))):
        bad = {**fields, name: fields[name].copy()}
        bad[name][0] = value
        with pytest.raises(tree.ModelError, match=r"do not form a tree|a feature that there is not"):
            tree.Tree(**bad)._check()


def test_the_commands_train_and_explain(recordings: Path, tmp_path: Path) -> None:
    out, report = tmp_path / "cli.skops", tmp_path / "report.txt"
    run = CliRunner().invoke(commands.train, [str(recordings), "--out", str(out), "--report", str(report)])
    assert run.exit_code == 0, run.output
    for words in (
        "Decision tree of nodes that are a cgroup",
        "Scores (by recording, 3 folds",
        "Load estimator",
        "r1.parquet: synthetic, seed 1",
    ):
        assert words in run.output
        assert words in report.read_text()
    run = CliRunner().invoke(commands.detector, ["explain", "--model", str(out)])
    assert run.exit_code == 0
    assert "cause up to" in run.output
    run = CliRunner().invoke(commands.detector, ["explain", "--model", str(out), "--json"])
    assert json.loads(run.output)["name"] == "cli"


def test_the_commands_refuse_in_words_and_write_nothing(recordings: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_text("no")
    out = tmp_path / "m.skops"
    for data, says in (
        ([tmp_path / "bad.parquet"], "bad.parquet"),
        ([recordings, tmp_path / "bad.parquet"], "bad.parquet"),
        ([tmp_path / "none"], "does not exist"),
    ):
        run = CliRunner().invoke(commands.train, [*map(str, data), "--out", str(out)])
        assert run.exit_code != 0
        assert says in run.output
    (tmp_path / "empty").mkdir()
    run = CliRunner().invoke(commands.train, [str(tmp_path / "empty"), "--out", str(out)])
    assert "there is no *.parquet in this folder" in run.output
    assert not out.exists()
    run = CliRunner().invoke(commands.detector, ["explain", "--model", str(tmp_path / "bad.parquet")])
    assert run.exit_code == 1
    assert "not a model file" in run.output
