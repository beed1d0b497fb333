"""What is read from the journal: a node's means, its states, and series of all signals on one time grid."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Collection, Mapping

import msgspec

from slackwater.core.journal import schema
from slackwater.core.messages import Resource, State, plain_json

WEIGHT_HOLDS_S = 15.0
"""A weight that was written counts for this long at most."""
MAX_STEPS = 20_000
MOST_STATES = 100_000
"""Read at once, some 60 MB: a server that wavers has twenty thousand a day."""


class NodeSeries(msgspec.Struct):
    """One node's series on the grid of its `PoolSeries`; None where nothing was measured."""

    rps: list[float | None]
    rt_p50_ms: list[float | None]
    rt_p95_ms: list[float | None]
    rt_p99_ms: list[float | None]
    cpu: list[float | None]
    """Utilisation: 1.0 is full."""
    errors_per_s: list[float | None]
    run_delay_per_cpu_s: list[float | None]
    """Seconds runnable but not running, per CPU second used."""
    steal: list[float | None]
    """Share of the VM's CPU time that the hypervisor gave to others."""
    pressure_cpu: list[float | None]
    """Share of time in which some task waited for a CPU."""
    pressure_io: list[float | None]
    cpi: list[float | None]
    """Cycles per instruction, or per load of the probe."""
    weight: list[float | None]


class PoolSeries(msgspec.Struct):
    """Series of a pool's nodes on one time grid; `time_unix_s` is the start of each step."""

    step_s: float
    time_unix_s: list[float]
    nodes: dict[str, NodeSeries]


class Reading(msgspec.Struct):
    """A node's means over its last seconds; None where nothing was measured."""

    rps: float | None
    rt_p50_ms: float | None
    rt_p95_ms: float | None
    rt_p99_ms: float | None
    cpu: float | None
    received_unix_s: float
    """When its last Sample was written, by this machine's clock."""


class StateSpan(msgspec.Struct):
    """A time that a node spent in one state: an episode, if the state is not `calm`."""

    node: str
    state: State
    since_unix_s: float
    last_unix_s: float
    """Time of the last Verdict with this state."""
    severity: float
    """The highest."""
    path: list[str]
    """Why it began."""
    resource: Resource | None = None
    """What the neighbour took, by the last Verdict that was clear about it; None in other states."""


def read_history(
    database: sqlite3.Connection,
    pool: str,
    since_unix_s: float,
    until_unix_s: float,
    step_s: float,
    servers: Mapping[str, str],
    nodes: Collection[str] | None,
    most_values: int | None = None,
) -> PoolSeries:
    """`Journal.history`, from an open database. Raises ValueError as that does, sqlite3.Error."""
    length = steps(since_unix_s, until_unix_s, step_s)
    if most_values is not None and (values := length * values_a_step(database, pool, servers, nodes)) > most_values:
        raise ValueError(
            f"{length} steps of these nodes are {values:,} values, expected at most {most_values:,}: take a longer"
            " step (`step_s`), a shorter time (`last_s`), or name fewer nodes (`node`)"
        )
    tier = schema.HOUR_S if step_s >= schema.HOUR_S else schema.MINUTE_S if step_s >= schema.MINUTE_S else 0
    held_s = tier or WEIGHT_HOLDS_S
    drawn = None if nodes is None else [*nodes, *(name for name, node in servers.items() if node in nodes)]
    where = {"pool": pool, "since": since_unix_s, "until": until_unix_s, "step": step_s, "tier": tier}
    where |= {"nodes": _json_list(nodes), "servers": _json_list(drawn), "held": held_s}
    by_node: dict[str, NodeSeries] = {}
    gaps: list[float | None] = [None] * length

    def series(node: str) -> NodeSeries:
        if node not in by_node:
            by_node[node] = NodeSeries(*[list(gaps) for _ in NodeSeries.__struct_fields__])
        return by_node[node]

    for row in database.execute(schema.ROLLED_HISTORY if tier else schema.HISTORY, where):
        of_node = series(row["node"])
        for name in schema.SIGNALS:
            getattr(of_node, name)[row["slot"]] = row[name]
    for row in database.execute(schema.ROLLED_WEIGHTS if tier else schema.WEIGHTS, where):
        first = (row["time_unix_s"] - since_unix_s) / step_s
        held = series(servers.get(row["server"], row["server"])).weight
        for slot in range(max(0, int(first)), min(length, int(first + held_s / step_s) + 1)):
            held[slot] = row["weight"]
    grid = [since_unix_s + slot * step_s for slot in range(length)]
    return PoolSeries(step_s=step_s, time_unix_s=grid, nodes=dict(sorted(by_node.items())))


def steps(since_unix_s: float, until_unix_s: float, step_s: float) -> int:
    """How many steps there are. Raises ValueError for a step that is not positive or too short."""
    if not step_s > 0.0:
        raise ValueError(f"step_s: expected more than 0, got {step_s:g}")
    count = (until_unix_s - since_unix_s) / step_s
    if not count <= MAX_STEPS:
        raise ValueError(f"step_s: {step_s:g} s gives {count:.0f} steps, expected at most {MAX_STEPS}")
    return max(0, math.ceil(count))


def values_a_step(
    database: sqlite3.Connection, pool: str, servers: Mapping[str, str], nodes: Collection[str] | None
) -> int:
    """At most so many values a history has in each step: the signals of these nodes (None: all) that are known.

    Raises sqlite3.Error.
    """
    known = {servers.get(name, name) for (name,) in database.execute("SELECT node FROM nodes WHERE pool = ?", (pool,))}
    return len(NodeSeries.__struct_fields__) * len(known if nodes is None else known.intersection(nodes))


def read_states(
    database: sqlite3.Connection, pool: str, since_unix_s: float, *, oldest: bool = False
) -> list[StateSpan]:
    """`Journal.states`, from an open database. Raises sqlite3.Error."""
    order = "ASC" if oldest else "DESC"
    rows = database.execute(
        "SELECT node, state, since_unix_s, last_unix_s, severity, path, resource FROM states"
        " JOIN nodes ON id = node_id WHERE pool = ? AND last_unix_s >= ?"
        f" ORDER BY since_unix_s {order}, node {order} LIMIT ?",
        (pool, since_unix_s, MOST_STATES),
    ).fetchall()
    if not oldest:
        rows.reverse()
    return [
        msgspec.convert({**row, "path": msgspec.json.decode(plain_json(row["path"]))}, StateSpan)
        for row in map(dict, rows)
    ]


def _json_list(names: Collection[str] | None) -> str | None:
    return None if names is None else msgspec.json.encode(sorted(names)).decode()
