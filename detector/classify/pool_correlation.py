"""Correlation of a pool's nodes: a cause that they share is no neighbour, and no weights help against neighbours beside
all of them.

Labels alone are not enough. The node that is judged first looks like the only slow node. When its load has moved away
it has no response times any more, and the others, which are slow by now, hide each other. So nodes are compared by the
share of their CPU that they lose, each against its own calm. A node in an episode that answers nothing shows none of
that now: it counts as slow, and with the loss that it showed while it answered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slackwater.detector.classify.episodes import ALL_SLOW, CALM, INTERFERENCE, OVERLOAD
from slackwater.detector.estimator import comparable_loss
from slackwater.detector.features.columns import Bools, Floats, Ints
from slackwater.detector.features.features import FEW_REQUESTS, Frame
from slackwater.detector.slot_arrays import SlotArrays

ALL_SLOW_SHARE = 0.7
"""The cause is shared, so it is no neighbour, when this share of the pool and at least two nodes are slow at a time."""
FULL = 0.85
"""From this share of the CPU on, the calm cost of its requests with its other programs can explain a slow node."""
BUSY = 0.97
"""CPU utilisation of a server that is overloaded even if nothing else shows it."""
MORE_THAN_PEERS = 1.15
"""A full server that stands out is overloaded only when it carries this many times as much as its peers."""
MUCH = 0.5
"""Nodes are compared by their loss when they lose at least this share of their CPU."""
ALIKE = 0.75
"""Two nodes lose alike when the smaller loss is at least this part of the larger one."""
SLOW = 1.0
"""A node is slow when its users wait this much longer than in its own calm, whatever its peers do. 1 is the scale of a
response time."""
LOOKS = 2
"""A node's loss is the largest one of this many ticks: neighbours that begin together show on one node in one tick, and
on another in the next."""


@dataclass(frozen=True)
class PoolCorrelation:
    """The looks of a tick of M nodes, compared with the whole pool."""

    looks: Ints
    """(M,) what the tick by itself looks like, index in `STATES`."""
    has_requests: Bools
    """(M,)."""
    slow: int
    """Number of the `pool` fresh nodes that users wait for."""
    pool: int
    alike: Ints
    """(M,) number of the `others` that lose alike, where that makes the cause a shared one; else 0."""
    others: Ints
    """(M,) number of the other nodes that carry requests or are in an episode."""


class PoolCorrelator(SlotArrays):
    """Keeps the last ticks of every node, and classifies the nodes with a new tick."""

    _slow: Bools
    _has_requests: Bools
    _lost: Floats
    """(slots, LOOKS) share of its CPU that the node lost in each of its last ticks, the newest first."""

    def __init__(self) -> None:
        super().__init__(_slow=False, _has_requests=False, _lost=np.zeros(LOOKS))

    def classify(self, frame: Frame, suspected: Bools, fresh: Bools, in_episode: Bools) -> PoolCorrelation:
        """Classifies a tick of these rows.

        `suspected`: (M,) whether the row by itself looks like a neighbour's; `fresh`, `in_episode`: (slots,).
        """
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
        answers = np.where(np.isnan(frame.answers), has_requests, frame.answers > 0.0)
        shows = (answers > 0.0) | ~in_episode[frame.slots]
        self._slow[frame.slots] = slow | ~shows
        self._has_requests[frame.slots] = has_requests
        here, lost = frame.slots[shows], np.where(overload, 0.0, comparable_loss(frame))
        self._lost[here, 1:] = self._lost[here, :-1]
        self._lost[here, 0] = lost[shows]

        pool = int(fresh.sum())
        slow_nodes = int((self._slow & fresh).sum())
        shared = slow_nodes >= 2 and slow_nodes >= ALL_SLOW_SHARE * pool
        alike, others = self._alike(frame.slots, fresh & (self._has_requests | in_episode))
        alike[alike < ALL_SLOW_SHARE * others] = 0
        together = (slow & shared) | ((waits | suspected) & (alike > 0))
        by_itself = np.where(suspected, INTERFERENCE, CALM)
        looks: Ints = np.where(overload, OVERLOAD, np.where(together, ALL_SLOW, by_itself))
        return PoolCorrelation(looks, has_requests, slow_nodes, pool, alike, others)

    def _alike(self, slots: Ints, counts: Bools) -> tuple[Ints, Ints]:
        """(M,) the number of other nodes that count and lose alike, and the number of others that count.

        `counts`: (slots,) whether a node counts.
        """
        loss, among = self._lost[slots].max(axis=1), counts[slots]
        others: Ints = counts.sum() - among.astype(np.int64)
        if not (loss >= MUCH).any():
            return np.zeros(len(slots), dtype=np.int64), others
        ordered = np.sort(self._lost[counts].max(axis=1))
        lowest, highest = np.maximum(ALIKE * loss, MUCH), loss / ALIKE
        within = np.searchsorted(ordered, highest, side="right") - np.searchsorted(ordered, lowest)
        # A node that counts is among the nodes that lose as much as itself.
        return np.where(loss >= MUCH, within - among.astype(np.int64), 0), others
