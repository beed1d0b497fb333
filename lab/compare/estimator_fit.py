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
from detector.train.training import law_scores, quadratic
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
    seen, unseen = (np.concatenate([np.empty((0, 5)), *by_part[part]]) for part in (1, 0))
    if not len(seen) or not len(unseen):
        return None
    found: dict[str, Any] = {"samples": len(unseen)}
    for name, expand in (("linear", np.asarray), ("quadratic", quadratic)):
        law = expand(seen)
        coefficients, *_ = np.linalg.lstsq(law[:, :-1], law[:, -1], rcond=None)
        scores = law_scores(coefficients, expand(unseen))
        found[name] = {"r2": scores["r2"], "mean_error": scores["mean_absolute_error"]}
    return found


def rows(heard: Sequence[Sample]) -> Floats:
    """(M, 5): old CPU, requests per second, cycles (of the probe where there is no hardware counter), 1, CPU; Samples
    that lack one of them are left out."""
    found = []
    last: dict[str, float] = {}
    for one in heard:
        cpu = one.cpu.utilisation if one.cpu else None
        rps = one.traffic.rps if one.traffic else None
        cpi = one.counters.cpi if one.counters else None
        if cpu is not None and rps is not None and cpi is not None and one.node in last:
            found.append([last[one.node], rps, cpi, 1.0, cpu])
        if cpu is not None:
            last[one.node] = cpu
    return np.array(found, dtype=np.float64).reshape(-1, 5)
