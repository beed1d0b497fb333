"""Builds a model from labelled recordings: a tree for each kind of node, the estimator's starting coefficients, and
honest scores of both.

Scores come from cross-validation by recording, never by tick: ticks of a recording resemble each other, so a tree looks
better than it is on ticks of recordings that it has seen. Each held-out recording is replayed through the whole
detector (baselines, tree, state machine), and its Verdicts are compared with the labels.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import slackwater
from slackwater.core.config import DetectorSettings
from slackwater.core.messages import Verdict
from slackwater.detector.classify.evidence import Evidence, counts
from slackwater.detector.classify.tree import (
    BALANCER,
    CLASSES,
    KINDS,
    MAX_DEPTH,
    MONITORED,
    Model,
    Tree,
    model_of,
    plain,
    save,
    undecided,
)
from slackwater.detector.estimator import TERMS
from slackwater.detector.features.columns import Bools, Floats, Ints
from slackwater.detector.features.features import FEATURES
from slackwater.detector.judge import Judge, Tick
from slackwater.detector.recordings.recording import Recording, RecordingError
from slackwater.detector.tail.curves import TooFewRows, compare
from slackwater.detector.tail.data import rows_of
from slackwater.detector.train import levels
from slackwater.detector.train.balancer import seen_from_balancer
from slackwater.detector.train.replay import play
from slackwater.detector.train.scores import Scores, of_noises, score

SETTLE_S = 1.0
"""Ticks this soon after a label's edges are not learnt from: the onset's own tick is half calm, and queues drain."""
MIN_LEAF_SHARE = 0.01
"""Least share of the ticks' weight in a leaf. Each class has half of the weight."""
PRUNE = 2e-4
"""Splits that lower the impurity by less are left out, since they carry no information."""
MAX_FOLDS = 10
MIN_TICKS = 50
"""Ticks of each class that a training needs."""
RIDGE = 1e-3
MOST_SECONDS = 4000
"""The most seconds, evenly spread, on which estimators of p95 are compared: some take time that grows by the square."""

OUTSIDE = KINDS[BALANCER]
T = TypeVar("T")
Progress = Callable[[str, int, int], None]
"""Called with (a name of the work, number of steps that are done, number of all steps)."""


class TrainingError(Exception):
    """A model cannot be trained on recordings. The text says what they lack."""


@dataclass(frozen=True)
class Learned:
    """The training data of one recording."""

    matrix: Floats
    """(ticks, features)."""
    interfered: Bools
    node_kinds: Ints
    """(ticks,) index in `KINDS`."""
    law: Floats
    """(ticks, 5) the estimator's terms and the CPU that followed."""
    kinds: np.ndarray[Any, np.dtype[np.str_]]
    """(ticks,) the kind of each tick's label; empty where there is none."""
    weights: Floats
    """(ticks,) each tick's weight: the time that its Sample covers, in units of `REFERENCE_S`."""

    def without(self, kinds: Sequence[str]) -> Learned:
        """The data without the ticks of these kinds of label."""
        kept = ~np.isin(self.kinds, list(kinds))
        return self._only(kept)

    def of_kind(self, kind: int) -> Learned:
        """The data of one kind of node."""
        return self._only(self.node_kinds == kind)

    def _only(self, kept: Bools) -> Learned:
        return Learned(
            *(self.matrix[kept], self.interfered[kept], self.node_kinds[kept], self.law),
            *(self.kinds[kept], self.weights[kept]),
        )


def track(items: Sequence[T], step: str, progress: Progress) -> Iterator[T]:
    """The items one by one; `progress` is called before each and at the end."""
    for number, item in enumerate(items):
        progress(step, number, len(items))
        yield item
    progress(step, len(items), len(items))


def learn(recording: Recording) -> Learned:
    """Replays a recording, in which its labels decide which ticks are calm; returns the ticks' features and truth."""
    judge = _judge(recording, undecided())
    ticks: list[Tick] = []
    history: list[Floats] = []
    judge.ticks, judge.estimator.history = ticks, history

    def labels_now(time_unix_s: float) -> None:
        judge.calm_by_label = {node: recording.truth(node, time_unix_s) == "calm" for node in recording.nodes}

    play(recording, judge, labels_now)
    kept = [tick for tick in ticks if _teaches(recording, tick)]
    matrix = np.array([tick.features for tick in kept]).reshape(len(kept), len(FEATURES))
    interfered = np.array([_truth(recording, tick) == "interference" for tick in kept], dtype=bool)
    law = np.concatenate(history) if history else np.zeros((0, len(TERMS) + 1))
    node_kinds = np.array([tick.kind for tick in kept], dtype=np.int64)
    kinds = np.array([recording.kind(tick.sample.node, tick.sample.time_unix_s) for tick in kept], dtype=np.str_)
    weights = counts(np.array([tick.sample.period_s for tick in kept]))
    return Learned(matrix, interfered, node_kinds, law, kinds, weights)


