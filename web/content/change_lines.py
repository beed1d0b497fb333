"""Changes as an operator tells them: the small steps of a ramp are one line, `weight of web1: 0 → 100 in 9 steps`."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from slackwater.messages import Change
from slackwater.views.pool import describe_change, duration

STEP_GAP_S = 3.0
"""Steps of one ramp follow each other within this time."""


class Told(msgspec.Struct):
    """One line of the list: a Change, or a run of steps in one direction."""

    id: str
    """Of the last Change in it."""
    ids: list[str]
    """Of all."""
    time_unix_s: float
    """Of the first Change in it."""
    target: str
    what: str
    why: str
    by: str
    applied: bool


def tell(changes: Iterable[Change]) -> list[Told]:
    """The Changes (newest first, as the journal gives them) in lines, newest first."""
    runs: list[list[Change]] = []
    open_runs: dict[str, list[Change]] = {}
    for change in reversed(list(changes)):
        run = open_runs.get(change.target)
        if run is not None and _continues(run, change):
            run.append(change)
            continue
        open_runs[change.target] = [change]
        runs.append(open_runs[change.target])
    return sorted((_line(run) for run in runs), key=lambda told: told.time_unix_s, reverse=True)


def _continues(run: list[Change], change: Change) -> bool:
    last = run[-1]
    return (
        (last.what, last.pool, last.by, last.applied, last.after)
        == ("weight", change.pool, change.by, change.applied, change.before)
        and change.what == "weight"
        and 0 <= change.time_unix_s - last.time_unix_s <= STEP_GAP_S
        and _direction(last) == _direction(change) == 1
    )


def _direction(change: Change) -> int:
    """1 up, -1 down, 0 for what is no number. Only ramps go in steps, and ramps go up."""
    if not isinstance(change.before, int | float) or not isinstance(change.after, int | float):
        return 0
    return (change.after > change.before) - (change.after < change.before)


def _line(run: list[Change]) -> Told:
    first, last = run[0], run[-1]
    what = describe_change(last)
    if len(run) > 1:
        what = describe_change(msgspec.structs.replace(last, before=first.before))
        what += f" in {len(run)} steps, {duration(last.time_unix_s - first.time_unix_s)}"
    return Told(
        id=last.id,
        ids=[made.id for made in run],
        time_unix_s=first.time_unix_s,
        target=last.target,
        what=what,
        why=last.why,
        by=last.by,
        applied=last.applied,
    )
