"""Chernoff's bounds of a counted share ("A measure of asymptotic efficiency for tests of a hypothesis", 1952). Pure."""

from __future__ import annotations

import math

DOUBT = 0.001
"""Probability that one of the two bounds is wrong. It is low since each server is judged several times a second."""


def bound(ended: float, share: float, towards: float) -> float:
    """The confidence bound of a counted share: below it (`towards` 0) or above it (`towards` 1)."""
    near, far, most = share, towards, math.log(1.0 / DOUBT)
    for _ in range(30):
        middle = (near + far) / 2.0
        if ended * _divergence(share, middle) <= most:
            near = middle
        else:
            far = middle
    return near


def _divergence(counted: float, true: float) -> float:
    """The Kullback-Leibler divergence of two shares."""
    return sum(p * math.log(p / q) for p, q in ((counted, true), (1.0 - counted, 1.0 - true)) if p > 0.0)
