"""Counts how often each level of evidence shows in calm and beside a neighbour (`detector.classify.evidence`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from detector.classify.evidence import LEVELS, QUIET, REFERENCE_S, Evidence
from detector.classify.judge import Tick
from detector.recordings.recording import Recording
from detector.train.scores import FELT, median_ms, reaches


def count(recording: Recording, ticks: Iterable[Tick]) -> Evidence:
    """Counts a recording's ticks, of its replay.

    Calm is where no label is, nor one ended a moment ago: deploys, reloads and the like are rare where they are not
    made on purpose, and would count as often as they were made. Beside a neighbour only the noises that users felt
    count, and not their first tick, which is half calm. Samples that cover less than half of `REFERENCE_S` show things
    less clearly, and do not count.
    """
    by_node: dict[str, list[Tick]] = defaultdict(list)
    for tick in ticks:
        by_node[tick.sample.node].append(tick)
    calm = np.zeros((len(LEVELS), len(LEVELS)), dtype=int)
    neighbour = np.zeros(len(LEVELS), dtype=int)
    for node, its in by_node.items():
        its = [tick for tick in its if tick.sample.period_s >= REFERENCE_S / 2]
        labels = [one for one in recording.labels if one.node in (node, "*")]
        undisturbed = [tick for tick in its if not any(reaches(label, tick.sample.time_unix_s) for label in labels)]
        before = QUIET
        for tick in undisturbed:
            calm[before, tick.level] += 1
            before = tick.level
        usual_ms = _p95_ms(undisturbed)
        for noise in labels:
            if noise.state != "interference":
                continue
            during = [tick for tick in its if noise.start_unix_s <= tick.sample.time_unix_s < noise.end_unix_s]
            if usual_ms and (_p95_ms(during) or 0.0) >= FELT * usual_ms:
                neighbour += np.bincount([tick.level for tick in during[1:]], minlength=len(LEVELS))
    return Evidence(tuple(tuple(row) for row in calm.tolist()), tuple(neighbour.tolist()))


def total(counted: Sequence[Evidence]) -> Evidence:
    """All counts together."""
    size = len(LEVELS)
    calm = sum((np.array(one.calm) for one in counted), np.zeros((size, size), dtype=int))
    neighbour = sum((np.array(one.neighbour) for one in counted), np.zeros(size, dtype=int))
    return Evidence(tuple(tuple(row) for row in calm.tolist()), tuple(neighbour.tolist()))


def _p95_ms(ticks: Iterable[Tick]) -> float | None:
    """Median of the ticks' p95 response times."""
    sections = (tick.sample.traffic for tick in ticks)
    return median_ms(one.rt_p95_ms for one in sections if one is not None)
