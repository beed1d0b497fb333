"""How the supervisor notices that a child makes progress: the child reports it, or it answers."""

from __future__ import annotations

import os
from typing import Protocol

READ_BYTES = 65536


class Progress(Protocol):
    """A way to observe a child's progress. It never blocks."""

    def is_made(self) -> bool:
        """Whether there was progress since the last call."""

    def close(self) -> None:
        """Frees what was opened for one life of the child."""


class Pipe:
    """Reports of the child itself, by `slackwater.core.heartbeat.Heartbeat`."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def close_writer(self) -> None:
        """Closes the writing end; called once the child has it."""
        os.close(self.writer)

    def is_made(self) -> bool:
        try:
            return bool(os.read(self._reader, READ_BYTES))
        except BlockingIOError:
            return False

    def close(self) -> None:
        os.close(self._reader)
