"""What the second stage asks of the balancer for a while: no requests for a server, fewer at a time, or its full share.

A wish is a lease of seconds, kept by its server's name, and only a wish: the guard decides. It ends by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LONGEST_S = 60.0
KINDS = ("drain", "limit", "hold")
WISHES = (*KINDS, "undo")


@dataclass(frozen=True)
class Wish:
    """`maxconn` None: no requests at all; else at most so many at a time. `hold`: it keeps its baseline weight."""

    until_s: float
    by: str
    why: str
    maxconn: int | None = None
    hold: bool = False

    @property
    def told(self) -> str:
        what = "drained" if self.maxconn is None else f"limited to {self.maxconn} at a time"
        return f"{'kept at its baseline weight' if self.hold else what} for {self.by}: {self.why}"


class Wishes:
    """At most one of each kind for each server; `now_s` is a monotonic clock."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, Wish]] = {kind: {} for kind in KINDS}

    def take(self, server: str, question: Mapping[str, Any], now_s: float) -> str:
        """Takes one of WISHES as it came over the bus; what it comes to in words. Raises ValueError."""
        action, for_s = question.get("action"), question.get("for_s", 0.0)
        if action == "undo":
            what = question.get("what")
            found = [wishes.pop(server, None) for kind, wishes in self._of.items() if what in (None, kind)]
            return f"{server}: {'left to the law again' if any(found) else 'nothing was asked for'}"
        if not isinstance(for_s, int | float) or not 0.0 < for_s <= LONGEST_S:
            raise ValueError(f"`for_s` must be more than 0 and at most {LONGEST_S:g} seconds, got {for_s!r}")
        most = question.get("maxconn")
        if action == "limit" and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
            raise ValueError(f"`maxconn` must be a whole number from 1, got {most!r}")
        by, why = str(question.get("by", "")), str(question.get("why", ""))
        wish = Wish(now_s + for_s, by, why, most if action == "limit" else None, action == "hold")
        self._of[str(action)][server] = wish
        return f"{server}: {wish.told}, for {for_s:g} s"

    def drains(self, now_s: float) -> dict[str, Wish]:
        """Server -> its drain, while it lasts."""
        return self._lasting("drain", now_s)

    def limits(self, now_s: float) -> dict[str, Wish]:
        """Server -> its limit, while it lasts."""
        return self._lasting("limit", now_s)

    def holds(self, now_s: float) -> dict[str, Wish]:
        """Server -> its hold, while it lasts."""
        return self._lasting("hold", now_s)

    def _lasting(self, kind: str, now_s: float) -> dict[str, Wish]:
        self._of[kind] = {server: wish for server, wish in self._of[kind].items() if wish.until_s > now_s}
        return dict(self._of[kind])

    def forget(self) -> None:
        """Somebody says: hands off."""
        for wishes in self._of.values():
            wishes.clear()
