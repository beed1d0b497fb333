"""How a balance algorithm splits a rate over many servers, in the long run: for the cycle-level model.

`roundrobin` is exact for exponential work. `leastconn` and `random2` are limits for many servers behind one balancer.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq

from detector.features.columns import Floats, Ints

FULLEST = 0.98
"""Highest utilisation for which a queue's stationary length is computed; what is beyond gathers as backlog."""
ROUNDS = 12
"""Of Newton's method."""
LEVELS = 100
"""Queue lengths that `random2` tells apart."""
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
    """The shorter of two servers drawn by weight, over many servers: the mean-field fixed point.

    With B_k the chance that a drawn server has k requests or more, a server with k gets requests at
    (its share of the draws)·R·(B_k + B_{k+1}) (M. Mitzenmacher, "The power of two choices in randomized load
    balancing", IEEE TPDS 12(10), 2001; with servers of different speeds: A. Mukhopadhyay and R. R. Mazumdar,
    "Analysis of randomized join-the-shortest-queue schemes in large heterogeneous processor-sharing systems", IEEE
    TCNS 3(2), 2016). Servers of like capacity and weight are taken together.
    """
    draws = weights / max(float(weights.sum()), 1e-9)
    used = np.flatnonzero(draws > 0.0)
    keys = np.stack([_graded(capacity[used]), draws[used]], axis=1)
    kinds, member, count = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    mu, draw = np.maximum(kinds[:, 0], 1e-6), kinds[:, 1]
    lengths = np.zeros((len(kinds), LEVELS + 1))
    lengths[:, 0] = 1.0
    for _ in range(400):
        beyond = lengths[:, ::-1].cumsum(axis=1)[:, ::-1]
        drawn = np.append((count * draw) @ beyond, 0.0)
        arrivals = total_rps * draw[:, None] * (drawn[:-1] + drawn[1:])[None, :]
        steps = np.cumsum(np.log(np.maximum(arrivals[:, :-1], 1e-300)) - np.log(mu)[:, None], axis=1)
        steps = np.concatenate([np.zeros((len(kinds), 1)), steps], axis=1)
        fresh = np.exp(steps - steps.max(axis=1, keepdims=True))
        fresh /= fresh.sum(axis=1, keepdims=True)
        off = float(np.abs(fresh - lengths).max())
        lengths = 0.5 * (lengths + fresh)
        if off < 1e-7:
            break
    rates_of = (lengths * arrivals).sum(axis=1)
    rates, held = np.zeros_like(capacity), np.zeros_like(capacity)
    rates[used] = rates_of[member]
    held[used] = (lengths @ np.arange(LEVELS + 1))[member]
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
