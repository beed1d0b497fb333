"""Fits a tree for each kind of node, and the estimator's law, to ticks whose truth is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from slackwater.detector.classify.evidence import Evidence
from slackwater.detector.classify.tree import CLASSES, KINDS, MAX_DEPTH, MONITORED, Model, Tree, model_of, plain
from slackwater.detector.estimator import TERMS
from slackwater.detector.features.columns import Floats
from slackwater.detector.features.features import FEATURES
from slackwater.detector.train import levels
from slackwater.detector.train.learned import Learned, TrainingError

MIN_LEAF_SHARE = 0.01
"""Least share of the ticks' weight in a leaf. Each class has half of the weight."""
PRUNE = 2e-4
"""Splits that lower the impurity by less are left out, since they carry no information."""
MIN_TICKS = 50
"""Ticks of each class that a training needs."""
RIDGE = 1e-3


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


def _whole(parts: Sequence[Learned]) -> Floats:
    """The law's rows without those that have gaps."""
    law = np.concatenate([np.zeros((0, len(TERMS) + 1)), *(part.law for part in parts)])
    return np.asarray(law[np.isfinite(law).all(axis=1)])
