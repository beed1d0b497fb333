"""Commands for one pool that came over the bus, from people and from the second stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slackwater.core.config import PoolSettings
from slackwater.core.control import Request
from slackwater.core.messages import Verdict
from slackwater.lbengine.overrides.overrides import CommandError, OperatorOverrides, Pause
from slackwater.lbengine.overrides.temporary import TemporaryOverrides

Record = Callable[[str, str, str | None, str | int | None, str, str, float | None], None]
"""Records a command that was carried out: (action, target, before, after, why, by, begin of the episode, Unix s)."""


class OperatorCommands:
    """Carries out commands. Their effects are kept in `overrides` and `temporary`, and each command is recorded."""

    def __init__(self, pool: PoolSettings, state_dir: Path, record: Record, wall: Callable[[], float]) -> None:
        self.overrides = OperatorOverrides(state_dir, pool.name, pool.mode)
        self.temporary = TemporaryOverrides()
        self._pool = pool
        self._record = record
        self._wall = wall

    def describe(self) -> str:
        """The pause, or without one the mode, in words."""
        paused = self.overrides.paused
        if paused is None:
            return f"mode is {self.overrides.mode}"
        return f"paused by {paused.by}{f' ({paused.why})' if paused.why else ''}"

    def carry_out(
        self, request: Request, baselines: Mapping[str, int], verdicts: Mapping[str, Verdict], now_s: float
    ) -> tuple[str, bool]:
        """Carries out a command; returns what was done, in words, and whether the engine should take a turn at once.

        `baselines`: weights by server; `verdicts`: fresh Verdicts by node. Raises CommandError for a command that
        cannot be carried out, StateFileError where its effect cannot be kept.
        """
        overrides, by, target = self.overrides, request.by, request.target or self._pool.name
        before: str | None = None
        after: str | int | None = None
        why, done = request.why, ""
        match request.action:
            case "pause":
                if overrides.paused is not None:
                    return f"{self.describe()} already", False
                overrides.set_pause(Pause(by, why, self._wall()))
                self.temporary.forget()
                done = self.describe()
            case "resume":
                if overrides.paused is None:
                    return "not paused", False
                overrides.set_pause(None)
                done = f"resumed by {by}"
            case "mode":
                assert request.mode is not None
                before, after = overrides.mode, request.mode
                if before == after:
                    return f"mode is {after} already", False
                overrides.set_mode(request.mode)
                self.temporary.forget()
                done = f"mode is {after} by {by}"
            case "pin":
                assert request.weight is not None
                assert request.for_s is not None
                _check_pin(target, request.weight, baselines)
                overrides.pin(target, request.weight, by, request.for_s, now_s, self._wall())
                after, why = request.weight, f"{why + ': ' if why else ''}for {request.for_s:g} s"
                done = f"{target} is pinned at {after} by {by} for {request.for_s:g} s"
            case "unpin":
                overrides.unpin(target)
                done = f"{target} is no longer pinned"
            case "end_episode":
                overrides.end_episode(verdicts.get(target), target, by)
                done = f"{target}'s episode was ended by {by}"
            case "acknowledge":
                done = f"{target} acknowledged by {by}"
            case "mark_episode":
                assert request.mark is not None
                after = request.mark
                done = f"{target}'s episode is marked `{after}` by {by}"
            case "ask_samples":
                assert request.for_s is not None
                if target not in verdicts:
                    known = ", ".join(sorted(verdicts)) or "none"
                    raise CommandError(f"no node `{target}` is heard of; there are: {known}")
                if verdicts[target].source != "monitor":
                    raise CommandError(f"{target} has no monitor that is heard of, so none can be asked")
                after, why = f"{request.for_s:g} s", why or "fast Samples"
                done = f"{target}'s monitor is asked for Samples as often as in an event by {by} for {after}"
        self._record(request.action, target, before, after, why, by, request.since_unix_s)
        return done, request.action not in ("acknowledge", "mark_episode", "ask_samples")

    def override_temporarily(self, question: Mapping[str, Any], servers: Sequence[str], now_s: float) -> str:
        """Sets a temporary override for the servers of one node. Raises ValueError."""
        if self.overrides.paused is not None or self.overrides.mode != "act":
            raise ValueError(self.describe())
        if not servers:
            raise ValueError(f"no server of {self._pool.name} is the node {question.get('node')!r}")
        return "; ".join(self.temporary.take(server, question, now_s) for server in servers)


def _check_pin(server: str, weight: int, baselines: Mapping[str, int]) -> None:
    known = ", ".join(sorted(baselines)) or "none"
    if server not in baselines:
        raise CommandError(f"no server `{server}` with a baseline weight; there are: {known}")
    if weight > baselines[server]:
        raise CommandError(f"{server}'s baseline weight is {baselines[server]}; a pin may not be above it")
