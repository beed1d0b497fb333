"""Changes as lines for people: the steps of a ramp are one line, `weight of web1: 0 → 100 in 9 steps, 1.5 s`."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from slackwater.messages import Change
from slackwater.views.pool import describe_change, duration, milliseconds

STEP_GAP_S = 3.0
"""Steps of one ramp follow each other within this time."""


class ChangeLine(msgspec.Struct):
    """One line of a list: a Change, or the steps of a ramp."""

    id: str
    """Of the last Change in it."""
    ids: list[str]
    """Of all."""
    time_unix_s: float
    """Of the first Change in it."""
    pool: str
    target: str
    what: str
    why: str
    by: str
    applied: bool
    predicted: str = ""
    """What its first Change was predicted to do to the pool's p95; empty if nothing was."""
    outcome: str = ""
    """What it did, where a caller adds it."""


def change_lines(changes: Iterable[Change]) -> list[ChangeLine]:
    """The Changes (newest first, as the journal returns them) as lines, newest first."""
    ramps: list[list[Change]] = []
    latest: dict[str, list[Change]] = {}
    for change in reversed(list(changes)):
        ramp = latest.get(change.target)
        if ramp is not None and _continues(ramp[-1], change):
            ramp.append(change)
            continue
        latest[change.target] = [change]
        ramps.append(latest[change.target])
    return sorted((_line(ramp) for ramp in ramps), key=lambda line: line.time_unix_s, reverse=True)


def _continues(last: Change, change: Change) -> bool:
    """Whether a Change is the next step of a ramp. Only ramps have steps, and ramps go up."""
    return (
        (last.what, last.pool, last.by, last.applied, last.after)
        == ("weight", change.pool, change.by, change.applied, change.before)
        and change.what == "weight"
        and 0 <= change.time_unix_s - last.time_unix_s <= STEP_GAP_S
        and _rises(last)
        and _rises(change)
    )


def _rises(change: Change) -> bool:
    before, after = change.before, change.after
    return isinstance(before, int | float) and isinstance(after, int | float) and after > before


def _line(ramp: list[Change]) -> ChangeLine:
    first, last = ramp[0], ramp[-1]
    what = describe_change(last)
    if len(ramp) > 1:
        what = describe_change(msgspec.structs.replace(last, before=first.before))
        what += f" in {len(ramp)} steps, {duration(last.time_unix_s - first.time_unix_s)}"
    return ChangeLine(
        id=last.id,
        ids=[change.id for change in ramp],
        time_unix_s=first.time_unix_s,
        pool=last.pool,
        target=last.target,
        what=what,
        why=last.why,
        by=last.by,
        applied=last.applied,
        predicted=_predicted(first),
    )


def _predicted(change: Change) -> str:
    before_ms, after_ms = change.rt_p95_ms, change.rt_p95_predicted_ms
    if before_ms is None or after_ms is None:
        return ""
    return f"p95 {milliseconds(before_ms)} → {milliseconds(after_ms)}"
