"""From wanted rates to whole weights: those whose split of the requests is closest to the wanted split."""

from __future__ import annotations

import math
from collections.abc import Sequence

FINE = 20
"""A baseline of this many steps can be lowered finely enough, by 5% each."""
MOST_TRIES = 200
"""Sums that are tried on each side. More would help only where the kept servers should get next to nothing."""


def grain(baselines: Sequence[int]) -> int:
    """The step of which all weights should be a multiple where weights without a common divisor do harm
    (`Snapshot.serves_in_runs`).

    It is the largest number that divides all baselines and leaves the largest baseline at least `FINE` steps.
    """
    common = math.gcd(*baselines)
    most = max(baselines, default=0)
    return next((step for step in range(min(common, most // FINE), 1, -1) if common % step == 0), 1)


def closest(kept_weight: int, kept_rate: float, rates: Sequence[float], most: Sequence[int]) -> list[int]:
    """Whole weights, each from 0 to its `most`, for servers that should get `rates`.

    Beside them are servers that keep their weights, `kept_weight` in all, and should get `kept_rate` together. The
    result puts the least share of the requests on a wrong server: half of Σ |share - wanted share| over the servers,
    where the kept servers count as one. For a given sum of the weights the method of largest remainders has that least
    share (M. L. Balinski and H. P. Young, Fair Representation, Yale 1982, appendix A), so only sums are tried.

    Raises ValueError unless `kept_weight` and `kept_rate` are above 0 and there are as many `rates` as `most`.
    """
    if kept_weight <= 0 or kept_rate <= 0.0 or len(rates) != len(most):
        raise ValueError(f"expected kept servers with weight and rate, got {kept_weight} and {kept_rate:g}")
    total = kept_rate + math.fsum(rates)
    shares = [rate / total for rate in rates]
    kept_share = kept_rate / total
    most_sum = sum(most)
    ideal = min(kept_weight * (1.0 / kept_share - 1.0), float(most_sum))
    best: tuple[float, list[int]] = (math.inf, [])
    # From the ideal sum outwards the error of the kept servers alone grows, and the others' error is at least the same.
    # So a side is done when twice that is more than the least error so far.
    for sums in (range(math.floor(ideal), -1, -1), range(math.floor(ideal) + 1, most_sum + 1)):
        for weights_sum in sums[:MOST_TRIES]:
            whole = kept_weight + weights_sum
            kept_error = abs(kept_weight / whole - kept_share)
            if 2.0 * kept_error > best[0]:
                break
            weights = _largest_remainders([share * whole for share in shares], weights_sum, most)
            error = kept_error + math.fsum(
                abs(weight / whole - share) for weight, share in zip(weights, shares, strict=True)
            )
            if error < best[0] - 1e-12:
                best = (error, weights)
    return best[1]


def _largest_remainders(wanted: Sequence[float], weights_sum: int, most: Sequence[int]) -> list[int]:
    """Whole numbers within 0..most with this sum that are closest to `wanted`, one by one."""
    weights = [min(math.floor(want), limit) for want, limit in zip(wanted, most, strict=True)]
    missing = weights_sum - sum(weights)
    while missing:
        step = 1 if missing > 0 else -1
        free = [n for n in range(len(weights)) if 0 <= weights[n] + step <= most[n]]
        # Servers that gain most, or lose least, by one step in this direction go first, each once.
        free.sort(key=lambda n: abs(weights[n] + step - wanted[n]) - abs(weights[n] - wanted[n]))
        for n in free[: abs(missing)]:
            weights[n] += step
        missing -= step * min(abs(missing), len(free))
    return weights
