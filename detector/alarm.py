"""A sleep that messages can end early. It needs one timer, and no task of its own."""

from __future__ import annotations

import asyncio


class Alarm:
    """Ends the sleep of one task. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        """The timer of the present sleep; None: no task sleeps."""

    async def sleep_until(self, until_s: float) -> None:
        """Sleeps until this time, or until an earlier one that `bring_forward` sets.

        It returns at once if `ring` was called since the last sleep.
        """
        self._set(until_s)
        try:
            await self._rung.wait()
        finally:
            self._drop()
            self._rung.clear()

    def bring_forward(self, until_s: float) -> None:
        """Has the present sleep, if any, end at this time at the latest."""
        if self._timer is not None and until_s < self._timer.when():
            self._drop()
            self._set(until_s)

    def ring(self) -> None:
        """Ends the present sleep at once, or the next one."""
        self._rung.set()

    def _set(self, until_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_at(until_s, self.ring)

    def _drop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
