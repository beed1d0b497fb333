"""Hooks: the site's own programs, called when an episode begins or ends and when something was changed.

Each gets one JSON object on its standard input. They run beside the loop, bounded in time and number, and what becomes
of them changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
from collections import deque
from collections.abc import Sequence
from typing import Any

from slackwater.messages import Change, State, Verdict, encode

log = logging.getLogger("lbengine.hooks")

AT_ONCE = 4
"""Processes that run at a time."""
WAITING = 64
"""Calls that wait; the oldest are dropped, and said so."""
SLOW: frozenset[State] = frozenset({"interference", "overload", "all_slow"})


class Hooks:
    """Calls `commands` (paths of programs). `call` never waits; `close` ends what still runs."""

    def __init__(self, commands: Sequence[str], timeout_s: float) -> None:
        self.commands = commands
        self.timeout_s = timeout_s
        self._states: dict[tuple[str, str], State] = {}
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._running: set[asyncio.Task[None]] = set()

    def verdict(self, verdict: Verdict) -> None:
        """Calls `episode-start` and `episode-end` where a node's state says so."""
        key = verdict.pool, verdict.node
        before = self._states.get(key, "calm")
        self._states[key] = verdict.state
        for event, was, now in (("episode-end", before, verdict.state), ("episode-start", verdict.state, before)):
            if was in SLOW and now != was:
                about = json.loads(encode(verdict))
                self.call({"event": event, "state": was, "verdict": about})

    def change(self, change: Change) -> None:
        """Calls `change`."""
        self.call({"event": "change", "change": json.loads(encode(change))})

    def call(self, about: dict[str, Any]) -> None:
        """Has each program called as soon as there is room."""
        data = json.dumps(about).encode() + b"\n"
        for command in self.commands:
            if len(self._waiting) >= WAITING:
                dropped, _ = self._waiting.popleft()
                log.warning("hook %s: a call was dropped, %d are waiting", dropped, WAITING)
            self._waiting.append((command, data))
        self._start()

    async def close(self) -> None:
        """Kills what runs and forgets what waits."""
        self._waiting.clear()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _start(self) -> None:
        while self._waiting and len(self._running) < AT_ONCE:
            command, data = self._waiting.popleft()
            task = asyncio.create_task(self._run(command, data))
            self._running.add(task)
            task.add_done_callback(self._next)

    def _next(self, done: asyncio.Task[None]) -> None:
        self._running.discard(done)
        if not done.cancelled():
            self._start()

    async def _run(self, command: str, data: bytes) -> None:
        try:
            process = await asyncio.create_subprocess_exec(
                command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            log.error("hook %s: cannot be called: %s", command, error.strerror or error)
            return
        try:
            async with asyncio.timeout(self.timeout_s):
                await process.communicate(data)
            if process.returncode:
                log.warning("hook %s: ended with status %s", command, process.returncode)
        except TimeoutError:
            log.warning("hook %s: killed after %g s", command, self.timeout_s)
        finally:
            # With everything that it has started: it leads a session of its own.
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
