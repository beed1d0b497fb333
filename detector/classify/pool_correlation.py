"""Correlation of a pool's nodes: a cause that they share is no neighbour, and no weights help against neighbours beside
them all.

Labels alone would not do. The node that is judged first looks like the only slow one; when its load has moved away it
has no response times any more, and the others, slow by now, hide each other. So nodes are compared by how much of
their CPU they lose, each against its own calm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detector.classify.episodes import ALL_SLOW, CALM, INTERFERENCE, OVERLOAD
from detector.estimator import comparable_loss
from detector.features.columns import Bools, Floats, Ints
from detector.features.features import FEW_REQUESTS, Frame
from detector.slot_arrays import SlotArrays

ALL_SLOW_SHARE = 0.7
"""When this share of the pool, and at least two nodes, is slow at a time, the cause is shared: it is no neighbour."""
FULL = 0.85
"""From this CPU share on, what its requests cost when calm and its other programs take can explain that it is slow."""
BUSY = 0.97
"""CPU utilisation of a server that is overloaded even if nothing else shows it."""
MORE_THAN_PEERS = 1.15
"""A full server that stands out is overloaded when it carries so much more than its peers; at theirs it is not."""
MUCH = 0.5
"""From this share of its CPU on that a node loses, it is compared with the others by it."""
ALIKE = 0.75
"""Two nodes lose alike when the one loses at least this part of what the other does."""
SLOW = 1.0
"""A node is slow when its users wait so much longer than in its own calm, whatever its peers do; 1 is the scale of a
response time."""
LOOKS = 2
"""What a node loses is the most of so many ticks: neighbours that begin together show in one tick here, in the next
there."""


@dataclass(frozen=True)
class PoolCorrelation:
    """What a tick of M nodes looks like in the light of the whole pool."""

    classification: Ints
    """(M,) index in `STATES`."""
    has_requests: Bools
    """(M,)."""
    slow: int
    """How many of the `pool` fresh nodes users wait for."""
    pool: int
    alike: Ints
    """(M,) how many of the `others` lose as much, where that makes the cause a shared one; else 0."""
    others: Ints
    """(M,) how many of the others carry requests or are in an episode."""

    def why(self, row: int) -> str:
        """Why a row that looks `all_slow` does, in words."""
        if self.alike[row]:
            return f"{self.alike[row]} of {self.others[row]} other nodes lose as much of their CPU: no neighbour"
        return f"{self.slow} of {self.pool} nodes are slow together: no neighbour"


class PoolCorrelator(SlotArrays):
    """Keeps what every node showed last, and classifies those with a new tick."""

    _slow: Bools
    _has_requests: Bools
    _lost: Floats
    """(slots, LOOKS) share of its CPU that the node lost in each of the last ticks, the newest first."""

    def __init__(self) -> None:
        super().__init__(_slow=False, _has_requests=False, _lost=np.zeros(LOOKS))

    def classify(self, frame: Frame, suspected: Bools, fresh: Bools, in_episode: Bools) -> PoolCorrelation:
        """Takes a tick of these rows in. `suspected` (M,) look interfered by themselves; `fresh` and `in_episode` are
        (slots,)."""
        waits = frame.felt(frame.own_excess) >= SLOW
        demand = np.where(np.isnan(frame.demand), frame.load, frame.demand) + frame.others
        with np.errstate(invalid="ignore"):
            full = demand >= FULL
            like_peers = frame.peers_demand * MORE_THAN_PEERS >= demand
            busy = suspected | waits | (frame.utilisation >= BUSY)
        overload = full & busy & ~(suspected & like_peers)
        has_requests: Bools = np.asarray(frame.load >= FEW_REQUESTS)
        # A node that stands out against its peers has a cause of its own, also while all are slow.
        slow = waits & ~overload & ~suspected
        self._slow[frame.slots] = slow
        self._has_requests[frame.slots] = has_requests
        self._lost[frame.slots, 1:] = self._lost[frame.slots, :-1]
        self._lost[frame.slots, 0] = np.where(overload, 0.0, comparable_loss(frame))

        pool = int(fresh.sum())
        slow_nodes = int((self._slow & fresh).sum())
        shared = slow_nodes >= 2 and slow_nodes >= ALL_SLOW_SHARE * pool
        alike, others = self._alike(frame.slots, fresh & (self._has_requests | in_episode))
        alike[alike < ALL_SLOW_SHARE * others] = 0
        together = (slow & shared) | ((waits | suspected) & (alike > 0))
        by_itself = np.where(suspected, INTERFERENCE, CALM)
        classification: Ints = np.where(overload, OVERLOAD, np.where(together, ALL_SLOW, by_itself))
        return PoolCorrelation(classification, has_requests, slow_nodes, pool, alike, others)

    def _alike(self, slots: Ints, counts: Bools) -> tuple[Ints, Ints]:
        """For each of `slots` how many of the others that count lose alike, and how many others count."""
        mine, among = self._lost[slots].max(axis=1), counts[slots]
        others: Ints = counts.sum() - among.astype(np.int64)
        if not (mine >= MUCH).any():
            return np.zeros(len(slots), dtype=np.int64), others
        ordered = np.sort(self._lost[counts].max(axis=1))
        least, most = np.maximum(ALIKE * mine, MUCH), mine / ALIKE
        within = np.searchsorted(ordered, most, side="right") - np.searchsorted(ordered, least)
        # A node that counts is among those that lose as much as itself.
        return np.where(mine >= MUCH, within - among.astype(np.int64), 0), others
