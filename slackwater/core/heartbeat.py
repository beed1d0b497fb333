"""Progress of a child of the supervisor: a byte over an inherited pipe when its work has come round.

Nothing else writes to the pipe: no thread of its own, no timer. So a process that hangs, wherever, is silent.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, MutableMapping

VARIABLE = "SLACKWATER_HEARTBEAT_FD"
"""Environment variable with the pipe's descriptor."""


class Heartbeat:
    """The child's end. `parts` work independently of each other: each must come round before the next byte is sent."""

    def __init__(self, parts: Iterable[str] = ("work",), environment: MutableMapping[str, str] = os.environ) -> None:
        self._parts = frozenset(parts)
        self._waited_for = set(self._parts)
        # Taken out: programs that we start (hooks) have nothing to report.
        number = environment.pop(VARIABLE, "")
        self._fd = int(number) if number.isdigit() else None
        if self._fd is not None:
            os.set_inheritable(self._fd, False)

    def beat(self, part: str = "work") -> None:
        """A part has completed a piece of its work; outside the supervisor this does nothing."""
        self._waited_for.discard(part)
        if self._waited_for:
            return
        self._waited_for |= self._parts
        if self._fd is not None:
            # A full pipe has enough to be read; a supervisor that is gone is noticed elsewhere.
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(self._fd, b".")
