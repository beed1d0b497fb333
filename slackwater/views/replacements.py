"""Replacements of machines: those that were begun, as the Changes tell, and which one would be next. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from slackwater.core.config import ReplaceSettings
from slackwater.core.messages import REPLACE_ENDS, TAKES_REQUESTS, Change, ChangeCause, Cycle, Mode, ServerState
from slackwater.views.chronic import DAY_S, Machine
from slackwater.views.row import duration

HEARD_S = 3600.0
"""A machine that has sent no Sample for this long is gone."""
RETRY_S = 3600.0
"""So long after a drain in vain the next one begins at the earliest, and that many times longer where there were
several in 24 h: a server that never gets empty, as that of a web socket, is drained seven times a day at most."""
Obstacle = Literal[
    "no_cycle",
    "paused",
    "balancer_away",
    "not_in_pool",
    "other_pool",
    "not_up",
    "others",
    "most_per_day",
    "under_way",
    "in_vain",
    "not_callable",
]
"""Why a machine is not replaced now."""


@dataclass(frozen=True)
class Attempt:
    """The replacement of one machine, as far as it is recorded."""

    id: str
    """Of the Change that began it."""
    node: str
    begun_unix_s: float
    ran_unix_s: float | None
    """When the command was called; None: it was not."""
    ended: ChangeCause | None
    """None: no end is recorded."""
    ended_unix_s: float | None
    applied: bool
    """False: it would have been begun, in observe mode."""


def attempts(changes: Iterable[Change]) -> list[Attempt]:
    """The replacements that these Changes of `replace` tell of, in order of their beginning."""
    by_id: dict[str, Attempt] = {}
    for change in sorted(changes, key=lambda change: change.time_unix_s):
        if change.cause == "chronic":
            by_id[change.id] = Attempt(
                change.id, change.target, change.time_unix_s, None, None, None, applied=change.applied
            )
            continue
        before = by_id.get(change.follows)
        if before is None:
            continue
        if change.cause == "replacing":
            by_id[before.id] = replace(before, ran_unix_s=change.time_unix_s)
        elif change.cause in REPLACE_ENDS or change.cause == "same_machine":
            by_id[before.id] = replace(before, ended=change.cause, ended_unix_s=change.time_unix_s)
    return list(by_id.values())


def replaced(changes: Iterable[Change]) -> dict[str, float]:
    """Node -> when it was last replaced; a machine that came back as it was is not."""
    ends = [attempt for attempt in attempts(changes) if attempt.ended == "replaced"]
    return {attempt.node: attempt.ended_unix_s for attempt in ends if attempt.ended_unix_s is not None}


class Plan(msgspec.Struct, kw_only=True):
    """Which machine of a pool would be replaced next, and what is in the way."""

    pool: str
    mode: Mode | None
    command: str
    """The program that would be called; empty: none is named."""
    days: int
    """So many days until now decided."""
    machines: list[Machine]
    """Those that lost capacity by themselves, the costliest first."""
    node: str = ""
    """The machine that would be next; empty: it pays for none."""
    obstacle: Obstacle | None = None
    """Why it is not replaced now; None: nothing is in the way."""
    waits: str = ""
    """The same in words."""


def plan(
    pool: str,
    machines: Sequence[Machine],
    changes: Iterable[Change],
    cycle: Cycle | None,
    servers: Mapping[str, str],
    settings: ReplaceSettings,
    now_unix_s: float,
) -> Plan:
    """The next step. `changes`: those of `replace` of the last days; `servers`: server -> node, where names differ."""
    begun = attempts(changes)
    worth = [machine.node for machine in machines if machine.advice == "replace"]
    obstacles = {
        node: _of_the_day(begun, settings, now_unix_s)
        or in_the_way(cycle, node, servers)
        or _in_vain(begun, node, now_unix_s)
        for node in worth
    }
    chosen = next((node for node in worth if obstacles[node] is None), worth[0] if worth else "")
    planned = Plan(
        pool=pool,
        mode=cycle.mode if cycle is not None else None,
        command=settings.command,
        days=settings.days,
        machines=list(machines),
        node=chosen,
    )
    if (obstacle := obstacles.get(chosen)) is not None:
        planned.obstacle, planned.waits = obstacle
    return planned


def _in_vain(begun: Iterable[Attempt], node: str, now_unix_s: float) -> tuple[Obstacle, str] | None:
    """Whether the machine was drained in vain too lately."""
    ends = [
        attempt.ended_unix_s or attempt.begun_unix_s
        for attempt in begun
        if attempt.node == node and attempt.ended == "replace_given_up" and now_unix_s - attempt.begun_unix_s < DAY_S
    ]
    left_s = max(ends, default=0.0) + RETRY_S * len(ends) - now_unix_s
    if not ends or left_s <= 0.0:
        return None
    times = "once" if len(ends) == 1 else f"{len(ends)} times"
    return "in_vain", f"it was drained {times} in 24 h and not replaced; tried again in {duration(left_s)}"


def _of_the_day(begun: Iterable[Attempt], settings: ReplaceSettings, now_unix_s: float) -> tuple[Obstacle, str] | None:
    of_day = [
        attempt
        for attempt in begun
        if attempt.applied and now_unix_s - (attempt.ran_unix_s or attempt.begun_unix_s) < DAY_S
    ]
    open_since = [attempt for attempt in of_day if attempt.ended is None]
    if open_since:
        return "under_way", f"{open_since[0].node} is being replaced"
    ran = [attempt.node for attempt in of_day if attempt.ran_unix_s is not None]
    if len(ran) >= settings.most_per_day:
        most = f"{settings.most_per_day} machine{'s' * (settings.most_per_day != 1)}"
        return "most_per_day", f"at most {most} in 24 h (`replace.most_per_day`), and these were: {', '.join(ran)}"
    return None


def servers_of(cycle: Cycle, node: str, servers: Mapping[str, str]) -> list[ServerState]:
    """The servers that run on a node."""
    return [server for server in cycle.servers if servers.get(server.server, server.server) == node]


def in_the_way(cycle: Cycle | None, node: str, servers: Mapping[str, str]) -> tuple[Obstacle, str] | None:
    """What keeps a machine from being taken out now: its pool must be whole without it."""
    if cycle is None:
        return "no_cycle", "lbengine has recorded nothing about this pool yet"
    if cycle.paused:
        return "paused", "the pool is paused"
    if cycle.outage is not None:
        return "balancer_away", "the balancer does not answer"
    if cycle.unseen:
        return "balancer_away", "a part of the balancer does not answer, and may send it requests"
    own = servers_of(cycle, node, servers)
    if not own:
        return "not_in_pool", f"no server of the balancer is {node}"
    for server in own:
        if server.condition not in TAKES_REQUESTS or server.baseline == 0:
            return "not_up", f"{server.server} takes no requests"
    for server in cycle.servers:
        if server not in own and (server.condition not in TAKES_REQUESTS or server.weight < server.full_weight):
            return "others", f"{server.server} does not carry its share now"
    return None
