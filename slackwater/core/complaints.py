"""Says each thing seldom: a faulty sender is faulty five times a second, and a hostile one more often."""

from __future__ import annotations

import time
from collections.abc import Callable

EVERY_S = 60.0
MOST = 20
"""Most different complaints within `EVERY_S`, so that nobody fills a log with ever new ones."""


class Complaints:
    """What was said lately."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said_s: dict[str, float] = {}

    def are_due(self, about: str) -> bool:
        """Whether to say something about this now; it counts as said."""
        now_s = self._clock()
        self._said_s = {complaint: at_s for complaint, at_s in self._said_s.items() if now_s - at_s < EVERY_S}
        if about in self._said_s or len(self._said_s) >= MOST:
            return False
        self._said_s[about] = now_s
        return True
