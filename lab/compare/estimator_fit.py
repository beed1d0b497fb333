"""How well the load estimator's law fits: ICE's linear one against a quadratic one, on a comparison's Samples.

cpu = a·old_cpu + b·rps + c·cpi + d, against the same with the squares and products of the three. Fitted by least
squares on the odd rounds, judged on the even ones: a richer law always fits better what it was fitted on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from detector.features.columns import Floats
from detector.recordings import recording as samples
from lab.compare.comparison import load
from lab.experiment import recording
from slackwater.messages import Sample


def fit(folders: Sequence[Path]) -> dict[str, Any] | None:
    """R² and mean absolute error of both laws on rounds that neither saw; None with less than two rounds of Samples."""
    by_part: dict[int, list[Floats]] = {0: [], 1: []}
    for folder in folders:
        for run in load(folder).runs:
            path = recording.path_of(folder, run.number, "samples")
            if recording.done(folder, run) and path.exists():
                by_part[run.round % 2].append(rows(samples.read(path).samples))
    seen, unseen = (np.concatenate([np.empty((0, 4)), *by_part[part]]) for part in (1, 0))
    if not len(seen) or not len(unseen):
        return None
    found: dict[str, Any] = {"samples": len(unseen)}
    for name, terms in (("linear", linear), ("quadratic", quadratic)):
        coefficients, *_ = np.linalg.lstsq(terms(seen[:, :-1]), seen[:, -1], rcond=None)
        predicted = terms(unseen[:, :-1]) @ coefficients
        off = unseen[:, -1] - predicted
        found[name] = {
            "r2": 1.0 - float((off**2).sum() / ((unseen[:, -1] - unseen[:, -1].mean()) ** 2).sum()),
            "mean_error": float(np.abs(off).mean()),
        }
    return found


def rows(heard: Sequence[Sample]) -> Floats:
    """(M, 4): old CPU, requests per second, cycles (of the probe where there is no hardware counter), CPU; Samples that
    lack one of them are left out."""
    found = []
    last: dict[str, float] = {}
    for one in heard:
        cpu = one.cpu.utilisation if one.cpu else None
        rps = one.traffic.rps if one.traffic else None
        cpi = one.counters.cpi if one.counters else None
        if cpu is not None and rps is not None and cpi is not None and one.node in last:
            found.append([last[one.node], rps, cpi, cpu])
        if cpu is not None:
            last[one.node] = cpu
    return np.array(found, dtype=np.float64).reshape(-1, 4)


def linear(inputs: Floats) -> Floats:
    """(M, 4) with a constant."""
    return np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1)


def quadratic(inputs: Floats) -> Floats:
    """(M, 10): also the squares and products."""
    pairs = [inputs[:, i] * inputs[:, j] for i in range(3) for j in range(i, 3)]
    return np.concatenate([linear(inputs), np.stack(pairs, axis=1)], axis=1)
