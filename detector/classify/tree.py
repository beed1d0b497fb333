"""The decision trees: trained with scikit-learn, walked here as arrays, stored with skops (never pickle).

There is a tree for each kind of node, since neighbours show in different signals. A cgroup's neighbours are in its
kernel, and make it wait in its run queue. A machine's neighbours are outside. The cost of its requests rises, and so do
stolen time and late wake-ups, while its own run queue tells nothing. A server without a monitor shows nothing but its
requests, as the balancer sees them. The trees are monotonic: the higher a feature, the more it speaks for a neighbour.

A leaf says how likely a neighbour is, as a log-likelihood ratio (`slackwater.detector.classify.evidence`). Leaves are
pooled into levels, so that a leaf with a larger share of a neighbour's ticks never says less (the
pool-adjacent-violators algorithm, as in isotonic regression).

A model file has the trees twice: as scikit-learn's objects, for people who train and examine, and as plain arrays in
JSON (`PLAIN`). The running detector reads the arrays alone, so it loads neither scikit-learn nor scipy.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from slackwater.core.files import bytes_of, write_whole
from slackwater.detector.classify.evidence import QUIET, CalmSums, Evidence
from slackwater.detector.estimator import START, TERMS
from slackwater.detector.features.columns import Floats, Ints
from slackwater.detector.features.features import FEATURES, Frame
from slackwater.detector.features.history import in_own_queue

FORMAT = 2
MAX_DEPTH = 6
CLASSES = ("calm", "interference")
KINDS = ("cgroup", "machine", "balancer")
"""The kinds of nodes. `balancer`: a server without a monitor, seen from the balancer."""
CGROUP, MACHINE, BALANCER = range(len(KINDS))
MONITORED = KINDS[:BALANCER]
EXPECTED = "expected one that `slackwater train` wrote"
SHIPPED = Path(__file__).parent.parent / "models" / "start.skops"
PLAIN = "slackwater.json"
"""The member of the model file (a zip archive) with the trees as arrays, the coefficients and the metadata."""
REVIEWED = ["sklearn.tree._tree.Tree"]
"""The only type in a model that skops does not trust by itself: scikit-learn looks nodes up by its numbers without
checking them. Here it never does: `Tree` copies the arrays, checks them, and walks the copies."""


class ModelError(Exception):
    """A model cannot be used. The text says which file, what is wrong and what was expected."""


class FeatureLimits(NamedTuple):
    """The limits of a feature on the path to a leaf; None: it has none on that side."""

    feature: str
    above: float | None
    up_to: float | None


@dataclass(frozen=True)
class Tree:
    """A fitted DecisionTreeClassifier as arrays with an entry for each node of the tree; leaves have `left` -1."""

    left: Ints
    right: Ints
    feature: Ints
    threshold: Floats
    interference: Floats
    """Share of class `interference` among a node's training ticks, with both classes weighted alike."""
    level: Ints
    """Index of each leaf's level in `evidence`; -1 for other nodes."""
    evidence: Evidence
    calm: CalmSums

    @classmethod
    def of(cls, arrays: Mapping[str, Any], features: Sequence[str] = FEATURES) -> Tree:
        """The tree in a result of `plain`, whose columns are `features`, all of them in `FEATURES`.

        So a tree can still be used when the program has more features than the tree was trained on. Raises ModelError
        for another kind of tree; KeyError, TypeError or ValueError for anything but arrays.
        """
        classes = tuple(str(name) for name in arrays["classes"])
        if classes != CLASSES:
            raise ModelError(f"the tree tells {', '.join(classes)} apart; expected {', '.join(CLASSES)}")
        if arrays["features"] != len(features):
            raise ModelError(f"the tree wants {arrays['features']} features; expected {len(features)}")
        left, right, split_on, level = (
            np.array(arrays[name], dtype=np.int64) for name in ("left", "right", "feature", "level")
        )
        threshold, interference = (np.array(arrays[name], dtype=np.float64) for name in ("threshold", "interference"))
        columns = (left, right, split_on, threshold, interference, level)
        if any(column.shape != (len(left),) for column in columns):
            raise ModelError("the tree's arrays differ in length")
        if (split_on[left >= 0] >= len(features)).any():
            raise ModelError("the tree splits on a feature that there is not")
        column = np.array([FEATURES.index(feature) for feature in features], dtype=np.int64)
        feature = np.where(split_on >= 0, column[np.clip(split_on, 0, len(features) - 1)], split_on)
        evidence, calm = Evidence.of(arrays["evidence"]), CalmSums.of(arrays["calm"])
        tree = cls(left, right, feature, threshold, interference, level, evidence, calm)
        tree._check()
        return tree

    def _check(self) -> None:
        """Checks all numbers of nodes and features before anything is looked up by them: a file may say anything.

        Raises ModelError.
        """
        count = len(self.left)
        parents = np.arange(count)
        inner = self.left >= 0
        for child in (self.left, self.right):
            if (child >= count).any() or (child[inner] <= parents[inner]).any() or (child[~inner] != -1).any():
                raise ModelError("the tree's nodes do not form a tree")
        if ((self.feature[inner] < 0) | (self.feature[inner] >= len(FEATURES))).any():
            raise ModelError("the tree splits on a feature that there is not")
        levels = len(self.evidence.neighbour)
        if ((self.level[~inner] < 0) | (self.level[~inner] >= levels)).any() or (self.level[inner] != -1).any():
            raise ModelError(f"the tree's leaves are of levels that there are not; expected 0 to {levels - 1}")
        depth = np.zeros(count, dtype=np.int64)
        for node in np.flatnonzero(inner):
            depth[[self.left[node], self.right[node]]] = depth[node] + 1
        if count == 0 or depth.max() > MAX_DEPTH:
            raise ModelError(f"the tree is {depth.max(initial=0)} deep; expected 0 to {MAX_DEPTH}")

    def walk(self, matrix: Floats) -> Ints:
        """(M,) number of the leaf of each row of `matrix`, (M, features)."""
        # Single precision, as in scikit-learn: otherwise the two would differ at the edges.
        values = matrix.astype(np.float32)
        nodes = np.zeros(len(values), dtype=np.int64)
        rows = np.arange(len(values))
        while (inner := self.left[nodes] >= 0).any():
            go_left = values[rows, np.maximum(self.feature[nodes], 0)] <= self.threshold[nodes]
            nodes = np.where(inner, np.where(go_left, self.left[nodes], self.right[nodes]), nodes)
        return nodes

    @cached_property
    def tested(self) -> dict[int, list[FeatureLimits]]:
        """Leaf -> the features that are tested on the path to it, the cause first.

        Of several splits on a feature only the tightest counts.
        """
        limits_by_leaf: dict[int, list[FeatureLimits]] = {}

        def node(number: int, low: dict[int, float], high: dict[int, float]) -> None:
            if self.left[number] < 0:
                features = sorted(low.keys() | high.keys())
                limits = [FeatureLimits(FEATURES[feature], low.get(feature), high.get(feature)) for feature in features]
                limits_by_leaf[number] = limits
                return
            feature, limit = int(self.feature[number]), float(self.threshold[number])
            node(int(self.left[number]), low, {**high, feature: min(limit, high.get(feature, math.inf))})
            node(int(self.right[number]), {**low, feature: max(limit, low.get(feature, -math.inf))}, high)

        node(0, {}, {})
        return limits_by_leaf

    def rows(self) -> list[dict[str, Any]]:
        """The tree's nodes for JSON: `asks`, `limit`, `below` and `above` (numbers of nodes), or a leaf's `says` with
        its log-likelihood `ratio`."""
        nodes: list[dict[str, Any]] = []
        for number in range(len(self.left)):
            if self.left[number] < 0:
                ratio = self._ratio(number)
                nodes.append({"says": CLASSES[int(ratio > 0.0)], "ratio": round(ratio, 2)})
                continue
            asks, limit = FEATURES[self.feature[number]], float(f"{self.threshold[number]:.4g}")
            nodes.append(
                {"asks": asks, "limit": limit, "below": int(self.left[number]), "above": int(self.right[number])}
            )
        return nodes

    def _ratio(self, leaf: int) -> float:
        return float(self.evidence.ratios[self.level[leaf]])

    def draw(self) -> str:
        """The whole tree as text."""
        lines: list[str] = []

        def node(number: int, indent: str, prefix: str) -> None:
            if self.left[number] < 0:
                ratio = self._ratio(number)
                lines.append(f"{indent}{prefix}{CLASSES[int(ratio > 0.0)]} (log-likelihood ratio {ratio:+.1f})")
                return
            if prefix:
                lines.append(f"{indent}{prefix.rstrip(': ')}:")
                indent += "  "
            name, limit = FEATURES[self.feature[number]], self.threshold[number]
            node(int(self.left[number]), indent, f"{name} up to {limit:.3g}: ")
            node(int(self.right[number]), indent, f"{name} above {limit:.3g}: ")

        node(0, "", "")
        return "\n".join(lines)


