"""The decision tree: trained with scikit-learn, walked here as arrays, stored with skops (never pickle).

A model file has the tree twice: as scikit-learn's object, for those who train and examine, and as plain arrays in JSON
(`PLAIN`), which is all that the running detector reads: it loads neither scikit-learn nor scipy.

While training, scikit-learn sends missing values to the side of a split that suits best. That depends on the
recordings, not on a node that lacks the signal altogether: here a tick that meets a split on a missing value is not
judged by the tree at all, but by the thresholds, which make do with what there is.
"""

from __future__ import annotations

import io
import json
import logging
import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from detector.classify.evidence import COUNTED, Evidence
from detector.estimator import TERMS
from detector.features.columns import Bools, Floats, Ints
from detector.features.features import DEMAND, FEATURES, Frame, describe_all, why_missing, words
from detector.features.signals import INDEX, SIGNALS
from slackwater.files import replacing

log = logging.getLogger("detector.tree")

FORMAT = 1
MAX_DEPTH = 4
CLASSES = ("calm", "interference")
SURE = 0.9
"""A leaf means `interference` from this share of its training ticks on. The classes are weighted alike although calm is
far more frequent: half of a leaf's weighted ticks would be few of its real ones, and most alarms would be false."""
EXPECTED = "expected one that `slackwater train` wrote"
SHIPPED = Path(__file__).parent.parent / "models" / "start.skops"
MACHINE_SCOPE = "system"
"""`Sample.cpu.scope` of a node that is a machine, where only the hypervisor's run queue has its neighbours."""
PLAIN = "slackwater.json"
"""Name, within the model file (a zip archive), of the tree as arrays with the coefficients and the metadata."""
REVIEWED = ["sklearn.tree._tree.Tree"]
"""The one type that skops does not trust by itself and a model needs: scikit-learn looks nodes up by the numbers in it
without checking them. We never let it: `Tree` takes copies, checks them, and walks those."""


class ModelError(Exception):
    """A model that cannot be used; the text says which file, what is wrong and what was expected."""


