"""Hooks: the operator's own programs, called when an episode begins or ends and when something was changed.

Each program gets a JSON object on its standard input. Programs run beside the event loop, limited in time and number,
and their results change nothing. The episodes that go on are kept on disk, and are followed while another lbengine
drives the pool too. So each begin and each end is reported once over takeovers and restarts, as far as that can be
known.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from slackwater.core import programs
from slackwater.core.files import bytes_of, write_whole
from slackwater.core.messages import Change, State, Verdict, encode

log = logging.getLogger("lbengine.hooks")

AT_ONCE = 4
"""The most processes that run at a time."""
WAITING = 64
"""The most calls that wait. Beyond it the oldest are dropped, with a warning."""
SLOW: frozenset[State] = frozenset({"interference", "slow", "errors", "overload", "all_slow"})


class Hooks:
    """Calls `commands` (paths of programs). `call` never waits; `close` ends the programs that still run.

    `timeout_s`: a program that runs longer is killed. `episodes`: the file that keeps the episodes that go on, by pool
    and node. `clock` is monotonic.
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
        """Calls that were left to the lbengine that drives the pool: (time, pool, the call's object)."""
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque()
        self._running: set[asyncio.Task[None]] = set()

    def verdict(self, verdict: Verdict, *, ours: bool = True) -> None:
        """Calls `episode-start` and `episode-end` where a Verdict begins or ends an episode.

        `ours` false: another lbengine drives the pool and calls its own hooks, so the call is only kept for a takeover.
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
        """Makes the calls that were left to the lbengine before us since it was last heard of; some may come twice."""
        seen, self._not_called = self._not_called, deque(maxlen=WAITING)
        for seen_s, seen_pool, about in seen:
            if seen_pool != pool:
                self._not_called.append((seen_s, seen_pool, about))
            elif seen_s >= since_s:
                self.call(about)

    def change(self, change: Change) -> None:
        """Calls `change` with a Change that was published, unless it is a trial: of these there are many."""
        if change.cause == "tried":
            return
        self.call({"event": "change", "change": json.loads(encode(change))})

    def call(self, about: dict[str, Any]) -> None:
        """Has each program called with this object as soon as fewer than `AT_ONCE` run."""
        for command in self.commands:
            if len(self._waiting) >= WAITING:
                dropped, _ = self._waiting.popleft()
                log.warning("hook %s: a call was dropped, %d are waiting", dropped, WAITING)
            self._waiting.append((command, about))
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
        """Writes the episodes that go on, for a restart. They are not forced to the disk: after a power cut a begin is
        reported again."""
        going_on = {
            pool: {node: state for node, state in nodes.items() if state in SLOW}
            for pool, nodes in self._states.items()
        }
        try:
            write_whole(self._file, msgspec.json.encode(going_on))
        except OSError as error:
            log.warning("%s: cannot be written: %s", self._file, error.strerror)

    async def close(self) -> None:
        """Kills the programs that run and forgets the calls that wait."""
        self._waiting.clear()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _start(self) -> None:
        while self._waiting and len(self._running) < AT_ONCE:
            command, about = self._waiting.popleft()
            task = asyncio.create_task(self._run(command, about))
            self._running.add(task)
            task.add_done_callback(self._next)

    def _next(self, done: asyncio.Task[None]) -> None:
        self._running.discard(done)
        if not done.cancelled():
            self._start()

    async def _run(self, command: str, about: dict[str, Any]) -> None:
        end = await programs.call(command, about, self.timeout_s)
        if end.error:
            log.error("hook %s: cannot be called: %s", command, end.error)
        elif end.is_late:
            log.warning("hook %s: killed after %g s", command, self.timeout_s)
        elif end.status:
            log.warning("hook %s: ended with status %s", command, end.status)
