"""Medians and ratios over rounds, and how sure they are: confidence intervals (scipy.stats)."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from slackwater.detector.features.columns import Floats

CONFIDENCE = 0.95
RESAMPLES = 4999
LEAST = 3
"""Fewer values get no interval: a resample would add nothing to them."""


@dataclass(frozen=True)
class Estimate:
    """A median with its interval at `CONFIDENCE`; `low` and `high` are None where there are too few values."""

    value: float
    low: float | None
    high: float | None
    count: int


def median(values: Sequence[float], seed: int = 1) -> Estimate | None:
    """The median of independent values; None of none.

    The interval is the percentile bootstrap's: the median of a resample takes few values, which the corrections of
    other methods cannot deal with. With five rounds its ends are values of single rounds, and it holds the true median
    less often than 95 of 100 times; `count` says how many values there were.
    """
    finite = np.asarray([value for value in values if np.isfinite(value)])
    if not len(finite):
        return None
    low, high = _interval(finite, lambda sample, axis: np.median(sample, axis=axis), seed)
    return Estimate(float(np.median(finite)), low, high, len(finite))


def ratio(pairs: Iterable[tuple[float | None, float | None]]) -> Estimate | None:
    """The ratio of the first value to the second over pairs, such as two variants in each block: its geometric mean,
    with Student's interval of the logarithms. Five pairs are enough if the causes of their differences multiply. Pairs
    without two positive values are left out; None where there is no other."""
    logs = [math.log(a / b) for a, b in pairs if a is not None and b is not None and a > 0.0 and b > 0.0]
    if not logs:
        return None
    middle, low, high = statistics.fmean(logs), None, None
    if len(logs) >= LEAST:
        error = statistics.stdev(logs) / math.sqrt(len(logs))
        reach = error * float(stats.t.ppf((1.0 + CONFIDENCE) / 2.0, len(logs) - 1))
        low, high = math.exp(middle - reach), math.exp(middle + reach)
    return Estimate(math.exp(middle), low, high, len(logs))


def geometric_mean(values: Sequence[float], seed: int = 1) -> Estimate | None:
    """Of independent positive values, with the percentile bootstrap's interval; None of none. For ratios: a half and a
    double make 1."""
    logs = np.log([value for value in values if value > 0.0])
    if not len(logs):
        return None
    low, high = _interval(logs, lambda sample, axis: np.mean(sample, axis=axis), seed)
    middle = math.exp(float(logs.mean()))
    if low is None or high is None:
        return Estimate(middle, None, None, len(logs))
    return Estimate(middle, math.exp(low), math.exp(high), len(logs))


def _interval(data: Floats, statistic: Any, seed: int) -> tuple[float | None, float | None]:
    if len(data) < LEAST:
        return None, None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        interval = stats.bootstrap(
            (data,),
            statistic,
            vectorized=True,
            n_resamples=RESAMPLES,
            confidence_level=CONFIDENCE,
            method="percentile",
            rng=np.random.default_rng(seed),
        ).confidence_interval
    return float(interval.low), float(interval.high)