def _judge(recording: Recording, model: Model) -> Judge:
    """A Judge whose Verdicts have no reasons, since nobody reads them here."""
    pools = {sample.pool for sample in recording.samples}
    if len(pools) > 1:
        raise RecordingError(f"{recording.path}: holds Samples of several pools: {', '.join(sorted(pools))}")
    judge = Judge.of(pools.pop(), DetectorSettings(), model)
    judge.explainer = None
    return judge


def _truth(recording: Recording, tick: Tick) -> str:
    return recording.truth(tick.sample.node, tick.sample.time_unix_s)


def _teaches(recording: Recording, tick: Tick) -> bool:
    """Whether to learn from a tick: it has requests, its truth is one that the tree classifies, it is away from the
    edges of labels, and neither its own load nor its whole pool explains it."""
    if not tick.has_requests or not tick.by_tree or _truth(recording, tick) not in CLASSES:
        return False
    end = tick.sample.time_unix_s
    begin = end - tick.sample.period_s
    return not any(
        label.node in (tick.sample.node, "*")
        and (
            begin < label.start_unix_s < end
            or label.end_unix_s - tick.sample.period_s < end < label.end_unix_s + SETTLE_S
        )
        for label in recording.labels
    )


def fit_trees(parts: Sequence[Learned]) -> dict[str, Any]:
    """Kind of node with a monitor -> its classifier. Raises TrainingError when every kind lacks ticks of one of the
    classes."""
    classifiers, lacking = {}, []
    for number, kind in enumerate(MONITORED):
        try:
            classifiers[kind] = fit_tree([part.of_kind(number) for part in parts])
        except TrainingError as error:
            lacking.append(f"{kind}: {error}")
    if not classifiers:
        raise TrainingError("; ".join(lacking))
    return classifiers


def fit_tree(parts: Sequence[Learned]) -> Any:
    """A classifier of the ticks. Raises TrainingError with too few of one of the classes."""
    from sklearn.tree import DecisionTreeClassifier

    matrix = np.concatenate([np.zeros((0, len(FEATURES))), *(part.matrix for part in parts)])
    interfered = np.concatenate([np.zeros(0, dtype=bool), *(part.interfered for part in parts)])
    ticks = {"interference": int(interfered.sum()), "calm": int((~interfered).sum())}
    for name, count in ticks.items():
        if count < MIN_TICKS:
            raise TrainingError(
                f"the recordings hold {count} ticks of `{name}` with requests; expected at least {MIN_TICKS}: "
                f"{ticks['calm']} calm, {ticks['interference']} interfered"
            )
    weights = np.concatenate([np.zeros(0), *(part.weights for part in parts)])
    for in_class in (interfered, ~interfered):
        weights[in_class] /= weights[in_class].sum()
    classifier = DecisionTreeClassifier(
        criterion="entropy",
        max_depth=MAX_DEPTH,
        min_weight_fraction_leaf=MIN_LEAF_SHARE,
        ccp_alpha=PRUNE,
        monotonic_cst=[1] * len(FEATURES),
        random_state=0,
    )
    classifier.fit(matrix.astype(np.float32), np.array(CLASSES)[interfered.astype(int)], sample_weight=weights)
    return classifier


def trees_of(classifiers: Mapping[str, Any], count: Callable[[Tree, int], Evidence]) -> dict[str, dict[str, Any]]:
    """Kind of node -> its tree's arrays, as `Tree.of` reads them. `count`: (tree, kind) -> counts of its levels."""
    trees = {}
    for kind, classifier in classifiers.items():
        arrays = plain(classifier)
        trees[kind] = levels.with_levels(arrays, count(Tree.of(arrays), KINDS.index(kind)))
    return trees


