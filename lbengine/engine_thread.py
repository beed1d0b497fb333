"""The thread in which an engine runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


class EngineThread:
    """Runs functions one after the other beside the event loop, so that a stuck balancer holds up nothing else."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._loop = asyncio.get_running_loop()

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Runs a function in the thread, after the functions that came before it; returns its result."""
        return await self._loop.run_in_executor(self._executor, work, *arguments)

    def wait_for(self, coroutine: Coroutine[Any, Any, Result], within_s: float) -> Result:
        """Called from within the thread: has the event loop run a coroutine, and returns its result.

        A coroutine that takes longer than `within_s` is cancelled, and TimeoutError is raised.
        """
        running = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return running.result(within_s)
        except TimeoutError:
            running.cancel()
            raise

    def shutdown(self) -> None:
        """Ends the thread. No work may follow."""
        self._executor.shutdown()
