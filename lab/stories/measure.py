"""Cuts one run of load into phases and gives each its figures."""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from lab.cluster.load import Requests


class Figures(TypedDict):
    """One phase: counts, requests answered a second, response times in ms, the noisy host's share of requests."""

    requests: int
    errors: int
    rps: float
    mean_ms: float | None
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    noisy_share: float | None


def figures(
    requests: Requests, begin_mono_s: float, end_mono_s: float, noisy_share: float | None, lost: int = 0
) -> Figures:
    """Figures of the requests due in [begin, end). Response times are of those answered without an error.

    `lost` counts requests without a response: the generator gives no time for them, so the caller says where they go.
    """
    due = (requests.due_mono_s >= begin_mono_s) & (requests.due_mono_s < end_mono_s)
    good = due & (requests.status < 400)
    times_ms = requests.seconds[good] * 1000.0
    answered = int(np.count_nonzero(due))
    p50, p95, p99 = np.percentile(times_ms, [50, 95, 99]).tolist() if times_ms.size else (None, None, None)
    return Figures(
        requests=answered + lost,
        errors=answered - int(times_ms.size) + lost,
        rps=times_ms.size / (end_mono_s - begin_mono_s),
        mean_ms=float(times_ms.mean()) if times_ms.size else None,
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        noisy_share=noisy_share,
    )
