"""Ends asyncio tasks for sure.

A task may miss its cancellation. `asyncio.wait_for` of Python 3.11 returns the result where that came in the same
moment, and nats-py catches CancelledError in places. A task that repeats its work then goes on for ever, and whoever
waits for its end, as `asyncio.run` does for all tasks, waits as long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

CANCEL_AGAIN_S = 0.2


async def end(task: asyncio.Task[Any]) -> None:
    """Cancels a task until it has ended; what it raises stays with it. Not for one that waits while it cleans up."""
    _cancel_until_done(task)
    await asyncio.wait([task])


async def within(limit_s: float, work: Coroutine[Any, Any, Result]) -> Result:
    """What `work` returns or raises; ends it and raises TimeoutError where it takes longer."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait([task], timeout=limit_s)
    finally:
        await end(task)
    if task.cancelled():
        raise TimeoutError
    return task.result()


def _cancel_until_done(task: asyncio.Task[Any]) -> None:
    """Goes on by itself, also where whoever waits for the end is cancelled in turn."""
    if not task.done():
        task.cancel()
        asyncio.get_running_loop().call_later(CANCEL_AGAIN_S, _cancel_until_done, task)
