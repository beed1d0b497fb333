"""The clock of a recording that is played, and its pace."""

from __future__ import annotations

import time


class Clock:
    """Wall time of the recording, in seconds; moved by the player."""

    def __init__(self, start_unix_s: float) -> None:
        self.now_unix_s = start_unix_s

    def __call__(self) -> float:
        return self.now_unix_s


class Pace:
    """Waits so that a recording's seconds pass `speed` times as fast as real ones. A round begins with a wait."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._began_s: float | None = None

    def begin_again(self) -> None:
        """The next wait begins another round."""
        self._began_s = None

    def wait(self, now_s: float) -> None:
        """Until it is `now_s` in the recording; at once if that has passed."""
        if self._began_s is None:
            self._began_s = time.monotonic() - now_s / self._speed
        left_s = self._began_s + now_s / self._speed - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)
