"""Overrides that the second stage, or the replacement of a machine, requests for some seconds: no requests for a
server, fewer at a time, or its baseline weight.

A temporary override is a lease of seconds, kept by its server's name. The guard may limit it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

LONGEST_S = 60.0
Kind = Literal["drain", "limit", "hold"]
KINDS: tuple[Kind, ...] = get_args(Kind)
ACTIONS = (*KINDS, "undo")
"""Actions that may be requested over the bus."""


@dataclass(frozen=True)
class TemporaryOverride:
    """drain: no requests at all. limit: at most `maxconn` at a time. hold: the server keeps its baseline weight."""

    kind: Kind
    until_s: float
    by: str
    why: str
    maxconn: int | None = None
    is_firm: bool = False
    """A drain: it stays empty also where the others cannot carry its load, as its machine is being taken away."""

    def __str__(self) -> str:
        does = {
            "drain": "drained",
            "limit": f"limited to {self.maxconn} at a time",
            "hold": "kept at its baseline weight",
        }
        return f"{does[self.kind]} for {self.by}: {self.why}"


class TemporaryOverrides:
    """The overrides, at most one of each kind for each server and each who asks; `now_s` is a monotonic clock."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Kind, str, str], TemporaryOverride] = {}

    def take(self, server: str, question: Mapping[str, Any], now_s: float) -> str:
        """Carries out one of ACTIONS as it came over the bus; returns a sentence. Raises ValueError."""
        action, for_s = question.get("action"), question.get("for_s", 0.0)
        by, why = str(question.get("by", "")), str(question.get("why", ""))
        if action == "undo":
            undone_kind = question.get("what")
            dropped = [self._kept.pop((kind, server, by), None) for kind in KINDS if undone_kind in (None, kind)]
            return f"{server}: {'left to the law again' if any(dropped) else 'no override was in force'}"
        kind = next(kind for kind in KINDS if kind == action)
        if not isinstance(for_s, int | float) or not 0.0 < for_s <= LONGEST_S:
            raise ValueError(f"`for_s` must be more than 0 and at most {LONGEST_S:g} seconds, got {for_s!r}")
        maxconn = question.get("maxconn")
        if kind == "limit" and (not isinstance(maxconn, int) or isinstance(maxconn, bool) or maxconn < 1):
            raise ValueError(f"`maxconn` must be a whole number from 1, got {maxconn!r}")
        is_firm = kind == "drain" and question.get("firm") is True
        override = TemporaryOverride(kind, now_s + for_s, by, why, maxconn if kind == "limit" else None, is_firm)
        self._kept[kind, server, by] = override
        return f"{server}: {override}, for {for_s:g} s"

    def in_force(self, kind: Kind, now_s: float) -> dict[str, TemporaryOverride]:
        """The overrides of one kind that have not ended, by server; of several the firm one, else the newest."""
        self._kept = {key: override for key, override in self._kept.items() if override.until_s > now_s}
        of_kind = [(server, override) for (kept_kind, server, _), override in self._kept.items() if kept_kind == kind]
        return dict(sorted(of_kind, key=lambda pair: pair[1].is_firm))

    def forget(self) -> None:
        """Drops all overrides. It is called when an operator has paused the pool or changed its mode."""
        self._kept.clear()
