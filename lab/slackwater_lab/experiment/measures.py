"""Cuts one run of load into phases and gives each its figures."""

from __future__ import annotations

from typing import Protocol, TypedDict

import numpy as np

from slackwater.detector.features.columns import Floats, Ints

TIMES = ("second_means_median_ms", "mean_ms", "p50_ms", "p95_ms", "p99_ms")
"""The first is ICE's: the median over the seconds of each second's mean response time. In a closed loop the median over
requests misleads: a slow server keeps its clients from asking the others."""


class Answered(Protocol):
    """Arrays of requests: when each was due, how long it took, its status."""

    @property
    def seconds(self) -> Floats: ...

    @property
    def status(self) -> Ints: ...


class Figures(TypedDict):
    """One phase: counts, requests answered a second, response times in ms, the noisy host's share of requests."""

    requests: int
    errors: int
    errors_share: float | None
    rps: float
    second_means_median_ms: float | None
    mean_ms: float | None
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    noisy_share: float | None


def figures(
    answered: Answered,
    due_s: Floats,
    begin_s: float,
    end_s: float,
    lost: int = 0,
    noisy_share: float | None = None,
) -> Figures:
    """Figures of the requests due in [begin, end), by `due_s`. Response times are of those answered without an error.

    `lost` counts requests without a response: the generator gives no time for them, so the caller says where they go.
    """
    due = (due_s >= begin_s) & (due_s < end_s)
    good = due & (answered.status < 400)
    times_ms = 1e3 * answered.seconds[good]
    requests = int(np.count_nonzero(due)) + lost
    errors = requests - int(times_ms.size)
    result = Figures(
        requests=requests,
        errors=errors,
        errors_share=errors / requests if requests else None,
        rps=times_ms.size / (end_s - begin_s),
        second_means_median_ms=None,
        mean_ms=None,
        p50_ms=None,
        p95_ms=None,
        p99_ms=None,
        noisy_share=noisy_share,
    )
    if times_ms.size:
        second = np.floor(due_s[good] - begin_s).astype(np.int64)
        counts = np.bincount(second)
        means = np.bincount(second, times_ms)[counts > 0] / counts[counts > 0]
        result["second_means_median_ms"], result["mean_ms"] = float(np.median(means)), float(times_ms.mean())
        result["p50_ms"], result["p95_ms"], result["p99_ms"] = np.percentile(times_ms, [50, 95, 99]).tolist()
    return result
