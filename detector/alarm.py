"""A sleep that messages end early: one timer, and no task of its own."""

from __future__ import annotations

import asyncio


class Alarm:
    """Ends the sleep of one task. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        """Of the present sleep."""

    async def sleep_until(self, at_s: float) -> None:
        """Until then, or until an earlier time given meanwhile; at once if `ring` was called since the last sleep."""
        self._set(at_s)
        try:
            await self._rung.wait()
        finally:
            self._drop()
            self._rung.clear()

    def bring_forward(self, at_s: float) -> None:
        """The present sleep ends then at the latest; nothing where nobody sleeps."""
        if self._timer is not None and at_s < self._timer.when():
            self._drop()
            self._set(at_s)

    def ring(self) -> None:
        """Ends the present sleep at once, or the next one."""
        self._rung.set()

    def _set(self, at_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_at(at_s, self.ring)

    def _drop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
