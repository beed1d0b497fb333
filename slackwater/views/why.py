"""A node's episodes, from the journal: when and why each began, what was done about it, and the outcome."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime

import msgspec

from slackwater.core.journal import series
from slackwater.core.journal.journal import Journal, StateSpan
from slackwater.core.messages import Change, ChangeCause, EpisodeMark, Resource, State
from slackwater.views.change_lines import change_lines
from slackwater.views.row import listed
from slackwater.views.together import end, leading, together

LOOK_BACK_S = 7 * 86400.0
SLOW: frozenset[State] = frozenset({"interference", "slow", "errors", "overload", "all_slow"})
MINUTE_S = 60.0
SILENT_S = 3.0
"""A node without a Verdict for this long is not judged any more."""
BEFORE_S, AFTER_S = 1.0, 60.0
"""Changes belong to an episode from this long before its beginning (clocks differ a little) until this long after its
end (the way back)."""


MARKS: dict[EpisodeMark, str] = {
    "neighbour": "a neighbour",
    "deploy": "a deploy",
    "backup": "a backup",
    "false_alarm": "a false alarm",
    "other": "something else",
}
"""What a person may say an episode was, in words."""
LEAST_LOSS = 0.005
"""A smaller loss of capacity counts as none."""
MOST_MARKS = 10_000
NO_WAY_BACK: frozenset[ChangeCause | None] = frozenset({"away", "warm_up", "someone_else", "pinned"})
"""Causes of Changes that are none of an episode's after its end. Nor is what was said to the whole pool then."""
SETS = ("weight", "maxconn", "restore")
"""What is changed about a server's load."""
UNDONE: dict[State, str] = {
    "errors": "the other servers had no room, the settings leave it alone (`causes_off`), or somebody else had set"
    " its weight",
    "slow": "the others would not have answered sooner, the settings leave it alone (`causes_off`), or somebody else"
    " had set its weight",
    "interference": "the others would not have answered sooner, or somebody else had set its weight",
    "overload": "its own load fills it, and no neighbour is the cause",
    "all_slow": "all servers were slow alike, so none was a better place for requests",
}
"""Why no weight is changed in an episode of this state, where nothing more is known of it."""


class Marked(msgspec.Struct):
    """What a person said an episode was. Of several the last one counts."""

    mark: EpisodeMark
    note: str
    by: str
    time_unix_s: float


class EpisodePart(msgspec.Struct, frozen=True):
    """A time that one node spent in one slow state. An episode has one or more: a server's with little calm between
    them, or those of all servers that are slow alike."""

    node: str
    state: State
    since_unix_s: float
    until_unix_s: float | None
    """None: it goes on."""
    severity: float
    """The highest share of the node's calm capacity that was lost in it."""
    path: list[str]
    """The reasons when it began."""
    resource: Resource | None
    """The resource that the neighbour takes, where that is clear; None for other states."""


class Episode(msgspec.Struct):
    """A trouble as people see it: of one node, or of all servers of a pool that were slow at once."""

    pool: str
    node: str
    """The node of the leading part: the first beside a neighbour, else the first."""
    state: State
    """The state of the leading part."""
    since_unix_s: float
    until_unix_s: float | None
    """None: it goes on, or went on when its node was last judged (`unseen_since_unix_s`)."""
    severity: float
    """The highest share of a node's calm capacity that was lost, in `errors` of its requests that failed."""
    path: list[str]
    """The reasons when the leading part began."""
    resource: Resource | None
    """The resource that the neighbour takes, where that is clear; None for other states."""
    changes: list[Change]
    """The changes that were made for it and their outcomes, oldest first."""
    now: str = ""
    """The first reason of its last Verdict, while it goes on."""
    marked: Marked | None = None
    parts: list[EpisodePart] = []
    """Oldest first."""
    unseen_since_unix_s: float | None = None
    """Its nodes' last Verdict was at this time, so its end is not known; None: its end is known, or it goes on."""
    undone: str = ""
    """Why no weight was changed; empty where one was."""

    @property
    def nodes(self) -> list[str]:
        """The nodes of its parts, each once."""
        return list(dict.fromkeys(part.node for part in self.parts)) or [self.node]

    @property
    def who(self) -> str:
        """Its node, or the pool with all its nodes, in words."""
        return self.node if self.state != "all_slow" else f"pool {self.pool} ({listed(self.nodes)})"

    @property
    def lost(self) -> str:
        """What it cost at most, in words."""
        if self.state == "errors":
            return f"up to {self.severity:.0%} of its requests failed"
        if self.severity < LEAST_LOSS:
            return "it lost no capacity"
        return f"it lost at most {self.severity:.0%} of its capacity"

    def began(self, node: str, since_ms: int) -> bool:
        """Whether a part of it began on this node at this time (Unix milliseconds)."""
        return any((part.node, round(part.since_unix_s * 1000)) == (node, since_ms) for part in self.parts)


