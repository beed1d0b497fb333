"""What came of a change: some seconds after a move of a server's weight its outcome is recorded beside it."""

from __future__ import annotations

from dataclasses import dataclass

from lbengine.changes import lowers
from slackwater.messages import Change

AFTER_S = 10.0
LEAST_AFTER_S = 2.0
"""A move that another one cuts short sooner than this has no outcome: the response times are still those of before."""


@dataclass
class Move:
    """One or more changes of a server in one direction."""

    first: Change
    last: Change
    changed_s: float
    share: float | None
    """Of the requests, before the move."""


@dataclass
class FollowUps:
    """Moves whose outcome is still to be told, one a server."""

    waiting: dict[str, Move]

    def add(self, change: Change, now_s: float, share: float | None) -> list[tuple[Move, float]]:
        """Takes a change of a weight in; returns a move that it cuts short, with the seconds since its last change,
        if these were enough for an outcome."""
        before = self.waiting.get(change.target)
        if before is not None and lowers(before.last) == lowers(change):
            before.last, before.changed_s = change, now_s
            return []
        self.waiting[change.target] = Move(change, change, now_s, share)
        if before is None or now_s - before.changed_s < LEAST_AFTER_S:
            return []
        return [(before, now_s - before.changed_s)]

    def due(self, now_s: float) -> list[tuple[Move, float]]:
        """Moves whose last change is long enough ago."""
        due = [move for move in self.waiting.values() if now_s - move.changed_s >= AFTER_S]
        for move in due:
            del self.waiting[move.first.target]
        return [(move, now_s - move.changed_s) for move in due]


def told(move: Move, after_s: float, p95_ms: float | None, share: float | None) -> str:
    """In words with numbers."""
    first = move.first
    parts = []
    if first.rt_p95_ms is not None and p95_ms is not None:
        predicted = f" ({first.rt_p95_predicted_ms:.1f} predicted)" if first.rt_p95_predicted_ms is not None else ""
        parts.append(f"the pool's p95 {first.rt_p95_ms:.1f} -> {p95_ms:.1f} ms{predicted}")
    else:
        parts.append("the pool's p95 is not known")
    if move.share is not None and share is not None:
        parts.append(f"{first.target}'s share of the requests {move.share:.0%} -> {share:.0%}")
    return f"{after_s:.0f} s after {first.before} -> {move.last.after}: {', '.join(parts)}"