def quick_model(name: str, parts: Sequence[Learned]) -> Model:
    """A model for scoring, whose leaves are counted in the ticks that it was fitted to. Raises TrainingError."""

    def count(tree: Tree, kind: int) -> Evidence:
        return counted(tree, [part.of_kind(kind) for part in parts])

    return model_of(name, trees_of(fit_trees(parts), count), fit_law(parts)[0], {})


def counted(tree: Tree, parts: Sequence[Learned]) -> Evidence:
    """Counts of the tree's leaves in these ticks."""
    calm, neighbour = (np.zeros(len(tree.evidence.calm)) for _ in range(2))
    for part in parts:
        level = tree.level[tree.walk(part.matrix)]
        calm += np.bincount(level, part.weights * ~part.interfered, len(calm))
        neighbour += np.bincount(level, part.weights * part.interfered, len(calm))
    return Evidence(tuple(calm.tolist()), tuple(neighbour.tolist()))


def fit_law(parts: Sequence[Learned]) -> tuple[tuple[float, ...], dict[str, float]]:
    """The coefficients of the estimator's law by least squares with a small ridge, and their scores (`law_scores`).

    Raises TrainingError with too few ticks.
    """
    law = _whole(parts)
    if len(law) < MIN_TICKS:
        raise TrainingError(
            f"the recordings hold {len(law)} ticks with CPU, request rate and capacity; expected at least {MIN_TICKS}"
        )
    coefficients = _least_squares(law[:, :-1], law[:, -1])
    return tuple(float(value) for value in coefficients), law_scores(coefficients, law)


def _least_squares(terms: Floats, cpu: Floats) -> Floats:
    """Least squares with a small ridge on all terms but the constant, which is the last one."""
    weights = RIDGE * len(terms) * np.diag((terms != 1.0).any(axis=0).astype(np.float64))
    return np.asarray(
        np.linalg.solve(terms.T @ terms + weights + 1e-9 * np.eye(terms.shape[1]), terms.T @ cpu), dtype=np.float64
    )


def quadratic(law: Floats) -> Floats:
    """(ticks, 11) the law's rows, with the squares and products of its terms added."""
    terms = law[:, :-2]
    first, second = np.triu_indices(terms.shape[1])
    return np.concatenate([terms, terms[:, first] * terms[:, second], law[:, -2:]], axis=1)


def law_scores(coefficients: Sequence[float] | Floats, law: Floats) -> dict[str, float]:
    """R2 and mean absolute error (CPU share) of the law; `law`: (ticks, terms and the CPU that followed)."""
    error = law[:, -1] - law[:, :-1] @ np.asarray(coefficients)
    spread = float(((law[:, -1] - law[:, -1].mean()) ** 2).sum())
    return {
        "r2": round(1.0 - float((error**2).sum()) / spread, 4) if spread > 0 else 0.0,
        "mean_absolute_error": round(float(np.abs(error).mean()), 4),
        "ticks": len(law),
    }


def compare_laws(parts: Sequence[Learned], held: Sequence[Learned]) -> dict[str, dict[str, float]]:
    """Scores on `held` of the law and of a quadratic law, both fitted to `parts`; empty with too few ticks."""
    known, tested = _whole(parts), _whole(held)
    if len(known) < MIN_TICKS or not len(tested):
        return {}
    scores = {}
    for name, expand in {"linear": lambda law: law, "quadratic": quadratic}.items():
        rows = expand(known)
        scores[name] = law_scores(_least_squares(rows[:, :-1], rows[:, -1]), expand(tested))
    return scores


def _whole(parts: Sequence[Learned]) -> Floats:
    """The law's rows without those that have gaps."""
    law = np.concatenate([np.zeros((0, len(TERMS) + 1)), *(part.law for part in parts)])
    return np.asarray(law[np.isfinite(law).all(axis=1)])


