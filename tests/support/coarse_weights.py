"""What weights in whole steps allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def a_step_more_is_no_better(
    weights: Sequence[int],
    baselines: Sequence[int],
    may_rise: Sequence[bool],
    step: int,
    filled: Callable[[Sequence[int]], float],
) -> bool:
    """Whether the fullest server (`filled`) of a pool is as full or fuller with a step more on each that may rise."""
    more = [
        min(weight + step, baseline) if rises else weight
        for weight, baseline, rises in zip(weights, baselines, may_rise, strict=True)
    ]
    return filled(more) >= filled(weights) - 1e-9
