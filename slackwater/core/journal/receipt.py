"""Times of messages, put right on receipt: the journal's rows are dated by this machine's clock.

A sender's clock is believed while it is near ours. The times of any other clock are shifted, by the same amount as long
as the result stays near ours: so the order and the distances of the sender's messages stay as they were.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from slackwater.core.messages import WSENGINE, Change, Knobs, Message, Verdict

NEAR_S = 60.0
M = TypeVar("M", bound=Message)


class Receipt:
    """Dates messages of all senders. `clock` gives this machine's wall time in seconds."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._shifts_s: dict[tuple[type, str, str], float] = {}
        """By how much each sender's clock is off; senders whose clocks are right are missing."""

    def dated(self, message: M) -> M:
        """The message with times of our clock. Changes of the controller and of people keep theirs."""
        if isinstance(message, Knobs) or (isinstance(message, Change) and message.by != WSENGINE):
            return message
        target = message.target if isinstance(message, Change) else getattr(message, "node", "")
        sender = type(message), message.pool, target
        now_unix_s = self._clock()
        shift_s = self._shifts_s.get(sender, 0.0)
        if abs(message.time_unix_s + shift_s - now_unix_s) > NEAR_S:
            shift_s = now_unix_s - message.time_unix_s
            if abs(shift_s) <= NEAR_S:
                shift_s = 0.0
            self._shifts_s[sender] = shift_s
        if shift_s == 0.0:
            self._shifts_s.pop(sender, None)
            return message
        times = {"time_unix_s": message.time_unix_s + shift_s}
        if isinstance(message, Verdict):
            times["since_unix_s"] = message.since_unix_s + shift_s
        return msgspec.structs.replace(message, **times)
