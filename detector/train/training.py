"""Builds a model from labelled recordings: a tree for each kind of node, the estimator's starting coefficients, and
honest scores of both."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import slackwater
from slackwater.detector.classify.tree import BALANCER, KINDS, Model, Tree, model_of, save
from slackwater.detector.features.features import FEATURES
from slackwater.detector.recordings.recording import Recording
from slackwater.detector.train import levels
from slackwater.detector.train.balancer import seen_from_balancer
from slackwater.detector.train.cross_validation import compare_tail, cross_validate
from slackwater.detector.train.fit import counted, fit_law, fit_tree, fit_trees, quick_model, trees_of
from slackwater.detector.train.learned import Progress, TrainingError, learn, show, track

OUTSIDE = KINDS[BALANCER]


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
    scores = cross_validate(recordings, parts, progress)
    progress("estimators of p95", 0, 1)
    tail = compare_tail(recordings)
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
        classifiers[OUTSIDE], trees[OUTSIDE] = fit_kind(recordings, OUTSIDE, trees, coefficients, progress)
    return save(out, {"classifiers": classifiers, "trees": trees, "coefficients": list(coefficients)}, metadata)


def fit_kind(
    recordings: Sequence[Recording],
    kind: str,
    others: dict[str, Any],
    coefficients: Sequence[float],
    progress: Progress,
) -> tuple[Any, dict[str, Any]]:
    """The classifier of one kind of node, a word of `KINDS`, and its tree's arrays, as `Tree.of` reads them.

    `others`: the arrays of the other trees. The balancer's tree is trained on what a balancer sees of the recordings.
    Raises TrainingError where the recordings have too few ticks of such nodes.
    """
    number = KINDS.index(kind)
    seen = [seen_from_balancer(recording) for recording in recordings] if number == BALANCER else recordings
    parts = [learn(recording).of_kind(number) for recording in track(seen, kind, progress)]
    classifier = fit_tree(parts)
    first = trees_of({kind: classifier}, lambda tree, _: counted(tree, parts))
    ticks = show(seen, model_of("first", {**others, **first}, coefficients, {}), progress)
    trees = trees_of({kind: classifier}, lambda tree, at: levels.evidence(ticks, tree, at))
    arrays = trees[kind]
    arrays["calm"] = levels.calm_sums(ticks, Tree.of(arrays), number).as_dict()
    return classifier, arrays
