"""Signal handlers for the length of a `with`."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
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
