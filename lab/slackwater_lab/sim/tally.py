"""What users felt: response times of all requests of a run, kept as a histogram of exponentials or one by one."""

from __future__ import annotations

import math
from typing import TypedDict

import numpy as np
from scipy.optimize import brentq

from slackwater.detector.features.columns import Floats

GRID_PER_E = 100
"""Steps of the histogram of mean response times, per factor e: 1% each."""


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


class Mixture:
    """Requests whose response times are exponential, each with the mean of its server at its time."""

    def __init__(self) -> None:
        self._weights: dict[int, float] = {}
        self._means: list[float] = []
        self._total = self._failed = self._sum = 0.0

    def add(self, requests: Floats, mean_s: Floats, failed: float) -> None:
        """One cycle: requests that ended on each server, and their mean response time: (servers,) each."""
        busy = requests > 0.0
        total = float(requests.sum())
        self._total += total
        self._failed += failed
        if total <= 0.0:
            return
        weighted = float((requests[busy] * mean_s[busy]).sum())
        self._sum += weighted
        self._means.append(weighted / total)
        places, which = np.unique(np.round(np.log(mean_s[busy]) * GRID_PER_E).astype(np.int64), return_inverse=True)
        for place, weight in zip(places.tolist(), np.bincount(which, requests[busy]).tolist(), strict=True):
            self._weights[place] = self._weights.get(place, 0.0) + weight

    def quantile_s(self, quantile: float) -> float | None:
        """Response time that this share of the requests does not exceed."""
        if not self._weights:
            return None
        means = np.exp(np.array(list(self._weights)) / GRID_PER_E)
        weights = np.array(list(self._weights.values())) / self._total

        def beyond(time_s: float) -> float:
            return float((weights * np.exp(-time_s / means)).sum()) - (1.0 - quantile)

        return float(brentq(beyond, 0.0, float(means.max()) * math.log(2.0 / (1.0 - quantile)), rtol=1e-9))

    def felt(self) -> Felt:
        """The run's figures."""
        asked = self._total + self._failed
        return Felt(
            requests=round(asked),
            failed_share=self._failed / asked if asked else 0.0,
            mean_ms=1e3 * self._sum / self._total if self._total else None,
            p50_ms=_ms(self.quantile_s(0.50)),
            p95_ms=_ms(self.quantile_s(0.95)),
            p99_ms=_ms(self.quantile_s(0.99)),
            second_means_median_ms=1e3 * float(np.median(self._means)) if self._means else None,
        )


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


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds
