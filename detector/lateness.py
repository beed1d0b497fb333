"""How late nodes' Samples come, by two clocks that only go forward: ours, and the node's, which is the sum of its
periods' lengths. Wall clocks are not used, since they are set and differ between machines.
"""

from __future__ import annotations

import numpy as np

from slackwater.detector.features.columns import Floats, Ints
from slackwater.detector.slot_arrays import SlotArrays

DRIFT = 1e-3
"""The most by which the speeds of two machines' clocks differ. At this rate the shortest way so far grows."""
AT_ITS_OWN_PACE = 3
"""When this many Samples in a row come about a period after each other they are of now, however late they look: the
node was suspended, or its clock jumped. Samples that waited for the bus come in a bunch."""


class Timelines(SlotArrays):
    """The clocks of the present run of each slot's monitor."""

    _node_s: Floats
    _shortest_s: Floats
    _last_s: Floats
    _period_s: Floats
    _paced: Ints

    def __init__(self) -> None:
        super().__init__(_node_s=0.0, _shortest_s=0.0, _last_s=0.0, _period_s=0.0, _paced=0)

    def start(self, slots: Ints, now_s: float, period_s: Floats) -> None:
        """Starts the clocks with the first Sample of a run, (M,)."""
        self._node_s[slots], self._paced[slots] = 0.0, 0
        self._shortest_s[slots] = self._last_s[slots] = now_s
        self._period_s[slots] = period_s

    def late_s(self, slots: Ints, now_s: float, period_s: Floats, missing: Ints, allowed_s: float) -> Floats:
        """(M,) how much longer than the shortest way a Sample took that came at `now_s` and covers `period_s`.

        `missing`: number of Samples before it that never came. A way that is longer by more than `allowed_s` becomes
        the shortest way when Samples come at the node's own pace.
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
