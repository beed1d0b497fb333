"""Whether a lower weight was followed: cookies can send requests to a server whatever its weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PATIENCE_S = 5.0
"""Requests that are on their way, and the rate's window, get so long."""
FACTOR, MARGIN = 2.0, 0.05
"""A share counts as too high above FACTOR times the expected one plus MARGIN."""


@dataclass
class ShareMonitor:
    """Remembers since when a reduced server gets more than its weight says."""

    _since_s: dict[str, float] = field(default_factory=dict)
    _said: set[str] = field(default_factory=set)

    def look(
        self, now_s: float, shares: Mapping[str, float], weights: Mapping[str, int], baselines: Mapping[str, int]
    ) -> tuple[dict[str, tuple[float, float]], set[str]]:
        """Server -> (share, expected share) of those that get too much for long; and which of them are news."""
        whole = sum(weights.values())
        high: dict[str, tuple[float, float]] = {}
        for server, weight in weights.items():
            expected = weight / whole if whole else 0.0
            reduced = weight < baselines.get(server, 0)
            if reduced and shares.get(server, 0.0) > FACTOR * expected + MARGIN:
                if now_s - self._since_s.setdefault(server, now_s) >= PATIENCE_S:
                    high[server] = (shares[server], expected)
            else:
                self._since_s.pop(server, None)
                self._said.discard(server)
        news = high.keys() - self._said
        self._said |= news
        return high, set(news)
