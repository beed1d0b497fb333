"""How a program of ours hears that it shall end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

HAND_OVER = signal.SIGUSR1
"""From the supervisor to lbengine and to the replacement of machines: end, and leave what is set, or runs, to the next
one, which is started at once, or when what runs has ended."""


def on_stop(call: Callable[[], object]) -> None:
    """Has the running event loop call this on SIGTERM and SIGINT."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, call)


def stop_event() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    on_stop(stop.set)
    return stop
