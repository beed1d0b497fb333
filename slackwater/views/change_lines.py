"""Changes as lines for people."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from slackwater.core.messages import Change
from slackwater.views.pool import describe_change
from slackwater.views.reasons import expected, of_change


class ChangeLine(msgspec.Struct):
    """One line of a list: a Change."""

    id: str
    time_unix_s: float
    pool: str
    target: str
    what: str
    reason: str
    """Why, in a sentence."""
    details: str
    """The reason as it was recorded, with its numbers; empty where `reason` is the same."""
    by: str
    applied: bool
    predicted: str = ""
    """What it was expected to do to the pool's p95; empty if nothing was."""
    outcome: str = ""
    """What the change did to it, where a caller adds it."""


def change_lines(changes: Iterable[Change]) -> list[ChangeLine]:
    """The Changes as lines, in their order."""
    return [_line(change) for change in changes]


def _line(change: Change) -> ChangeLine:
    reason = of_change(change)
    return ChangeLine(
        id=change.id,
        time_unix_s=change.time_unix_s,
        pool=change.pool,
        target=change.target,
        what=describe_change(change),
        reason=reason,
        details="" if reason == change.why else change.why,
        by=change.by,
        applied=change.applied,
        predicted=expected(change),
    )
