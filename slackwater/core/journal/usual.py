"""A node's response times and signals, row by row: what they mostly were, and what they are now."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from slackwater.core.journal import schema
from slackwater.core.journal.journal import Journal

SIGNALS = ("rps", "rt_p95_ms", "run_delay_per_cpu_s", "steal", "pressure_io", "pressure_memory", "cpi")
EXACT = (*SIGNALS, "time_unix_s", "rt_p50_ms", "rt_p99_ms", "in_flight")
"""What a Sample has more than a rolled-up time."""
Row = Mapping[str, float | None]
_SCALED = ", ".join(f"{name} / {schema.SCALE}.0 AS {name}" for name in SIGNALS)
ROLLED = (
    f"SELECT node, {_SCALED} FROM nodes CROSS JOIN rolled ON step_s = :tier AND node_id = id WHERE pool = :pool"
    " AND node NOT IN (SELECT value FROM json_each(:without)) AND time_unix_s >= :since AND time_unix_s < :until"
    " AND rt_p95_ms IS NOT NULL"
)
RECENT = (
    f"SELECT nodes.node, {', '.join(f'samples.{name}' for name in EXACT)} FROM nodes"
    " JOIN latest ON kind = 'sample' AND latest.pool = nodes.pool AND latest.node = nodes.node"
    " JOIN samples ON node_id = id AND time_unix_s > json_extract(json, '$.time_unix_s') - :last_s"
    " AND time_unix_s <= json_extract(json, '$.time_unix_s')"
    " WHERE nodes.pool = :pool AND nodes.node IN (SELECT value FROM json_each(:nodes)) ORDER BY samples.time_unix_s"
)


def rolled(
    journal: Journal,
    pool: str,
    since_unix_s: float,
    until_unix_s: float,
    *,
    by_hours: bool,
    without: Collection[str] = (),
) -> dict[str, list[Row]]:
    """Each node's rolled-up hours, or minutes, with requests in them. Raises JournalError."""
    tier = schema.HOUR_S if by_hours else schema.MINUTE_S
    where = {"pool": pool, "since": since_unix_s, "until": until_unix_s, "tier": tier, "without": _names(without)}
    return _by_node(journal, ROLLED, SIGNALS, where)


def recent(journal: Journal, pool: str, nodes: Collection[str], last_s: float) -> dict[str, list[Row]]:
    """These nodes' Samples over the `last_s` before each one's last (the node's own clock), the oldest first. Raises
    JournalError."""
    return _by_node(journal, RECENT, EXACT, {"pool": pool, "last_s": last_s, "nodes": _names(nodes)})


def _by_node(
    journal: Journal, statement: str, names: Sequence[str], where: Mapping[str, object]
) -> dict[str, list[Row]]:
    by_node: dict[str, list[Row]] = {}
    with journal.reading() as database:
        for row in database.execute(statement, where):
            by_node.setdefault(row["node"], []).append({name: row[name] for name in names})
    return by_node


def _names(names: Collection[str]) -> str:
    return msgspec.json.encode(sorted(names)).decode()
