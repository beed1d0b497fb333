"""Signal handlers for the length of a `with`."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


@contextlib.contextmanager
def handlers(handler: Any, *numbers: signal.Signals) -> Iterator[None]:
    """Handles these signals so, and as before afterwards. Does nothing in another thread than the main one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the `with` in order, as Ctrl-C does."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    with handlers(leave, signal.SIGTERM, signal.SIGHUP):
        yield


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Signals wait until everything is down."""
    with handlers(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield
