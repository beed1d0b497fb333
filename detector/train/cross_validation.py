"""Scores of held-out recordings.

They are by recording, never by tick: ticks of a recording resemble each other, so a tree looks better than it is on
ticks of recordings that it has seen. Each held-out recording is replayed through the whole detector (baselines, tree,
state machine), and its Verdicts are compared with the labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from slackwater.detector.classify.tree import Model
from slackwater.detector.features.columns import Bools, Floats
from slackwater.detector.recordings.recording import Recording
from slackwater.detector.tail.curves import TooFewRows, compare
from slackwater.detector.tail.data import rows_of
from slackwater.detector.train.fit import compare_laws, mean_laws, quick_model
from slackwater.detector.train.learned import Learned, Progress, TrainingError, replay, track
from slackwater.detector.train.scores import Scores, of_noises

MAX_FOLDS = 10
MOST_SECONDS = 4000
"""The most seconds, evenly spread, on which estimators of p95 are compared: some take time that grows by the square."""


def cross_validate(recordings: Sequence[Recording], parts: Sequence[Learned], progress: Progress) -> dict[str, Any]:
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


def compare_tail(recordings: Sequence[Recording]) -> dict[str, Any] | None:
    """Scores and learning curves of the estimators of p95; None with too few seconds of servers with requests."""
    rows = rows_of(recordings)
    some = np.linspace(0, len(rows.p95_ms) - 1, min(len(rows.p95_ms), MOST_SECONDS)).astype(np.int64)
    try:
        return compare(rows.only(some))
    except TooFewRows:
        return None


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
