"""The thread that an engine turns in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


class EngineThread:
    """One piece of work after the other, beside the event loop, so that a stuck balancer holds up nothing else."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._loop = asyncio.get_running_loop()

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Runs a function in the thread, after those that came before it."""
        return await self._loop.run_in_executor(self._executor, work, *arguments)

    def wait_for(self, coroutine: Coroutine[Any, Any, Result], within_s: float) -> Result:
        """From within the thread: has the event loop run a coroutine. Raises TimeoutError, and cancels it then."""
        running = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return running.result(within_s)
        except TimeoutError:
            running.cancel()
            raise

    def shutdown(self) -> None:
        """No work comes after this."""
        self._executor.shutdown()
