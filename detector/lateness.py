"""How late nodes' Samples come, by two clocks that only go forward: the node's, which is the sum of its periods'
lengths, and ours. Wall clocks, which are set and differ between machines, have no part in it.
"""

from __future__ import annotations

import numpy as np

from detector.features.columns import Floats, Ints
from detector.slot_arrays import SlotArrays

DRIFT = 1e-3
"""Two machines' clocks go at least this much alike: so fast the shortest way ever seen is forgotten."""
AT_ITS_OWN_PACE = 3
"""So many Samples in a row, each about a period after the one before, are of now, however late they look: the node was
suspended, or its clock jumped. What waited for the bus comes in a bunch."""


class Timelines(SlotArrays):
    """Of the present run of each slot's monitor."""

    _node_s: Floats
    _shortest_s: Floats
    _last_s: Floats
    _period_s: Floats
    _paced: Ints

    def __init__(self) -> None:
        super().__init__(_node_s=0.0, _shortest_s=0.0, _last_s=0.0, _period_s=0.0, _paced=0)

    def start(self, slots: Ints, now_s: float, period_s: Floats) -> None:
        """The first Sample of a run, (M,)."""
        self._node_s[slots], self._paced[slots] = 0.0, 0
        self._shortest_s[slots] = self._last_s[slots] = now_s
        self._period_s[slots] = period_s

    def late_s(self, slots: Ints, now_s: float, period_s: Floats, missing: Ints, allowed_s: float) -> Floats:
        """(M,) by how much longer than the shortest way a Sample took that came `now_s` and covers `period_s`.

        `missing` Samples before it never came. More than `allowed_s` at the node's own pace becomes the shortest way.
        """
        usual_s = np.minimum(period_s, self._period_s[slots])
        self._period_s[slots] = period_s
        self._node_s[slots] += period_s + missing * usual_s
        since_s = now_s - self._last_s[slots]
        self._last_s[slots] = now_s
        at_its_pace = (usual_s / 2 <= since_s) & (since_s <= 2 * usual_s)
        self._paced[slots] = paced = np.where(at_its_pace, self._paced[slots] + 1, 0)
        way_s = now_s - self._node_s[slots]
        shortest_s = np.minimum(self._shortest_s[slots] + DRIFT * since_s, way_s)
        follows = (way_s - shortest_s > allowed_s) & (paced >= AT_ITS_OWN_PACE)
        self._shortest_s[slots] = shortest_s = np.where(follows, way_s, shortest_s)
        return np.asarray(way_s - shortest_s)