def plain(classifier: Any) -> dict[str, Any]:
    """A fitted DecisionTreeClassifier as lists for JSON, with an entry for each node of the tree.

    Each leaf has a level of its own; `feature` has the classifier's column numbers. Raises AttributeError for anything
    but a fitted tree.
    """
    inner = classifier.tree_
    weights = inner.value[:, 0, :]
    interference = weights[:, -1] / weights.sum(axis=1)
    leaves = np.flatnonzero(inner.children_left < 0)
    level = np.full(len(interference), -1)
    level[leaves[np.argsort(interference[leaves], kind="stable")]] = np.arange(len(leaves))
    return {
        "classes": [str(name) for name in classifier.classes_],
        "features": int(classifier.n_features_in_),
        "left": inner.children_left.tolist(),
        "right": inner.children_right.tolist(),
        "feature": inner.feature.tolist(),
        "threshold": inner.threshold.tolist(),
        "interference": interference.tolist(),
        "level": level.tolist(),
        "evidence": Evidence.none(len(leaves)).as_dict(),
        "calm": CalmSums().as_dict(),
    }


@dataclass(frozen=True)
class Answers:
    """The trees' answers about M rows, (M,) each."""

    kind: Ints
    """Index in `KINDS` of the tree that judged the row."""
    leaf: Ints
    says: Floats
    """Log-likelihood ratio of a neighbour."""
    quiet: Floats
    """The lowest log-likelihood ratio of that tree."""