@dataclass(frozen=True)
class Tree:
    """A fitted DecisionTreeClassifier as arrays, one entry a node of the tree; leaves have `left` -1."""

    left: Ints
    right: Ints
    feature: Ints
    threshold: Floats
    missing_left: Bools
    interference: Floats
    """Share of class `interference` among a node's training ticks, weighted."""

    @classmethod
    def of(cls, classifier: Any, features: Sequence[str] = FEATURES) -> Tree:
        """From a fitted classifier with the classes `CLASSES`; raises ModelError when it is another kind of tree.

        `features` names its columns, all of them in `FEATURES`: a tree stays good when the program learns to look at
        more than the tree was offered.
        """
        return cls.of_plain(plain(classifier), features)

    @classmethod
    def of_plain(cls, arrays: Mapping[str, Any], features: Sequence[str] = FEATURES) -> Tree:
        """From what `plain` gave; raises as `of`, and KeyError, TypeError or ValueError for what isn't arrays."""
        found = tuple(str(name) for name in arrays["classes"])
        if found != CLASSES:
            raise ModelError(f"the tree tells {', '.join(found)} apart; expected {', '.join(CLASSES)}")
        if arrays["features"] != len(features):
            raise ModelError(f"the tree wants {arrays['features']} features; expected {len(features)}")
        left, right, split_on = (np.array(arrays[name], dtype=np.int64) for name in ("left", "right", "feature"))
        threshold, interference = (np.array(arrays[name], dtype=np.float64) for name in ("threshold", "interference"))
        missing_left = np.array(arrays["missing_left"], dtype=bool)
        columns = (left, right, split_on, threshold, missing_left, interference)
        if any(column.shape != (len(left),) for column in columns):
            raise ModelError("the tree's arrays differ in length")
        if (split_on[left >= 0] >= len(features)).any():
            raise ModelError("the tree splits on a feature that there is not")
        column = np.array([FEATURES.index(feature) for feature in features], dtype=np.int64)
        feature = np.where(split_on >= 0, column[np.clip(split_on, 0, len(features) - 1)], split_on)
        tree = cls(left, right, feature, threshold, missing_left, interference)
        tree._check()
        return tree

    def _check(self) -> None:
        """A file may say anything: numbers of nodes and features are checked before anything is looked up by them."""
        count = len(self.left)
        parents = np.arange(count)
        inner = self.left >= 0
        for child in (self.left, self.right):
            if (child >= count).any() or (child[inner] <= parents[inner]).any() or (child[~inner] != -1).any():
                raise ModelError("the tree's nodes do not form a tree")
        if ((self.feature[inner] < 0) | (self.feature[inner] >= len(FEATURES))).any():
            raise ModelError("the tree splits on a feature that there is not")
        depth = np.zeros(count, dtype=np.int64)
        for node in np.flatnonzero(inner):
            depth[[self.left[node], self.right[node]]] = depth[node] + 1
        if count == 0 or depth.max() > MAX_DEPTH:
            raise ModelError(f"the tree is {depth.max(initial=0)} deep; expected 0 to {MAX_DEPTH}")

    def walk(self, matrix: Floats) -> tuple[Ints, list[Ints], Bools]:
        """Leaf of each row of (M, features), the nodes passed (one array a level), and rows that lacked a value.

        The leaf of a row that lacks a value is the one that scikit-learn would choose.
        """
        # scikit-learn compares in single precision; so do we, or the two would differ at the edges.
        values = matrix.astype(np.float32)
        at = np.zeros(len(values), dtype=np.int64)
        levels = [at]
        rows = np.arange(len(values))
        lacking = np.zeros(len(values), dtype=bool)
        while (inner := self.left[at] >= 0).any():
            value = values[rows, np.maximum(self.feature[at], 0)]
            missing = np.isnan(value)
            lacking |= inner & missing
            go_left = np.where(missing, self.missing_left[at], value <= self.threshold[at])
            at = np.where(inner, np.where(go_left, self.left[at], self.right[at]), at)
            levels.append(at)
        return at, levels, lacking

    def interfering(self, leaves: Ints) -> Bools:
        """(M,) True for leaves of `interference` (`SURE`)."""
        return np.asarray(self.interference[leaves] >= SURE)

    @cached_property
    def _tested(self) -> Bools:
        """(nodes, signals) what the splits on the path to each leaf test."""
        found = np.zeros((len(self.left), len(SIGNALS)), dtype=bool)
        for leaf, path in self._paths.items():
            for feature, _ in path:
                if feature != DEMAND:
                    found[leaf, INDEX[feature.partition(":")[0]]] = True
        return found

    def tested_signals(self, leaves: Ints) -> Bools:
        """(M, signals) the signals that the tree tested on the path to each of these leaves, (M,)."""
        return np.asarray(self._tested[leaves])

    def first_missing(self, frame: Frame, row: int, levels: list[Ints], absent: Mapping[str, str]) -> str:
        """What the first split on a missing value tests, and why that is missing, in words.

        `levels` is of `walk`, (M,) each; `absent` is the Sample's.
        """
        values = frame.row(row)
        for level in levels:
            feature = int(self.feature[level[row]])
            if self.left[level[row]] >= 0 and math.isnan(values[feature]):
                return f"no {words(FEATURES[feature])}: {why_missing(FEATURES[feature], frame, row, absent)}"
        raise ValueError("this row lacks nothing")

    @cached_property
    def _paths(self) -> dict[int, list[tuple[str, str]]]:
        """Leaf -> the features tested on the path to it, each with its limits in words. Of several splits on a feature
        only the tightest counts."""
        found: dict[int, list[tuple[str, str]]] = {}

        def node(number: int, low: dict[int, float], high: dict[int, float]) -> None:
            if self.left[number] < 0:
                found[number] = [
                    (FEATURES[feature], f"({_limits(low.get(feature), high.get(feature))})")
                    for feature in dict.fromkeys(tested)
                ]
                return
            feature, limit = int(self.feature[number]), float(self.threshold[number])
            tested.append(feature)
            node(int(self.left[number]), low, {**high, feature: min(limit, high.get(feature, math.inf))})
            node(int(self.right[number]), {**low, feature: max(limit, low.get(feature, -math.inf))}, high)
            tested.pop()

        tested: list[int] = []
        node(0, {}, {})
        return found

    def explain(self, frame: Frame, rows: Ints, leaves: Ints) -> list[list[str]]:
        """The paths of some rows of the frame, (K,), in words with values; `leaves` is (M,)."""
        paths: list[list[str]] = [[] for _ in rows]
        for leaf in set(leaves[rows].tolist()):
            places = np.flatnonzero(leaves[rows] == leaf)
            tested = [describe_all(feature, frame, rows[places], f" {limits}") for feature, limits in self._paths[leaf]]
            for place, path in zip(places.tolist(), zip(*tested, strict=True), strict=False):
                paths[place] = list(path)
        return paths

    def rows(self) -> list[dict[str, Any]]:
        """The tree's nodes for JSON: `asks`, `limit`, `below` and `above` (numbers of nodes), or a leaf's `says` with
        its `interference` share."""
        nodes: list[dict[str, Any]] = []
        for number in range(len(self.left)):
            if self.left[number] < 0:
                share = float(self.interference[number])
                nodes.append({"says": CLASSES[int(share >= SURE)], "interference": round(share, 4)})
                continue
            asks, limit = words(FEATURES[self.feature[number]]), float(f"{self.threshold[number]:.4g}")
            nodes.append(
                {"asks": asks, "limit": limit, "below": int(self.left[number]), "above": int(self.right[number])}
            )
        return nodes

    def draw(self) -> str:
        """The whole tree as text."""
        lines: list[str] = []

        def node(number: int, indent: str, prefix: str) -> None:
            if self.left[number] < 0:
                share = self.interference[number]
                lines.append(
                    f"{indent}{prefix}{CLASSES[int(share >= SURE)]} ({share:.0%} of ticks interfered, weighted)"
                )
                return
            if prefix:
                lines.append(f"{indent}{prefix.rstrip(': ')}:")
                indent += "  "
            name, limit = words(FEATURES[self.feature[number]]), self.threshold[number]
            node(int(self.left[number]), indent, f"{name} <= {limit:.3g}: ")
            node(int(self.right[number]), indent, f"{name} > {limit:.3g}: ")

        node(0, "", "")
        return "\n".join(lines)


