"""What the best policy costs that knows the course of a load and the law of its noise, but no noise beforehand.

For a part of each second the noise is unseen, and one configuration must do whatever comes; for the rest the load is
known. So many seconds may be late. The least mean cost under that condition is bounded from below by its Lagrange dual,
whatever the price of a late second is; the highest of these bounds is taken (weak duality: Boyd and Vandenberghe,
"Convex Optimization", 5.1.3). Work that piles up in a late second is forgotten, which only lowers the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from scipy import optimize, stats

from slackwater_lab.governor.queues import Floats

LEVELS = 400
"""Number of equally likely values of the noise."""
Option = TypeVar("Option")


def noisy(course: Floats, deviation: float, least: float, most: float) -> Floats:
    """(N, LEVELS) the loads that each second of a course may have, ascending, with normal noise."""
    noise = stats.norm.ppf((np.arange(LEVELS) + 0.5) / LEVELS) * deviation
    loads: Floats = np.clip(course[:, None] + noise, least, most)
    return loads


def least_cost(
    loads: Floats,
    options: Sequence[tuple[Option, float]],
    cost: Callable[[Option, Floats], Floats],
    *,
    late_share: float,
    unseen_share: float,
) -> float:
    """Mean over the seconds.

    `loads`: of `noisy`; `options`: with the highest load that each carries in time; `unseen_share`: of a second, in
    which its noise is unseen (1: one configuration for the whole second).
    """
    able = np.stack([np.sum(loads <= most, axis=1) for _, most in options])
    costs = np.empty(able.shape)
    in_time, least = np.full(loads.shape, np.inf), np.full(loads.shape, np.inf)
    for number, (option, most) in enumerate(options):
        option_costs = cost(option, loads)
        costs[number] = option_costs.mean(axis=1)
        in_time = np.where(loads <= most, np.minimum(in_time, option_costs), in_time)
        least = np.minimum(least, option_costs)

    def at_price(price: float) -> float:
        late = price + (1.0 - unseen_share) * least
        seen = np.minimum((1.0 - unseen_share) * in_time, late) if unseen_share < 1.0 else np.zeros(loads.shape)
        carried = np.pad(np.cumsum(seen - late, axis=1), ((0, 0), (1, 0))) + late.sum(axis=1, keepdims=True)
        rest = np.take_along_axis(carried, able.T, axis=1).T / loads.shape[1]
        return float(np.mean(np.min(unseen_share * costs + rest, axis=0))) - price * late_share

    highest = 1e3 * float(np.ptp(costs) + np.ptp(least) + 1.0)
    best = optimize.minimize_scalar(lambda price: -at_price(price), bounds=(0.0, highest), method="bounded")
    return float(max(at_price(0.0), -best.fun))
