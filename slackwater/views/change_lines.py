"""Changes as lines for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from slackwater.core.messages import PARTS, Change
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
    by: str
    applied: bool
    predicted: str = ""
    """What it was expected to do to the pool's p95; empty if nothing was."""
    outcome: str = ""
    """What the change did to it, where a caller adds it."""


def change_lines(changes: Iterable[Change], *, each: bool = False) -> list[ChangeLine]:
    """The Changes as lines, in their order. A server's trials have one line as long as nothing else happens to its
    weight; `each`: every Change has its own."""
    if each:
        return [_line(change, describe_change(change)) for change in changes]
    return [_line(change, what) for change, what in with_trials_as_one(changes)]


def with_trials_as_one(changes: Iterable[Change]) -> list[tuple[Change, str]]:
    """Each Change and what it did. Of a server's trials in a row only the first is there, with their number."""
    groups: list[list[Change]] = []
    trials: dict[tuple[str, str], list[Change]] = {}
    for change in changes:
        server, is_weight = (change.pool, change.target), change.what == "weight"
        if is_weight and change.cause == "tried" and server in trials:
            trials[server].append(change)
            continue
        groups.append([change])
        if is_weight:
            trials.pop(server, None)
        if is_weight and change.cause == "tried":
            trials[server] = groups[-1]
    return [(group[0], _what(group)) for group in groups]


def _what(group: Sequence[Change]) -> str:
    """What a Change did, or the trials that are a Change up and one down each."""
    first = group[0]
    if first.what != "weight" or first.cause != "tried":
        return describe_change(first)
    times = max(sum(isinstance(made.after, int) and made.after > _number(made.before) for made in group), 1)
    return f"{first.target} tried with a few requests{'' if times == 1 else f', {times} times'}"


def who(change: Change) -> str:
    """Who made it: a person, someone else, or Slackwater, whichever of its parts."""
    return "Slackwater" if change.by in PARTS else change.by


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _line(change: Change, what: str) -> ChangeLine:
    return ChangeLine(
        id=change.id,
        time_unix_s=change.time_unix_s,
        pool=change.pool,
        target=change.target,
        what=what,
        reason=of_change(change),
        by=who(change),
        applied=change.applied,
        predicted=expected(change),
    )
