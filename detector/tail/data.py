"""The data of the tail estimators: rows of request rate and configuration, and the p95 that followed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slackwater.core.messages import Sample
from slackwater.detector.features.columns import Bools, Floats, Ints
from slackwater.detector.recordings.recording import Recording

COLUMNS = ("requests per second", "cores", "core clock in MHz", "run delay per CPU second")
"""The inputs. Cores and clock are Heimdall's configuration. The run delay stands for the part of them that a neighbour
leaves. An input that a recording lacks is 0 in all of its rows, and means nothing then."""
INTERVAL_S = 1.0
"""Heimdall predicts second by second, so the Samples of a second make a row."""


@dataclass(frozen=True)
class Rows:
    """N seconds of servers, in the order in which they were recorded."""

    inputs: Floats
    """(N, len(COLUMNS))."""
    p95_ms: Floats
    """(N,) p95 response time."""
    configuration: Ints
    """(N,) number of the row's configuration (cores, clock, server)."""

    def only(self, which: Bools | Ints) -> Rows:
        """Some of the rows: `which` are (K,) row numbers, or (N,) whether to keep each."""
        return Rows(self.inputs[which], self.p95_ms[which], self.configuration[which])


def rows_of(recordings: Sequence[Recording]) -> Rows:
    """The seconds of all servers with requests and a p95, server after server."""
    inputs: list[list[float]] = []
    p95_ms: list[float] = []
    configuration: list[int] = []
    known: dict[tuple[object, ...], int] = {}
    for recording in recordings:
        seconds: dict[tuple[str, int], list[Sample]] = defaultdict(list)
        for sample in recording.samples:
            if sample.traffic is not None and sample.traffic.rps is not None and sample.traffic.rt_p95_ms is not None:
                seconds[sample.node, int(sample.time_unix_s / INTERVAL_S)].append(sample)
        for (node, _), samples in sorted(seconds.items(), key=lambda item: item[0]):
            row = [_mean(values) for values in zip(*map(_row, samples), strict=True)]
            inputs.append(row)
            p95_ms.append(_mean([sample.traffic.rt_p95_ms or 0.0 for sample in samples if sample.traffic]))
            key = (recording.path, node, row[1], round(row[2], -2))
            configuration.append(known.setdefault(key, len(known)))
    return Rows(
        np.array(inputs, dtype=np.float64).reshape(len(inputs), len(COLUMNS)),
        np.array(p95_ms, dtype=np.float64),
        np.array(configuration, dtype=np.int64),
    )


def _row(sample: Sample) -> tuple[float, float, float, float]:
    return (
        (sample.traffic.rps if sample.traffic else None) or 0.0,
        (sample.cpu.cores if sample.cpu else None) or 0.0,
        (sample.frequency.mean_mhz if sample.frequency else None) or 0.0,
        (sample.sched.run_delay_per_cpu_s if sample.sched else None) or 0.0,
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
