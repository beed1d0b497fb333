"""What the log says of a balancer that does not answer: a line when it is lost, and one when it is back."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

STEADY_S = 60.0
"""A balancer that has answered for so long is steady. Until then further short interruptions are counted, not told."""
LONG_S = 10.0
"""An interruption that lasts so long is told in any case."""
SUMMARY_EVERY_S = 600.0
"""While a balancer comes and goes."""


class OutageLog:
    """Of one pool's balancer. `title`: its name; `patience_s`: interruptions that are shorter are not told."""

    def __init__(
        self,
        log: logging.Logger,
        pool: str,
        title: str,
        clock: Callable[[], float] = time.monotonic,
        patience_s: float = 0.0,
    ) -> None:
        self._log, self._pool, self._title = log, pool, title
        self._clock, self._patience_s = clock, patience_s
        self._lost_s: float | None = None
        """When it answered no more; None: it answers."""
        self._is_told = False
        self._back_s = -math.inf
        """When it answered again last."""
        self._untold: list[float] = []
        """Lengths of the interruptions that were not told, s."""
        self._summary_s = -math.inf

    def lost(self, error: str) -> None:
        """It did not answer this time."""
        now_s = self._clock()
        if self._lost_s is None:
            self._lost_s, self._is_told = now_s, False
        is_steady = self._lost_s - self._back_s >= STEADY_S
        if not self._is_told and now_s - self._lost_s >= (self._patience_s if is_steady else LONG_S):
            self._is_told = True
            self._log.error("pool %s: %s; trying again until it answers", self._pool, error)

    def answered(self) -> None:
        """It answered this time."""
        now_s = self._clock()
        if self._lost_s is not None:
            away_s, self._lost_s, self._back_s = now_s - self._lost_s, None, now_s
            if self._is_told:
                self._log.warning("pool %s: %s answers again after %.1f s", self._pool, self._title, away_s)
                self._summary_s = now_s
            elif away_s >= self._patience_s:
                self._untold.append(away_s)
        if self._untold and (now_s - self._back_s >= STEADY_S or now_s - self._summary_s >= SUMMARY_EVERY_S):
            self._log.warning(
                "pool %s: %s came and went: %d more interruptions, %.1f s in all, since the last line about it",
                *(self._pool, self._title, len(self._untold), sum(self._untold)),
            )
            self._untold.clear()
            self._summary_s = now_s
