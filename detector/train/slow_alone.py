"""Whether a server was slow by itself when it was called so: by what its users felt, whatever the cause. Pure.

The word `slow` claims no neighbour. It is true of a server whose users wait longer than in its calm and than at its
peers, also beside its own backup: less load helps them. A word that came within a second of chance is false.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

AROUND_S = 3.0
"""Time before and after the word that is looked at."""
FOR_S = 2.0
"""A server was slow where its p95 was high for at least this much of that time."""
TIMES = 2.0
"""A p95 is high from this multiple on: of the server's own in calm, and of its peers' median then."""
FRESH_S = 1.5
"""A p95 that is older tells nothing; a quiet server has a Sample a second."""


class Felt(NamedTuple):
    """What the users of a server felt in a Sample."""

    at_s: float
    rt_p95_ms: float
    """The 95th percentile; the mean for a server whose percentiles are not known."""
    calm: bool
    """The server's Verdict was calm."""


def was_slow(node: str, word_s: float, felt: Mapping[str, Sequence[Felt]]) -> bool:
    """Whether `node` was slow by itself around `word_s`.

    `felt`: each node of the pool, oldest first; times are of one clock. A server without calm before it, or without
    peers, was not slow.
    """
    own = felt.get(node, ())
    calm_ms = _median(sample.rt_p95_ms for sample in own if sample.calm and sample.at_s < word_s - AROUND_S)
    peers = [([sample.at_s for sample in samples], samples) for name, samples in felt.items() if name != node]
    slow_s, before_s = 0.0, word_s - AROUND_S
    for sample in own:
        if not word_s - AROUND_S < sample.at_s <= word_s + AROUND_S:
            continue
        covered_s, before_s = min(sample.at_s - before_s, FRESH_S), sample.at_s
        peers_ms = _median(
            samples[place - 1].rt_p95_ms
            for times_s, samples in peers
            if (place := bisect_right(times_s, sample.at_s)) and sample.at_s - times_s[place - 1] <= FRESH_S
        )
        if calm_ms is not None and peers_ms is not None and sample.rt_p95_ms >= TIMES * max(calm_ms, peers_ms):
            slow_s += covered_s
    return slow_s >= FOR_S


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return float(np.median(known)) if known else None