@dataclass(frozen=True)
class Model:
    """The trees and the estimator's starting coefficients, with their training data's description."""

    name: str
    trees: tuple[Tree, ...]
    """By kind of node, as `KINDS`. A tree that was trained without the other kind of monitor judges both."""
    coefficients: tuple[float, ...]
    metadata: dict[str, Any]
    """`name`, `trained` (date), `versions`, `data` (recordings with their descriptions), `features`, `scores`, ..."""
    judges_outside: bool = True
    """Whether there is a tree for servers without a monitor. Without it they are not judged."""

    def judge(self, frame: Frame) -> Answers:
        """The answer to each row of the frame, by the tree of its kind of node."""
        kind = kinds_of(frame)
        leaf = np.zeros(len(kind), dtype=np.int64)
        says, quiet = np.zeros(len(kind)), np.zeros(len(kind))
        for number, tree in enumerate(self.trees):
            rows = np.flatnonzero(kind == number)
            leaf[rows] = tree.walk(frame.matrix[rows])
            ratios = tree.evidence.ratios
            says[rows], quiet[rows] = ratios[tree.level[leaf[rows]]], ratios[QUIET]
        return Answers(kind, leaf, says, quiet)


def undecided() -> Model:
    """A model that knows nothing: no Sample says anything. It is for the first replay of a training."""
    return Model("undecided", (undecided_tree(),) * len(KINDS), START, {})


def undecided_tree() -> Tree:
    """A tree that knows nothing."""
    leaf: Ints = np.array([-1])
    arrays = {"classes": CLASSES, "features": len(FEATURES), "left": leaf, "right": leaf, "feature": leaf}
    values = {"threshold": [0.0], "interference": [0.5], "level": [0]}
    uncounted = {"evidence": Evidence.none(1).as_dict(), "calm": CalmSums().as_dict()}
    return Tree.of({**arrays, **values, **uncounted})


