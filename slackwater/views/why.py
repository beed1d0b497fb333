"""The story of a node's last episode, from the journal: when and why it began, what was done, and what came of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime

import msgspec

from slackwater.journal.journal import Journal
from slackwater.messages import Change, Resource, State

LOOK_BACK_S = 7 * 86400.0
SLOW: frozenset[State] = frozenset({"interference", "overload", "all_slow"})
BEFORE_S, AFTER_S = 1.0, 60.0
"""Changes this long before the beginning (clocks differ a little) and after the end (the way back) belong to it."""


class Story(msgspec.Struct):
    """An episode of one node."""

    pool: str
    node: str
    state: State
    since_unix_s: float
    until_unix_s: float | None
    """None: it goes on."""
    severity: float
    """The highest share of the node's calm capacity that was lost."""
    path: list[str]
    """Why it was judged so, as it began."""
    resource: Resource | None
    """What the neighbour takes, where it can be told; None for other states."""
    changes: list[Change]
    """What was done about it, oldest first, and what came of that."""
    now: str = ""
    """What its last Verdict gives first, while it goes on."""


def story(journal: Journal, pool: str, node: str, servers: Mapping[str, str], now_unix_s: float) -> Story | None:
    """The last episode of a node within a week; None if there was none. `servers` maps server to node names."""
    told = [one for one in episodes(journal, pool, now_unix_s - LOOK_BACK_S) if one.node == node]
    return with_changes(journal, _with_now(journal, told[-1]), servers) if told else None


def _with_now(journal: Journal, told: Story) -> Story:
    verdict = journal.latest_verdicts(told.pool).get(told.node)
    if told.until_unix_s is not None or verdict is None or not verdict.path:
        return told
    return msgspec.structs.replace(told, now=verdict.path[0])


def episodes(journal: Journal, pool: str, since_unix_s: float) -> list[Story]:
    """All episodes of a pool that went on since then, the oldest first, without their Changes."""
    following: dict[str, float] = {}
    told = []
    for span in reversed(journal.states(pool, since_unix_s)):
        ended = following.get(span.node)
        following[span.node] = span.since_unix_s
        if span.state in SLOW:
            told.append(
                Story(
                    pool=pool,
                    node=span.node,
                    state=span.state,
                    since_unix_s=span.since_unix_s,
                    until_unix_s=ended,
                    severity=span.severity,
                    path=span.path,
                    resource=span.resource,
                    changes=[],
                )
            )
    return told[::-1]


def with_changes(journal: Journal, told: Story, servers: Mapping[str, str]) -> Story:
    """The episode with what was done about it."""
    names = {server for server, of in servers.items() if of == told.node} | ({told.node} - servers.keys())
    return msgspec.structs.replace(told, changes=_changes(journal, told, names))


def _changes(journal: Journal, told: Story, names: Collection[str]) -> list[Change]:
    until = None if told.until_unix_s is None else told.until_unix_s + AFTER_S
    found = journal.changes(told.pool, 10_000, told.since_unix_s - BEFORE_S, until_unix_s=until)
    return [made for made in reversed(found) if made.target in {*names, told.pool}]


def as_text(told: Story) -> str:
    """For people, times in the local zone."""
    lasted = "it goes on" if told.until_unix_s is None else f"{told.until_unix_s - told.since_unix_s:.1f} s"
    lines = [
        f"{told.node} ({told.pool}): {told.state}{_of(told.resource)} since {_clock(told.since_unix_s, date=True)},"
        f" {lasted}, {told.severity:.0%} of its capacity lost at most",
        *(f"  because {reason}" for reason in told.path),
        *([f"  now: {told.now}"] if told.now and told.now not in told.path else []),
    ]
    climbing: Change | None = None
    changes, renewals = _without_orders(told.changes)
    for made in [*changes, None]:
        if made is not None and climbing is not None and _goes_on(climbing, made):
            climbing = msgspec.structs.replace(climbing, after=made.after)
            continue
        if climbing is not None:
            lines.append(_line(climbing))
        climbing = made
    if renewals:
        lines.append(f"  Orders were renewed {renewals} times")
    return "\n".join(lines)


def _without_orders(changes: list[Change]) -> tuple[list[Change], int]:
    """Without the Orders whose outcome is told, by the node that it came to; and how many only renewed a lease."""
    answered = {made.follows for made in changes if made.follows}
    orders = [made for made in changes if made.what.startswith("order ")]
    renewed = {made.id for made in orders if made.cause == "renewed"}
    left_out = renewed | {made.id for made in orders if made.id in answered}
    return [made for made in changes if made.id not in left_out], len(renewed)


def _of(resource: Resource | None) -> str:
    return f" ({resource})" if resource not in (None, "unclear") else ""


def _goes_on(before: Change, now: Change) -> bool:
    """Steps of a ramp are one line."""
    numbers = [before.before, before.after, now.before, now.after]
    return (
        before.what == now.what == "weight"
        and before.target == now.target
        and before.after == now.before
        and before.applied == now.applied
        and all(isinstance(number, int) for number in numbers)
        and int(before.before or 0) < int(before.after or 0) < int(now.after or 0)
    )


def _line(made: Change) -> str:
    at = _clock(made.time_unix_s)
    if made.what == "outcome":
        return f"  {at}  {made.why}"
    would = "" if made.applied else "would have: "
    values = "" if made.before is None and made.after is None else f" {made.before} -> {made.after}"
    return f"  {at}  {would}{made.target} {made.what}{values}: {made.why} (by {made.by})"


def _clock(unix_s: float, date: bool = False) -> str:
    local = datetime.fromtimestamp(unix_s, UTC).astimezone()
    return local.strftime("%Y-%m-%d %H:%M:%S" if date else "%H:%M:%S") + f".{local.microsecond // 100_000}"
