"""Counts how often each level of evidence shows in calm and beside a neighbour (`detector.classify.evidence`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from detector.classify.evidence import LEVELS, QUIET, Evidence, counts
from detector.classify.judge import Tick
from detector.features.columns import Floats
from detector.recordings.recording import Recording
from detector.train.scores import FELT, median_ms, reaches


def count(recording: Recording, ticks: Iterable[Tick]) -> Evidence:
    """Counts a recording's ticks, of its replay, each for the time that its Sample covers.

    Calm is where no label is, nor one ended a moment ago: deploys, reloads and the like are rare where they are not
    made on purpose, and would count as often as they were made. Beside a neighbour only the noises that users felt
    count, from the first Sample that begins in them. What a long Sample shows goes on for as long as it covers.
    """
    by_node: dict[str, list[Tick]] = defaultdict(list)
    for tick in ticks:
        by_node[tick.sample.node].append(tick)
    calm = np.zeros((len(LEVELS), len(LEVELS)))
    neighbour = np.zeros(len(LEVELS))
    for node, its in by_node.items():
        labels = [one for one in recording.labels if one.node in (node, "*")]
        undisturbed = [tick for tick in its if not any(reaches(label, tick.sample.time_unix_s) for label in labels)]
        before = QUIET
        for tick, covered in zip(undisturbed, _covered(undisturbed).tolist(), strict=True):
            calm[before, tick.level] += min(covered, 1.0)
            calm[tick.level, tick.level] += max(covered - 1.0, 0.0)
            before = tick.level
        usual_ms = _p95_ms(undisturbed)
        for noise in labels:
            if noise.state != "interference":
                continue
            during = [tick for tick in its if noise.start_unix_s <= tick.sample.time_unix_s < noise.end_unix_s]
            if usual_ms and (_p95_ms(during) or 0.0) >= FELT * usual_ms:
                whole = [one for one in during if one.sample.time_unix_s - one.sample.period_s >= noise.start_unix_s]
                shown = np.array([tick.level for tick in whole], dtype=np.int64)
                neighbour += np.bincount(shown, weights=_covered(whole), minlength=len(LEVELS))
    return _rounded(calm, neighbour)


def total(counted: Sequence[Evidence]) -> Evidence:
    """All counts together."""
    size = len(LEVELS)
    calm = sum((np.array(one.calm) for one in counted), np.zeros((size, size)))
    neighbour = sum((np.array(one.neighbour) for one in counted), np.zeros(size))
    return _rounded(calm, neighbour)


def _covered(ticks: Sequence[Tick]) -> Floats:
    return counts(np.array([tick.sample.period_s for tick in ticks]))


def _rounded(calm: Floats, neighbour: Floats) -> Evidence:
    return Evidence(tuple(tuple(row) for row in calm.round(2).tolist()), tuple(neighbour.round(2).tolist()))


def _p95_ms(ticks: Iterable[Tick]) -> float | None:
    """Median of the ticks' p95 response times."""
    sections = (tick.sample.traffic for tick in ticks)
    return median_ms(one.rt_p95_ms for one in sections if one is not None)
