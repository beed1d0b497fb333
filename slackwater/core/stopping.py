"""How a program of ours hears that it shall end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
HAND_OVER = signal.SIGUSR1
"""From the supervisor to lbengine and to the replacement of machines: end, and leave what is set, or runs, to the next
one, which is started at once, or when what runs has ended."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, for programs that call `on_stop` or `stop_event`.

    When it closes its loop, asyncio closes the socket that signals are written to before it takes their handlers away.
    A second SIGTERM in between has CPython print a traceback. Here signals are no longer written by then.
    """
    with asyncio.Runner() as runner:
        try:
            return runner.run(main)
        finally:
            signal.set_wakeup_fd(-1)


def on_stop(call: Callable[[], object]) -> None:
    """Has the running event loop call this on SIGTERM and SIGINT."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, call)


def stop_event() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    on_stop(stop.set)
    return stop
