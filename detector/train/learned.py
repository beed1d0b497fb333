"""The ticks of a recording with the truth about each, as trainings and scores read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from slackwater.core.config import DetectorSettings
from slackwater.core.messages import Verdict
from slackwater.detector.classify.evidence import counts
from slackwater.detector.classify.tree import CLASSES, Model, undecided
from slackwater.detector.estimator import TERMS
from slackwater.detector.features.columns import Bools, Floats, Ints
from slackwater.detector.features.features import FEATURES
from slackwater.detector.judge import Judge, Tick
from slackwater.detector.recordings.recording import Recording, RecordingError
from slackwater.detector.train import levels
from slackwater.detector.train.queues import with_queues
from slackwater.detector.train.replay import play
from slackwater.detector.train.scores import Scores, score

SETTLE_S = 1.0
"""Ticks this soon after a label's edges are not learnt from: the onset's own tick is half calm, and queues drain."""
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
    recording = with_queues(recording)
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


def replay(recording: Recording, model: Model) -> Scores:
    """Scores of the whole detector on a recording."""
    return score(recording, judged(recording, model))


def judged(recording: Recording, model: Model) -> list[Verdict]:
    """The Verdicts of the whole detector on a recording, without their reasons."""
    return play(recording, _judge(recording, model))


def show(recordings: Sequence[Recording], model: Model, progress: Progress) -> list[levels.Shown]:
    """The nodes' ticks when recordings are replayed."""
    nodes = []
    for recording in map(with_queues, track(recordings, "counting evidence", progress)):
        judge = _judge(recording, model)
        judge.ticks = []
        play(recording, judge)
        nodes += levels.shown(recording, judge.ticks)
    return nodes
