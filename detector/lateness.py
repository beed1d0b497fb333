"""How late a node's Samples come, by two clocks that only go forward: the node's, which is the sum of its periods'
lengths, and ours. Wall clocks, which are set and differ between machines, have no part in it.
"""

from __future__ import annotations

DRIFT = 1e-3
"""Two machines' clocks go at least this much alike: so fast the shortest way ever seen is forgotten."""
AT_ITS_OWN_PACE = 3
"""So many Samples in a row, each about a period after the one before, are of now, however late they look: the node was
suspended, or its clock jumped. What waited for the bus comes in a bunch."""


class Timeline:
    """Of one run of one node's monitor."""

    def __init__(self, now_s: float, period_s: float) -> None:
        self._node_s = 0.0
        self._shortest_s = now_s
        self._last_s = now_s
        self._period_s = period_s
        self._paced = 0

    def late_s(self, now_s: float, period_s: float, missing: int, allowed_s: float) -> float:
        """By how much longer than the shortest way a Sample took that came `now_s` and covers `period_s`.

        `missing` Samples before it never came. More than `allowed_s` at the node's own pace becomes the shortest way.
        """
        usual_s = min(period_s, self._period_s)
        self._period_s = period_s
        self._node_s += period_s + missing * usual_s
        since_s = now_s - self._last_s
        self._last_s = now_s
        self._paced = self._paced + 1 if usual_s / 2 <= since_s <= 2 * usual_s else 0
        way_s = now_s - self._node_s
        self._shortest_s = min(self._shortest_s + DRIFT * since_s, way_s)
        if way_s - self._shortest_s > allowed_s and self._paced >= AT_ITS_OWN_PACE:
            self._shortest_s = way_s
        return way_s - self._shortest_s
