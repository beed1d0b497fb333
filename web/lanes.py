"""Work that takes much memory or time is done by a few requests at a time; some wait for their turn, more are refused.

A request that waits holds one of the server's threads, so few may wait, and not for long.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

WAITS_S = 10.0
RETRY_S = 5
"""After this time a refused client may try again."""


class BusyError(Exception):
    """Too many ask for the same kind of work; the text is for people."""


class Lane:
    """Lets `at_once` threads work, and `waiting` more wait for them. May be used from several threads."""

    def __init__(self, at_once: int, waiting: int, waits_s: float = WAITS_S) -> None:
        self._places = threading.BoundedSemaphore(at_once + waiting)
        self._work = threading.BoundedSemaphore(at_once)
        self._waits_s = waits_s

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The block's turn to work. Raises BusyError, at once where too many wait already."""
        if not self._places.acquire(blocking=False):
            raise BusyError("too many ask for this at the same time; try again in a moment")
        try:
            if not self._work.acquire(timeout=self._waits_s):
                raise BusyError(f"those before did not come to an end within {self._waits_s:g} s; try again later")
            try:
                yield
            finally:
                self._work.release()
        finally:
            self._places.release()
