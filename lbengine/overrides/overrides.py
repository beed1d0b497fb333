"""Operators' overrides of the configuration and the Verdicts: a pause, another mode, pinned weights, ended episodes.

All but the pause end by themselves: a pin at its time, an ended episode with its Verdicts, a mode when the
configuration's mode changes. They are on disk, so they outlive a restart. A pinned weight still passes the guard.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from slackwater.core.messages import Mode, Verdict
from slackwater.lbengine.state_file import StateFile, StateFileError

log = logging.getLogger("lbengine")

UNREADABLE = "pins and ended episodes are lost, and the pool only observes until `slackwater mode act`"


class CommandError(Exception):
    """A command cannot be carried out; the text has the reason."""


class Pause(msgspec.Struct, frozen=True):
    """A pause of a pool: operators set the weights until it ends."""

    by: str
    why: str
    since_unix_s: float


class Pin(msgspec.Struct, frozen=True):
    """A weight at which a person holds a server for a time."""

    weight: int
    by: str
    for_s: float = 0.0
    until_unix_s: float = 0.0


class EndedEpisode(msgspec.Struct, frozen=True):
    """An episode that an operator ended: Verdicts of the episode that began at `since_unix_s` count as calm."""

    since_unix_s: float
    by: str


class KeptOverrides(msgspec.Struct):
    """All overrides but the pause. That has a file of its own, since the file's presence alone pauses the pool."""

    mode: Mode | None = None
    instead_of: Mode | None = None
    """The configuration's mode when `mode` was set."""
    pins: dict[str, Pin] = {}
    ended: dict[str, EndedEpisode] = {}
    """Node -> its episode that a person ended."""


class OperatorOverrides:
    """The overrides in force for one pool. `now_s` is a monotonic clock, `wall_s` the wall's at the same moment.

    A method that changes an override raises StateFileError when it cannot be kept, and changes nothing then.
    """

    def __init__(self, state_dir: Path, pool: str, configured: Mode) -> None:
        self._pause_file = StateFile(state_dir / f"paused-{pool}.json", Pause)
        self._file = StateFile(state_dir / f"by-hand-{pool}.json", KeptOverrides)
        self._configured: Mode = configured
        self._until_s: dict[str, float] = {}
        self._unreadable = ""
        """Why what people set is not known; empty: it is."""
        self.paused = self._load_pause()
        try:
            self._kept = self._file.load() or KeptOverrides()
        except StateFileError as error:  # an unknown override is there: to observe only is the safe side
            self._kept = KeptOverrides(mode="observe", instead_of="act")
            self._unreadable = f"{error}; {UNREADABLE}"
            log.error("%s: %s", pool, self._unreadable)

    def _load_pause(self) -> Pause | None:
        try:
            return self._pause_file.load()
        except StateFileError as error:  # a file that cannot be read means a pause all the same
            return Pause(by="unknown", why=str(error), since_unix_s=0.0)

    def set_pause(self, pause: Pause | None) -> None:
        """Begins a pause, or ends it (None)."""
        self._pause_file.save(pause)
        self.paused = pause

    def adopt_pause(self, pause: Pause | None) -> None:
        """Takes over the pause of another lbengine, unless a pause is on disk here."""
        self.paused = self._load_pause()
        if self.paused is None and pause is not None:
            self.set_pause(pause)

    @property
    def mode(self) -> Mode:
        """The pool's mode: the override, as long as the configuration's mode is the one when it was set."""
        kept = self._kept
        return kept.mode if kept.mode is not None and kept.instead_of == self._configured else self._configured

    def set_mode(self, mode: Mode) -> None:
        same = mode == self._configured
        self._change(mode=None if same else mode, instead_of=None if same else self._configured)
        self._unreadable = ""

    def pin(self, server: str, weight: int, by: str, for_s: float, now_s: float, wall_s: float) -> None:
        """Holds a server at a weight for `for_s`."""
        self._change(pins={**self._kept.pins, server: Pin(weight, by, for_s, wall_s + for_s)})
        self._until_s[server] = now_s + for_s

    def unpin(self, server: str) -> None:
        """Ends a server's pin. Also raises CommandError when it is not pinned."""
        if server not in self._kept.pins:
            raise CommandError(f"{server} is not pinned")
        self._change(pins=_without(self._kept.pins, server))
        self._until_s.pop(server, None)

    def pins(self, now_s: float, wall_s: float) -> dict[str, Pin]:
        """The pins in force, by server.

        A pin from before a restart lasts until its time by the wall clock, but no longer than its whole length.
        """
        for server, kept in list(self._kept.pins.items()):
            left_s = min(kept.for_s, kept.until_unix_s - wall_s)
            if now_s >= self._until_s.setdefault(server, now_s + left_s):
                self.unpin(server)
        return dict(self._kept.pins)

    def end_episode(self, verdict: Verdict | None, node: str, by: str) -> None:
        """Ends a node's episode. Also raises CommandError when the node is in none."""
        if verdict is None or verdict.state in ("calm", "unknown"):
            raise CommandError(f"{node} is in no episode")
        self._change(ended={**self._kept.ended, node: EndedEpisode(verdict.since_unix_s, by)})

    def apply(self, verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
        """The Verdicts by node; those of an ended episode are changed to calm. A new episode counts again."""
        applied = dict(verdicts)
        for node, ended in list(self._kept.ended.items()):
            verdict = verdicts.get(node)
            if verdict is None:
                continue
            if verdict.state == "calm" or verdict.since_unix_s > ended.since_unix_s:
                with contextlib.suppress(StateFileError):
                    self._change(ended=_without(self._kept.ended, node))
                continue
            why = f"its episode was ended by {ended.by}"
            applied[node] = msgspec.structs.replace(verdict, state="calm", severity=0.0, path=[why])
        return applied

    def describe(self) -> list[str]:
        """The ended episodes, and what is not known, in words, for the cycle's sentence."""
        unknown = [self._unreadable] if self._unreadable else []
        return unknown + [f"{node}'s episode was ended by {ended.by}" for node, ended in self._kept.ended.items()]

    def _change(self, **fields: object) -> None:
        kept = msgspec.structs.replace(self._kept, **fields)
        self._file.save(None if kept == KeptOverrides() else kept)
        self._kept = kept


def _without(mapping: Mapping[str, object], key: str) -> dict[str, object]:
    return {name: value for name, value in mapping.items() if name != key}
