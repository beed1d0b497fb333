"""How a balance algorithm splits a rate over many servers, in the long run: for the cycle-level model.

`roundrobin` is exact for exponential work. `leastconn` and `random2` are limits for many servers behind one balancer.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq

from slackwater.detector.features.columns import Floats, Ints
from slackwater_lab.sim import two_choices
from slackwater_lab.sim.two_choices import Alike

FULLEST = 0.98
"""Highest utilisation for which a queue's stationary length is computed; what is beyond gathers as backlog."""
ROUNDS = 12
"""Of Newton's method."""
CLASSES = 24
"""Capacities that `random2` tells apart."""


def alone(rates: Floats, capacity: Floats) -> Floats:
    """Mean requests in a processor-sharing server that gets requests at random instants: u/(1-u) at a
    utilisation of u, whatever the distribution of their cost (M/G/1-PS: L. Kleinrock, Queueing Systems 2, 1976)."""
    filled = np.minimum(rates / np.maximum(capacity, 1e-9), FULLEST)
    return np.asarray(filled / (1.0 - filled))


def roundrobin(weights: Ints, capacity: Floats, total_rps: float) -> tuple[Floats, Floats]:
    """Rates by weight, and the mean number of requests in each server: (servers,) each.

    One balancer that goes round spaces each server's requests: of k servers each gets every k-th, so the gaps are sums
    of k exponentials, and the server is a G/M/1 queue (L. Kleinrock, Queueing Systems 1, 1975, 6.4), whose mean is the
    same under processor sharing when the work is exponential. It holds u/(1-s) with s = E[exp(-(1-s)·μ·gap)].
    """
    share = weights / max(float(weights.sum()), 1e-9)
    rates: Floats = np.asarray(total_rps * share, dtype=np.float64)
    turns = np.clip(np.round(1.0 / np.maximum(share, 1e-9)), 1.0, 1e6)
    filled = np.clip(rates / np.maximum(capacity, 1e-9), 1e-3, FULLEST)
    root = np.zeros_like(filled)
    for _ in range(ROUNDS):  # Newton from below on a convex function: it never goes beyond the root
        base = 1.0 + (1.0 - root) / (filled * turns)
        value = base**-turns
        root = np.minimum(root + (value - root) / np.maximum(1.0 - value / (filled * base), 1e-9), 1.0 - 1e-6)
    return rates, np.asarray(np.where(rates > 0.0, filled / (1.0 - root), 0.0))


def leastconn(weights: Ints, capacity: Floats, total_rps: float) -> tuple[Floats, Floats]:
    """Least connections over many servers: as long as they can carry the load, a request finds an idle one.

    The limit of join-the-shortest-queue for many servers (as of pull-based balancing: A. L. Stolyar, "Pull-based load
    distribution in large-scale heterogeneous service systems", Queueing Systems 80, 2015): no server has more than one
    request, every idle server gets them at one rate g, so server i is busy for g/(g+μ_i) of the time. An idle server is
    taken first whatever its weight; only weight 0 keeps it out. Beyond the capacity all are filled alike.
    """
    asked = np.where(weights > 0, capacity, 0.0)
    full = float(asked.sum())
    if total_rps >= FULLEST * full:
        rates = total_rps * asked / max(full, 1e-9)
        return rates, alone(rates, asked)
    used = asked > 0.0
    per = asked[used]

    def carried(gamma: float) -> float:
        return float((gamma * per / (gamma + per)).sum()) - total_rps

    most = float(per.max())
    while carried(most) < 0.0:
        most *= 2.0
    gamma = brentq(carried, 0.0, most, rtol=1e-9)
    rates = np.zeros_like(capacity)
    rates[used] = gamma * per / (gamma + per)
    busy = np.zeros_like(capacity)
    busy[used] = gamma / (gamma + per)
    return rates, busy


def random2(weights: Ints, capacity: Floats, total_rps: float) -> tuple[Floats, Floats]:
    """Of two servers drawn by weight the one with fewer requests for its weight, as
    `lab/slackwater_lab/sim/two_choices.py` computes it. Servers of like capacity and weight are taken together.
    """
    used = np.flatnonzero(weights > 0)
    keys = np.stack([_graded(capacity[used]), weights[used]], axis=1)
    kinds, member, count = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    found = two_choices.queues(
        tuple(Alike(n, weight, max(mu, 1e-6)) for n, (mu, weight) in zip(count.tolist(), kinds.tolist(), strict=True)),
        total_rps,
    )
    rates, held = np.zeros_like(capacity), np.zeros_like(capacity)
    rates[used] = np.array([queue.filled for queue in found])[member] * np.maximum(kinds[member, 0], 1e-6)
    held[used] = np.array([queue.held for queue in found])[member]
    rates *= total_rps / max(float(rates.sum()), 1e-9)
    return rates, held


def _graded(capacity: Floats) -> Floats:
    """Capacities as the nearest of `CLASSES` between the lowest and the highest."""
    low, high = float(capacity.min()), float(capacity.max())
    if high - low < 1e-9 * max(high, 1.0):
        return np.full_like(capacity, high)
    step = (high - low) / (CLASSES - 1)
    return np.asarray(low + np.round((capacity - low) / step) * step)


SPLITS = {"roundrobin": roundrobin, "leastconn": leastconn, "random2": random2}