def model_of(
    name: str,
    trees: Mapping[str, Any],
    coefficients: Sequence[float],
    metadata: Mapping[str, Any],
    features: Sequence[str] = FEATURES,
) -> Model:
    """The model with these trees (arrays, by kind of node). Raises as `Tree.of`, and ModelError without any tree."""
    tree_by_kind = {kind: Tree.of(trees[kind], features) for kind in KINDS if kind in trees}
    of_monitors = [tree_by_kind[kind] for kind in MONITORED if kind in tree_by_kind]
    if not of_monitors:
        raise ModelError(f"the model has no tree for a {' or '.join(MONITORED)}")
    stands_in = {**dict.fromkeys(MONITORED, of_monitors[0]), KINDS[BALANCER]: undecided_tree()}
    in_order = tuple(tree_by_kind.get(kind, stands_in[kind]) for kind in KINDS)
    return Model(name, in_order, tuple(coefficients), dict(metadata), KINDS[BALANCER] in tree_by_kind)


def kinds_of(frame: Frame) -> Ints:
    """(M,) index in `KINDS`: `balancer` without a monitor; of the others `cgroup` where the wait in the run queue is
    known too, otherwise `machine`."""
    return np.where(frame.outside, BALANCER, np.where(in_own_queue(frame.values), CGROUP, MACHINE))


def save(path: Path, content: Mapping[str, Any], metadata: Mapping[str, Any]) -> Model:
    """Writes a model file atomically, and returns the model as `load` reads it. Raises ModelError, OSError.

    `content` has `classifiers` (scikit-learn's objects) and `trees` (their arrays, as `Tree.of` reads them), both by
    kind of node, and `coefficients`.
    """
    import skops.io

    described = {**metadata, "format": FORMAT, "features": list(FEATURES), "terms": list(TERMS)}
    written = {**content, "metadata": json.dumps(described)}
    write_whole(path, with_plain(skops.io.dumps(written, compression=zipfile.ZIP_DEFLATED), written))
    return load(path)


def with_plain(archive: bytes, content: Mapping[str, Any]) -> bytes:
    """A model file of skops with the member `PLAIN` added: its `content` without scikit-learn's objects."""
    held = io.BytesIO(archive)
    with zipfile.ZipFile(held, "a", zipfile.ZIP_DEFLATED) as file:
        member = zipfile.ZipInfo(PLAIN)  # its date is always the same: equal models are equal files
        kept = {name: value for name, value in content.items() if name != "classifiers"}
        file.writestr(member, json.dumps(kept), zipfile.ZIP_DEFLATED)
    return held.getvalue()


def path_of(named: str) -> Path:
    """The model file that a setting or an option names; empty: the shipped one."""
    return Path(named) if named else SHIPPED


def load(path: Path) -> Model:
    """Reads a model file. Raises ModelError for a file that is not ours, is damaged or has other features."""
    try:
        data = bytes_of(path)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from None
    if not zipfile.is_zipfile(io.BytesIO(data)):
        raise ModelError(f"{path}: not a model file ({EXPECTED})")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if PLAIN not in archive.namelist():
                raise ModelError(f"{path}: has no trees as arrays, as those of earlier programs: train it again")
            content = json.loads(archive.read(PLAIN))
        metadata = json.loads(content["metadata"])
        features, version = metadata["features"], metadata["format"]
        coefficients = tuple(float(value) for value in content["coefficients"])
        name = str(metadata["name"])
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{path}: a damaged or foreign model file: {error!r} ({EXPECTED})") from None
    if version != FORMAT:
        raise ModelError(f"{path}: format {version}; this program reads format {FORMAT}: train it again")
    unknown = sorted({str(feature) for feature in features} - set(FEATURES))
    if unknown or len(set(features)) != len(features):
        raise ModelError(
            f"{path}: was trained on other features than this program has "
            f"({', '.join(unknown) or 'some of them twice'}): train it again"
        )
    if len(coefficients) != len(TERMS) or not all(math.isfinite(value) for value in coefficients):
        raise ModelError(f"{path}: expected {len(TERMS)} coefficients ({', '.join(TERMS)}), got {coefficients}")
    try:
        return model_of(name, content["trees"], coefficients, metadata, features)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: holds no fitted decision tree: {error!r} ({EXPECTED})") from None
