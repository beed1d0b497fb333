"""The page of all servers of all pools: what is known of each, which of them are shown, and in what order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from slackwater.core.config import PoolSettings
from slackwater.core.messages import TAKES_REQUESTS
from slackwater.views.pool import PoolStatus
from slackwater.views.row import NOTHING, Row, duration, milliseconds
from slackwater.web.content.audit import FilterError
from slackwater.web.content.harm import RANGES, ServerHarm
from slackwater.web.content.looks import NAMES, URGENCY, Look, badge
from slackwater.web.content.pool import number, percent

GROUPS = {"none": "", "pool": "pool", "zone": "zone", "type": "machine_type"}
"""What the rows may be grouped by, and the field that has it."""
SORTS = ("harm", "name", "state", "load", "p95")
LONGEST = 200


class ServerFilter(msgspec.Struct):
    """Which servers to show, and how."""

    q: str = ""
    group: str = "none"
    sort: str = "harm"
    last: str = "24h"
    until: float | None = None
    """Unix time at which the harm that is shown ends; None: now."""


class FleetServer(msgspec.Struct):
    """One server, now: texts, and the numbers that rows are sorted by."""

    key: str
    """Pool and node; tells it from all others."""
    pool: str
    node: str
    zone: str
    machine_type: str
    state: Look
    symbol: str
    word: str
    rank: int
    """Rank of its state: 0 is the most urgent."""
    since: str
    load: str
    load_share: float | None
    """Its requests per second over those that it would get at the baseline weights; None: not known."""
    rps: str
    p95: str
    p95_ms: float | None


class ServerGroup(msgspec.Struct):
    """Servers that have a label in common."""

    title: str
    """Empty where nothing is grouped."""
    servers: list[FleetServer]


def filter_of(given: Mapping[str, str]) -> ServerFilter:
    """The filter that a query string describes. Raises FilterError."""
    chosen = msgspec.convert(
        {key: given[key] for key in ("q", "group", "sort", "last") if given.get(key)}, ServerFilter
    )
    for key, value, expected in (("group", chosen.group, GROUPS), ("sort", chosen.sort, SORTS)):
        if value not in expected:
            raise FilterError(f"{key}: expected one of {', '.join(expected)}, got `{value[:LONGEST]}`")
    if chosen.last not in RANGES:
        raise FilterError(f"last: expected one of {', '.join(RANGES)}, got `{chosen.last[:LONGEST]}`")
    if len(chosen.q) > LONGEST:
        raise FilterError(f"q: expected at most {LONGEST} characters, got {len(chosen.q)}")
    if until := given.get("until"):
        if not re.fullmatch(r"[0-9]{1,10}(\.[0-9]{1,6})?", until) or float(until) > 4e9:
            raise FilterError(f"until: expected a Unix time in seconds, got `{until[:LONGEST]}`")
        chosen.until = float(until)
    return chosen


def servers_of(view: PoolStatus, pool: PoolSettings, now_unix_s: float) -> list[FleetServer]:
    """The servers of a pool, in the balancer's order."""
    by_weight = any(row.share_wanted is not None for row in view.rows)
    baseline = sum(row.baseline or 0 for row in view.rows if row.condition in TAKES_REQUESTS)
    return [_server(row, pool, baseline if by_weight else 0, now_unix_s) for row in view.rows]


def _server(row: Row, pool: PoolSettings, baseline: int, now_unix_s: float) -> FleetServer:
    look, symbol, word = badge(row)
    since = row.since_unix_s if look == row.state else None
    share = None
    if row.share is not None and row.baseline and baseline:
        share = row.share * baseline / row.baseline
    return FleetServer(
        key=f"{pool.name}/{row.node}",
        pool=pool.name,
        node=row.node,
        zone=pool.zones.get(row.node, ""),
        machine_type=pool.machine_types.get(row.node, ""),
        state=look,
        symbol=symbol,
        word=word,
        rank=URGENCY.index(look),
        since=NOTHING if since is None else duration(max(0.0, now_unix_s - since)),
        load=percent(share),
        load_share=share,
        rps=number(row.rps),
        p95=milliseconds(row.rt_p95_ms),
        p95_ms=row.rt_p95_ms,
    )


def arrange(servers: Iterable[FleetServer], harm: Mapping[str, ServerHarm], chosen: ServerFilter) -> list[ServerGroup]:
    """The servers that match, sorted, in their groups; `harm` by their keys. `static/js/fleet.js` does the same."""
    words = chosen.q.lower().split()
    shown = [server for server in servers if all(word in _searched(server) for word in words)]
    shown.sort(key=_natural)
    if chosen.sort == "harm":
        shown.sort(key=lambda server: -harm[server.key].lost_s if server.key in harm else 0.0)
    elif chosen.sort == "state":
        shown.sort(key=lambda server: server.rank)
    elif chosen.sort == "load":
        shown.sort(key=lambda server: 1e9 if server.load_share is None else server.load_share)
    elif chosen.sort == "p95":
        shown.sort(key=lambda server: -(server.p95_ms or 0.0))
    field = GROUPS[chosen.group]
    if not field:
        return [ServerGroup("", shown)] if shown else []
    groups: dict[str, list[FleetServer]] = {}
    for server in shown:
        groups.setdefault(getattr(server, field), []).append(server)
    return [
        ServerGroup(title or NOTHING, groups[title]) for title in sorted(groups, key=lambda title: (not title, title))
    ]


def summary(servers: Sequence[FleetServer]) -> str:
    """How many servers look how: `▲ 2 interference, ● 298 calm`."""
    symbols = {server.state: server.symbol for server in servers}
    counts = [(look, sum(server.state == look for server in servers)) for look in URGENCY if look in symbols]
    return ", ".join(f"{symbols[look]} {count} {NAMES[look]}" for look, count in counts)


def _searched(server: FleetServer) -> str:
    return " ".join((server.node, server.pool, server.zone, server.machine_type, server.word)).lower()


def _natural(server: FleetServer) -> list[tuple[int, str]]:
    """`web2` before `web10`."""
    parts = re.findall(r"[0-9]+|[^0-9]+", server.node.lower())
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts] + [(-1, server.pool)]
