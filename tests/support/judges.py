"""Judges with the shipped model."""

from __future__ import annotations

from functools import cache

from slackwater.detector.classify.tree import SHIPPED, Model, load
from slackwater.detector.judge import Judge


@cache
def shipped() -> Model:
    """Read once for all tests of a process."""
    return load(SHIPPED)


def new_judge(pool: str = "web", *, stale_after_s: float = 1.0, calm_dwell_s: float = 2.0) -> Judge:
    return Judge(pool, stale_after_s=stale_after_s, calm_dwell_s=calm_dwell_s, model=shipped())