def train_model(recordings: Sequence[Recording], out: Path, name: str, trained: str, progress: Progress) -> Model:
    """Trains on recordings and writes the model file. `trained` is the date that goes into its metadata.

    Raises TrainingError, RecordingError, `slackwater.detector.classify.tree.ModelError`, OSError.
    """
    import sklearn
    import skops

    parts = [learn(recording) for recording in track(recordings, "reading features", progress)]
    classifiers = fit_trees(parts)
    first = quick_model(name, parts)
    coefficients, law_fit = fit_law(parts)
    scores = _cross_validate(recordings, parts, progress)
    progress("estimators of p95", 0, 1)
    tail = _compare_tail(recordings)
    progress("estimators of p95", 1, 1)
    importances = {
        kind: {
            feature: round(float(value), 4)
            for feature, value in zip(FEATURES, classifier.feature_importances_, strict=True)
            if value > 0
        }
        for kind, classifier in classifiers.items()
    }
    metadata: dict[str, Any] = {
        "name": name,
        "trained": trained,
        "versions": {
            "slackwater": slackwater.__version__,
            "scikit-learn": sklearn.__version__,
            "skops": skops.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "data": [
            {
                "file": Path(recording.path).name,
                "description": recording.description,
                "seconds": round(recording.seconds, 1),
                "nodes": len(recording.nodes),
                "samples": len(recording.samples),
                "kinds": sorted({label.kind for label in recording.labels}),
            }
            for recording in recordings
        ],
        "ticks": {
            "calm": int(sum((~part.interfered).sum() for part in parts)),
            "interference": int(sum(part.interfered.sum() for part in parts)),
        },
        "scores": {**scores, "law_on_training_data": law_fit, "tail": tail},
        "importances": importances,
    }
    seen = show(recordings, first, progress)
    trees = trees_of(classifiers, lambda tree, kind: levels.evidence(seen, tree, kind))
    for kind, arrays in trees.items():
        arrays["calm"] = levels.calm_sums(seen, Tree.of(arrays), KINDS.index(kind)).as_dict()
    with contextlib.suppress(TrainingError):
        classifiers[OUTSIDE], trees[OUTSIDE] = fit_outside(recordings, trees, coefficients, progress)
    return save(out, {"classifiers": classifiers, "trees": trees, "coefficients": list(coefficients)}, metadata)


def fit_outside(
    recordings: Sequence[Recording],
    of_monitors: dict[str, Any],
    coefficients: Sequence[float],
    progress: Progress,
) -> tuple[Any, dict[str, Any]]:
    """The classifier of servers without a monitor and its tree's arrays, as `Tree.of` reads them.

    `of_monitors`: the arrays of the other trees. Raises TrainingError where the recordings have too little traffic.
    """
    seen = [seen_from_balancer(recording) for recording in recordings]
    parts = [learn(recording).of_kind(BALANCER) for recording in track(seen, OUTSIDE, progress)]
    classifier = fit_tree(parts)
    first = trees_of({OUTSIDE: classifier}, lambda tree, _: counted(tree, parts))
    ticks = show(seen, model_of("first", {**of_monitors, **first}, coefficients, {}), progress)
    trees = trees_of({OUTSIDE: classifier}, lambda tree, kind: levels.evidence(ticks, tree, kind))
    arrays = trees[OUTSIDE]
    arrays["calm"] = levels.calm_sums(ticks, Tree.of(arrays), BALANCER).as_dict()
    return classifier, arrays


def _cross_validate(recordings: Sequence[Recording], parts: Sequence[Learned], progress: Progress) -> dict[str, Any]:
    """Scores on held-out recordings of trees that were trained on the others."""
    folds = min(len(recordings), MAX_FOLDS)
    scores = Scores()
    laws: list[dict[str, dict[str, float]]] = []
    held_says: list[Floats] = []
    held_truths: list[Bools] = []
    scored = 0
    for fold in track(range(folds), "cross-validation", progress):
        held = [number for number in range(len(recordings)) if number % folds == fold]
        rest = [parts[number] for number in range(len(recordings)) if number % folds != fold]
        try:
            model = quick_model("fold", rest)
        except TrainingError:
            # Too little is left without the held-out recordings; `scored` counts the others.
            continue
        for number in held:
            scores.merge(replay(recordings[number], model))
            laws.append(compare_laws(rest, [parts[number]]))
            held_says.append(_says(model, parts[number]))
            held_truths.append(parts[number].interfered)
            scored += 1
    return {
        "cross_validation": f"by recording, {folds} folds, {scored} of {len(recordings)} recordings scored",
        "tree": scores.as_dict() if scored else None,
        "kinds_left_out": _leave_kinds_out(recordings, parts, progress),
        "law": mean_laws(laws),
        "curves": _curves(held_says, held_truths),
    }


def _says(model: Model, part: Learned) -> Floats:
    """(ticks,) the log-likelihood ratio of each tick's leaf."""
    ratios = np.zeros(len(part.matrix))
    for kind, tree in enumerate(model.trees):
        rows = np.flatnonzero(part.node_kinds == kind)
        ratios[rows] = tree.evidence.ratios[tree.level[tree.walk(part.matrix[rows])]]
    return ratios


def _compare_tail(recordings: Sequence[Recording]) -> dict[str, Any] | None:
    """Scores and learning curves of the estimators of p95; None with too few seconds of servers with requests."""
    rows = rows_of(recordings)
    some = np.linspace(0, len(rows.p95_ms) - 1, min(len(rows.p95_ms), MOST_SECONDS)).astype(np.int64)
    try:
        return compare(rows.only(some))
    except TooFewRows:
        return None


def mean_laws(laws: Sequence[dict[str, dict[str, float]]]) -> dict[str, Any] | None:
    """Mean of the folds' scores (`compare_laws`) of the law, and of a law with quadratic terms; None without any."""
    scored = [scores for scores in laws if scores]
    if not scored:
        return None
    linear, quadratic = (
        {
            key: round(float(np.mean([scores[name][key] for scores in scored])), 4)
            for key in ("r2", "mean_absolute_error")
        }
        for name in ("linear", "quadratic")
    )
    return {**linear, "quadratic": quadratic}


def _curves(says: Sequence[Floats], truths: Sequence[Bools]) -> dict[str, Any] | None:
    """ROC and precision/recall of held-out ticks by their leaves' ratios; None without ticks of both classes."""
    from sklearn import metrics

    share, truth = np.concatenate([np.zeros(0), *says]), np.concatenate([np.zeros(0, dtype=bool), *truths])
    if truth.all() or not truth.any():
        return None
    false, true, _ = metrics.roc_curve(truth, share)
    precision, recall, _ = metrics.precision_recall_curve(truth, share)
    return {
        "roc": _points(false, true),
        "roc_auc": round(float(metrics.roc_auc_score(truth, share)), 4),
        "precision_recall": _points(recall[::-1], precision[::-1]),
        "average_precision": round(float(metrics.average_precision_score(truth, share)), 4),
    }


def _points(first: Floats, second: Floats) -> list[tuple[float, float]]:
    return [(round(float(x), 4), round(float(y), 4)) for x, y in zip(first, second, strict=True)]


def pairs_of(kinds: Sequence[str]) -> list[tuple[str, ...]]:
    """The kinds in pairs, each once. The last of an odd number is paired with the first."""
    pairs = [tuple(kinds[number : number + 2]) for number in range(0, len(kinds), 2)]
    return [pair if len(pair) == 2 else (*pair, kinds[0]) for pair in pairs]


def _leave_kinds_out(recordings: Sequence[Recording], parts: Sequence[Learned], progress: Progress) -> dict[str, Any]:
    """Noise kind -> scores of its noises by trees that were trained without it and one other kind.

    Empty with less than three kinds, since nothing would be left to train on.
    """
    kinds = sorted(
        {label.kind for recording in recordings for label in recording.labels if label.state == "interference"}
    )
    if len(kinds) < 3:
        return {}
    scores_by_kind: dict[str, Any] = {}
    for pair in track(pairs_of(kinds), "two kinds left out", progress):
        rest = [part.without(pair) for part in parts]
        try:
            model = quick_model("fold", rest)
        except TrainingError:
            continue
        scores = Scores()
        for recording in recordings:
            if any(label.kind in pair for label in recording.labels):
                scores.merge(replay(recording, model))
        for kind in pair:
            if kind not in scores_by_kind:
                noises = [noise for noise in scores.noises if noise.kind == kind]
                felt = of_noises([noise for noise in noises if noise.felt])
                scores_by_kind[kind] = {
                    **of_noises(noises),
                    "felt": felt,
                    "left_out_with": [other for other in pair if other != kind],
                }
    return scores_by_kind


def replay(recording: Recording, model: Model) -> Scores:
    """Scores of the whole detector on a recording."""
    return score(recording, judged(recording, model))


def judged(recording: Recording, model: Model) -> list[Verdict]:
    """The Verdicts of the whole detector on a recording, without their reasons."""
    return play(recording, _judge(recording, model))


def show(recordings: Sequence[Recording], model: Model, progress: Progress) -> list[levels.Shown]:
    """The nodes' ticks when recordings are replayed."""
    nodes = []
    for recording in track(recordings, "counting evidence", progress):
        judge = _judge(recording, model)
        judge.ticks = []
        play(recording, judge)
        nodes += levels.shown(recording, judge.ticks)
    return nodes
