"""Hooks: the operator's own programs, called when an episode begins or ends and when something was changed.

Each gets one JSON object on its standard input. They run beside the loop, bounded in time and number, and what becomes
of them changes nothing. Which episodes go on is followed while another lbengine drives the pool too, and kept on disk:
each beginning and each end is called once over takeovers and restarts, as far as that can be known.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from slackwater.files import bytes_of, write_whole
from slackwater.messages import Change, State, Verdict, encode

log = logging.getLogger("lbengine.hooks")

AT_ONCE = 4
"""Processes that run at a time."""
WAITING = 64
"""Calls that wait; the oldest are dropped, with a warning."""
SLOW: frozenset[State] = frozenset({"interference", "overload", "all_slow"})


class Hooks:
    """Calls `commands` (paths of programs). `call` never waits; `close` ends what still runs.

    `episodes` is the file that keeps which episodes go on, by pool and node; `clock` is monotonic.
    """

    def __init__(
        self,
        commands: Sequence[str],
        timeout_s: float,
        episodes: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.commands = commands
        self.timeout_s = timeout_s
        self._file = episodes
        self._clock = clock
        self._states = self._load() if commands else {}
        self._not_called: deque[tuple[float, str, dict[str, Any]]] = deque(maxlen=WAITING)
        """When it was seen, the pool, and what was left to the lbengine that drives it."""
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._running: set[asyncio.Task[None]] = set()

    def verdict(self, verdict: Verdict, *, ours: bool = True) -> None:
        """Calls `episode-start` and `episode-end` where a node's state changes so.

        `ours` false: another lbengine drives the pool and calls its own hooks, so it is only noted.
        """
        if not self.commands:
            return
        nodes = self._states.setdefault(verdict.pool, {})
        known = nodes.get(verdict.node)
        before = known or "calm"
        nodes[verdict.node] = verdict.state
        for event, was, now in (("episode-end", before, verdict.state), ("episode-start", verdict.state, before)):
            if was in SLOW and now != was:
                about = {"event": event, "state": was, "verdict": json.loads(encode(verdict))}
                if ours:
                    self.call(about)
                elif known is not None:
                    self._not_called.append((self._clock(), verdict.pool, about))
        if before != verdict.state and (before in SLOW or verdict.state in SLOW):
            self._save()

    def take_over(self, pool: str, since_s: float) -> None:
        """Calls what was seen of a pool since the lbengine before us was last heard of: it may have done so or not."""
        seen, self._not_called = self._not_called, deque(maxlen=WAITING)
        for seen_s, of, about in seen:
            if of != pool:
                self._not_called.append((seen_s, of, about))
            elif seen_s >= since_s:
                self.call(about)

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

    def _load(self) -> dict[str, dict[str, State]]:
        try:
            return msgspec.json.decode(bytes_of(self._file), type=dict[str, dict[str, State]])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            log.warning("%s: cannot be read (%s): hooks hear again of the episodes that go on", self._file, error)
            return {}

    def _save(self) -> None:
        """For a restart only, so it is not forced to the disk: after a power cut a beginning is reported again."""
        going_on = {
            pool: {node: state for node, state in nodes.items() if state in SLOW}
            for pool, nodes in self._states.items()
        }
        try:
            write_whole(self._file, msgspec.json.encode(going_on))
        except OSError as error:
            log.warning("%s: cannot be written: %s", self._file, error.strerror)

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