def episode_of(
    journal: Journal,
    pool: str,
    node: str,
    servers: Mapping[str, str],
    now_unix_s: float,
    at_unix_s: float | None = None,
) -> Episode | None:
    """The last episode of a node within a week; None if there was none. `servers` maps server to node names.

    With `at_unix_s` it is the one that went on then, or else the first that began within a minute, as people name
    minutes.
    """
    listed = [
        episode
        for episode in (
            episodes(journal, pool, now_unix_s - LOOK_BACK_S)
            if at_unix_s is None
            else episodes(journal, pool, at_unix_s, oldest=True)
        )
        if node in episode.nodes and (at_unix_s is None or _went_on(episode, at_unix_s))
    ]
    if not listed:
        return None
    last = listed[-1 if at_unix_s is None else 0]
    verdict = journal.latest_verdicts(pool).get(node)
    note_unseen(journal, pool, [last], now_unix_s)
    if last.unseen_since_unix_s is None and last.until_unix_s is None and verdict is not None and verdict.path:
        last.now = verdict.path[0]
    return with_changes(journal, last, servers)


def episodes(journal: Journal, pool: str, since_unix_s: float, *, oldest: bool = False) -> list[Episode]:
    """The episodes of a pool that went on since then, the oldest first, without their Changes. Of very many the newest,
    or the oldest, as `Journal.states` has them."""
    later: dict[str, list[StateSpan]] = {}
    """Node -> its states that began later, the newest first."""
    parts = []
    spans = journal.states(pool, since_unix_s, oldest=oldest)
    is_cut = oldest and len(spans) == series.MOST_STATES
    marked = marks(journal, pool, spans[0].since_unix_s) if spans else {}
    for span in reversed(spans):
        following = later.setdefault(span.node, [])
        if span.state in SLOW:
            # A node that was silent for a while may still be in its episode when it is heard of again.
            ends = (after for after in reversed(following) if after.state != "unknown" or not _outlasts(span, after))
            ended = next((after.since_unix_s for after in ends), span.last_unix_s if is_cut else None)
            fields = (span.node, span.state, span.since_unix_s, ended, span.severity, span.path, span.resource)
            parts.append(EpisodePart(*fields))
        following.append(span)
    return [_episode(pool, group, marked) for group in together(reversed(parts))]


def _outlasts(span: StateSpan, after: StateSpan) -> bool:
    return span.last_unix_s > after.last_unix_s


def note_unseen(journal: Journal, pool: str, listed: Iterable[Episode], now_unix_s: float) -> None:
    """Notes in episodes without an end since when nobody has judged their nodes, if nobody does."""
    judged = journal.received("verdict", pool)
    for episode in listed:
        last_s = max((judged[node] for node in episode.nodes if node in judged), default=None)
        if episode.until_unix_s is None and last_s is not None and now_unix_s - last_s > SILENT_S:
            episode.unseen_since_unix_s = last_s


def _episode(pool: str, parts: list[EpisodePart], marked: Mapping[tuple[str, int], Marked]) -> Episode:
    first = leading(parts)
    named = [part.resource for part in parts if part.resource not in (None, "unclear")]
    marks_of_parts = [marked[key] for part in parts if (key := mark_key(part.node, part.since_unix_s)) in marked]
    return Episode(
        pool=pool,
        node=first.node,
        state=first.state,
        since_unix_s=parts[0].since_unix_s,
        until_unix_s=end(parts),
        severity=max(part.severity for part in parts),
        path=first.path,
        resource=named[-1] if named else first.resource,
        changes=[],
        marked=max(marks_of_parts, key=lambda mark: mark.time_unix_s, default=None),
        parts=parts,
    )


def marks(journal: Journal, pool: str, since_unix_s: float) -> dict[tuple[str, int], Marked]:
    """What people said of episodes that began then or later, by `mark_key`."""
    changes = journal.changes(pool, MOST_MARKS, since_unix_s - BEFORE_S, what="mark_episode")
    return {
        mark_key(made.target, made.since_unix_s): msgspec.convert(
            {"mark": made.after, "note": made.why, "by": made.by, "time_unix_s": made.time_unix_s}, Marked
        )
        for made in reversed(changes)
        if made.since_unix_s is not None and made.after in MARKS
    }


def mark_key(node: str, since_unix_s: float) -> tuple[str, int]:
    """An episode: its node, and when it began in milliseconds."""
    return node, round(since_unix_s * 1000)


def _went_on(episode: Episode, at_unix_s: float) -> bool:
    return episode.since_unix_s - BEFORE_S < at_unix_s + MINUTE_S and (
        episode.until_unix_s is None or at_unix_s <= episode.until_unix_s
    )