def plain(classifier: Any) -> dict[str, Any]:
    """A fitted DecisionTreeClassifier as lists, one entry a node of the tree, for JSON. `feature` numbers its columns.

    Raises AttributeError for what is no fitted tree.
    """
    inner = classifier.tree_
    weights = inner.value[:, 0, :]
    return {
        "classes": [str(name) for name in classifier.classes_],
        "features": int(classifier.n_features_in_),
        "left": inner.children_left.tolist(),
        "right": inner.children_right.tolist(),
        "feature": inner.feature.tolist(),
        "threshold": inner.threshold.tolist(),
        "missing_left": inner.missing_go_to_left.astype(bool).tolist(),
        "interference": (weights[:, -1] / weights.sum(axis=1)).tolist(),
    }


def _limits(above: float | None, below: float | None) -> str:
    lower = [f"> {above:.3g}"] if above is not None else []
    return ", ".join(lower + ([f"<= {below:.3g}"] if below is not None else []))


@dataclass(frozen=True)
class Model:
    """A tree and the estimator's starting coefficients, with what they were trained on."""

    name: str
    tree: Tree
    coefficients: tuple[float, ...]
    metadata: dict[str, Any]
    """`name`, `trained` (date), `versions`, `data` (recordings with their descriptions), `features`, `scores`, ..."""

    @property
    def knows_machines(self) -> bool:
        """It was trained on nodes that are whole machines too, not on cgroups alone."""
        return MACHINE_SCOPE in self.metadata.get("scopes", ())

    @property
    def evidence(self) -> Evidence:
        """How often each level was counted in what it was trained on; the shipped counts where it was not counted."""
        counted = self.metadata.get("evidence")
        return COUNTED if counted is None else Evidence.of(counted)


def save(path: Path, classifier: Any, coefficients: tuple[float, ...], metadata: dict[str, Any]) -> Model:
    """Writes a model file, atomically, and returns what it holds. Raises ModelError, OSError."""
    import skops.io

    tree = Tree.of(classifier)
    described = {**metadata, "format": FORMAT, "features": list(FEATURES), "terms": list(TERMS)}
    content = {"tree": classifier, "coefficients": list(coefficients), "metadata": json.dumps(described)}
    with replacing(path) as draft:
        draft.write_bytes(with_plain(skops.io.dumps(content, compression=zipfile.ZIP_DEFLATED), content))
    return Model(str(described["name"]), tree, tuple(coefficients), described)


def with_plain(archive: bytes, content: Mapping[str, Any]) -> bytes:
    """A model file of skops with its `content` as `PLAIN` beside it."""
    held = io.BytesIO(archive)
    with zipfile.ZipFile(held, "a", zipfile.ZIP_DEFLATED) as file:
        member = zipfile.ZipInfo(PLAIN)  # its date is always the same: equal models are equal files
        file.writestr(member, json.dumps({**content, "tree": plain(content["tree"])}), zipfile.ZIP_DEFLATED)
    return held.getvalue()


def load(path: Path) -> Model:
    """Reads a model file. Raises ModelError for one that is not ours, is damaged or has other features."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from None
    if not zipfile.is_zipfile(io.BytesIO(data)):
        raise ModelError(f"{path}: not a model file ({EXPECTED})")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            is_plain = PLAIN in archive.namelist()
            content = json.loads(archive.read(PLAIN)) if is_plain else _by_skops(path, data)
        metadata = json.loads(content["metadata"])
        features, version = metadata["features"], metadata["format"]
        coefficients = tuple(float(value) for value in content["coefficients"])
        name = str(metadata["name"])
        if "evidence" in metadata:
            Evidence.of(metadata["evidence"])
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
        tree = Tree.of_plain(content["tree"], features)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: holds no fitted decision tree: {error!r} ({EXPECTED})") from None
    return Model(name, tree, coefficients, metadata)


def _by_skops(path: Path, data: bytes) -> dict[str, Any]:
    """The content of a file without `PLAIN`, as files were before it was added. Loads scikit-learn."""
    import skops.io

    log.warning("%s has no arrays beside scikit-learn's tree, and takes memory and time to read: train it again", path)
    foreign = sorted(set(skops.io.get_untrusted_types(data=data)) - set(REVIEWED))
    if foreign:
        raise ModelError(f"{path}: holds types that are not loaded: {', '.join(foreign)} ({EXPECTED})")
    content = skops.io.loads(data, trusted=REVIEWED)
    try:
        return {**content, "tree": plain(content["tree"])}
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: holds no fitted decision tree: {error!r} ({EXPECTED})") from None
