"""Changes as lbengine records them: one for each weight that was set, or would have been in observe mode."""

from __future__ import annotations

import uuid

from slackwater.messages import VERSION, Change, ChangeCause


def change(
    pool: str,
    what: str,
    target: str,
    before: int | float | str | None,
    after: int | float | str | None,
    *,
    why: str,
    by: str,
    applied: bool,
    time_unix_s: float,
    cause: ChangeCause | None = None,
) -> Change:
    """A Change with an id of its own."""
    id_ = uuid.uuid4().hex
    return Change(VERSION, id_, pool, time_unix_s, what, target, before, after, why, by, applied, cause=cause)


def lowers(made: Change) -> bool:
    """True when it takes weight away."""
    return isinstance(made.before, int) and isinstance(made.after, int) and made.after < made.before


def value_after(made: Change) -> int:
    """The weight or `maxconn` that a change sets."""
    assert isinstance(made.after, int)
    return made.after