def with_changes(journal: Journal, episode: Episode, servers: Mapping[str, str]) -> Episode:
    """The episode with what was done about it."""
    nodes = set(episode.nodes)
    names = {server for server, node in servers.items() if node in nodes} | (nodes - servers.keys())
    since, until = episode.since_unix_s - BEFORE_S, _until(journal, episode)
    newest_first = journal.changes(episode.pool, 10_000, since, until_unix_s=until)
    targets = {*names, episode.pool}
    changes = [
        change
        for change in reversed(newest_first)
        if change.target in targets
        and change.what != "mark_episode"
        and not (_is_after(change, episode) and _is_no_way_back(change))
    ]
    ids = {change.id for change in changes}
    changes = [change for change in changes if change.what != "outcome" or not change.follows or change.follows in ids]
    undone = "" if any(change.what in SETS for change in changes) else _undone(journal, episode, names)
    return msgspec.structs.replace(episode, changes=changes, undone=undone)


def _is_no_way_back(change: Change) -> bool:
    return change.target == change.pool or change.what in ("pin", "unpin") or change.cause in NO_WAY_BACK


def _is_after(change: Change, episode: Episode) -> bool:
    return episode.until_unix_s is not None and change.time_unix_s > episode.until_unix_s


def _until(journal: Journal, episode: Episode) -> float | None:
    """When Changes no longer belong to it: some time after its end, or when its nodes' next episode begins."""
    if episode.until_unix_s is None:
        return None
    nodes = set(episode.nodes)
    later = [
        other.since_unix_s - BEFORE_S
        for other in episodes(journal, episode.pool, episode.until_unix_s, oldest=True)
        if other.since_unix_s > episode.until_unix_s and not nodes.isdisjoint(other.nodes)
    ]
    return min([episode.until_unix_s + AFTER_S, *later])


def _undone(journal: Journal, episode: Episode, servers: Collection[str]) -> str:
    """Why no weight was changed: while it goes on as lbengine says, later by its state."""
    cycle = journal.latest_cycle(episode.pool) if episode.until_unix_s is None else None
    reasons = (
        [server.why for server in cycle.servers if server.server in servers and server.why] if cycle is not None else []
    )
    return reasons[0] if reasons else UNDONE.get(episode.state, "")


def as_text(episode: Episode) -> str:
    """The episode as text for people, with times in the local zone."""
    since = episode.since_unix_s
    lasted = "it goes on" if episode.until_unix_s is None else f"{episode.until_unix_s - since:.1f} s"
    if episode.unseen_since_unix_s is not None:
        seen = _clock(episode.unseen_since_unix_s, "%Y-%m-%d %H:%M:%S")
        lasted = f"its end is not known, as its node was last judged at {seen}"
    resource = f" ({episode.resource})" if episode.resource not in (None, "unclear") else ""
    who = f"{episode.node} ({episode.pool})" if episode.state != "all_slow" else episode.who
    lines = [
        f"{who}: {episode.state}{resource} since {_clock(since, '%Y-%m-%d %H:%M:%S')}, {lasted}; {episode.lost}",
        *(f"  because {reason}" for reason in episode.path[:1]),
        *([f"  now: {episode.now}"] if episode.now and episode.now not in episode.path else []),
        *([f"  {describe_mark(episode.marked)}"] if episode.marked is not None else []),
    ]
    changes, renewals = _without_orders(episode.changes)
    outcomes = {change.id for change in changes if change.what == "outcome"}
    for line in change_lines(changes):
        would = "" if line.applied else "would have been: "
        reason = "; ".join(filter(None, (line.reason, line.predicted)))
        text = reason if line.id in outcomes else ": ".join(filter(None, (f"{would}{line.what}, by {line.by}", reason)))
        lines.append(f"  {_clock(line.time_unix_s, '%H:%M:%S')}  {text}")
    if episode.undone:
        lines.append(f"  no weight was changed: {episode.undone}")
    if renewals:
        lines.append(f"  Orders were renewed {'once' if renewals == 1 else f'{renewals} times'}")
    return "\n".join(lines)


def describe_mark(marked: Marked) -> str:
    """`it was a deploy, says anna: release 14`."""
    return f"it was {MARKS[marked.mark]}, says {marked.by}{f': {marked.note}' if marked.note else ''}"


def _without_orders(changes: list[Change]) -> tuple[list[Change], int]:
    """The changes without the Orders that a node's Change answers; and how many only renewed a lease."""
    answered = {change.follows for change in changes if change.follows}
    orders = [change for change in changes if change.what.startswith("order ")]
    renewed = {change.id for change in orders if change.cause == "renewed"}
    left_out = renewed | {change.id for change in orders if change.id in answered}
    return [change for change in changes if change.id not in left_out], len(renewed)


def _clock(unix_s: float, pattern: str) -> str:
    local = datetime.fromtimestamp(unix_s, UTC).astimezone()
    return f"{local.strftime(pattern)}.{local.microsecond // 100_000}"
