"""What users felt: figures of the response times of all requests of a run."""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from slackwater.detector.features.columns import Floats


class Felt(TypedDict):
    """Response times in ms over all requests of the measured time; None where nothing was answered."""

    requests: int
    failed_share: float
    mean_ms: float | None
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    second_means_median_ms: float | None
    """Median over the seconds of each second's mean: the measure of ICE's figures."""


def felt_of(ended_s: Floats, seconds: Floats, failed: int) -> Felt:
    """The figures of requests one by one: when each ended and how long it took."""
    if not len(seconds):
        return Felt(
            requests=failed,
            failed_share=1.0 if failed else 0.0,
            mean_ms=None,
            p50_ms=None,
            p95_ms=None,
            p99_ms=None,
            second_means_median_ms=None,
        )
    p50, p95, p99 = (1e3 * np.percentile(seconds, [50, 95, 99])).tolist()
    second = np.floor(ended_s - ended_s.min()).astype(np.int64)
    counts = np.bincount(second)
    means = np.bincount(second, seconds)[counts > 0] / counts[counts > 0]
    return Felt(
        requests=len(seconds) + failed,
        failed_share=failed / (len(seconds) + failed),
        mean_ms=1e3 * float(seconds.mean()),
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        second_means_median_ms=1e3 * float(np.median(means)),
    )
