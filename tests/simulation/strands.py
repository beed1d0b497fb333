"""Threads that run one at a time, and only while the simulation waits for them: their order is the simulation's."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, ClassVar


class Crashed(BaseException):
    """The process that this code belongs to is no more."""


class Strand:
    """A thread that runs from `go_on` until its next `pause`, or its end. Threads are used again."""

    _idle: ClassVar[dict[int, list[Strand]]] = {}
    """Process id -> its idle strands: threads do not outlive a fork."""

    def __init__(self) -> None:
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._reset(lambda: None)
        threading.Thread(target=self._serve, daemon=True).start()

    def _reset(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._result: Any = None
        self._error: BaseException | None = None
        self._is_crashed = False
        self.is_done = False
        self.waker: Callable[[], None] = lambda: None

    @classmethod
    def begin(cls, work: Callable[[], Any]) -> Strand:
        """A thread that will do this with the first `go_on`."""
        idle = cls._idle.setdefault(os.getpid(), [])
        strand = idle.pop() if idle else cls()
        strand._reset(work)
        return strand

    def go_on(self) -> None:
        """Lets it run until it pauses or ends."""
        self._go.release()
        self._back.acquire()

    def pause(self) -> None:
        """Called from within: waits for the next `go_on`."""
        self._back.release()
        self._go.acquire()
        if self._is_crashed:
            raise Crashed

    def outcome(self) -> tuple[Any, BaseException | None]:
        """The result, or what was raised; the thread may do something else afterwards."""
        result, error = self._result, self._error
        self._reset(lambda: None)
        self._idle[os.getpid()].append(self)
        return result, error

    def crash(self) -> None:
        """Leaves the work where it pauses."""
        self._is_crashed = True
        self.go_on()
        self.outcome()

    def _serve(self) -> None:
        while True:
            self._go.acquire()
            try:
                self._result = self._work()
            except BaseException as error:  # whoever waits for it gets it
                self._error = error
            self.is_done = True
            self._back.release()
