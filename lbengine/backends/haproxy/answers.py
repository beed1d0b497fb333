"""HAProxy's answers to `show info`, `show stat` and `show servers state`, as values.

HAProxy Management Guide, sections 9.1 and 9.3.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping

from lbengine.backends.haproxy.algorithms import weights_mean
from lbengine.balancer import BalancerError, BalancerUnreachable, Server, Snapshot

MAINTENANCE = 0x01 | 0x02 | 0x04 | 0x20
DRAINED = 0x08 | 0x10
"""Bits of srv_admin_state. A server of weight 0 may show as DRAIN in `show stat`, so the status is not enough. The bit
0x40 (`SRV_ADMF_HMAINT`) is no maintenance: its name is from the socket or from a SRV record."""
STARTING, RUNNING = 1, 2
AGENT_ENABLED = 0x04
"""Bit of srv_agent_state."""


def facts_of(info: str, where: str) -> dict[str, str]:
    """The facts in `show info`. Raises BalancerError, and BalancerUnreachable for a process that is ending: its socket
    may still be connected to, but it refuses changes, shows no servers, and another one takes over."""
    facts = dict(line.split(": ", 1) for line in info.splitlines() if ": " in line)
    if "Pid" not in facts or "Uptime_sec" not in facts:
        raise BalancerError(f"{where}: expected HAProxy's `show info`, got {info[:80]!r}")
    if facts.get("Stopping") == "1":
        raise BalancerUnreachable(f"{where}: this HAProxy (pid {facts['Pid']}) is stopping; is it restarting?")
    return facts


def parse(info: str, stat: str, state: str, where: str) -> Snapshot:
    """Puts the three answers together; `where` (socket and backend) stands in the errors. Raises BalancerError."""
    facts = facts_of(info, where)
    if not stat.startswith("# ") or "Can't find backend" in state:
        raise BalancerError(f"{where}: no such backend: {(stat if not stat.startswith('# ') else state)[:80].strip()}")
    rows = _rows(stat[2:])
    totals = next((row for row in rows if row["svname"] == "BACKEND"), None)
    if totals is None:
        raise BalancerError(f"{where}: that is no backend; expected one with servers (is it a frontend's name?)")
    if not totals.get("algo"):
        raise BalancerError(
            f"{where}: HAProxy doesn't show the balance algorithm here; expected a socket with `level admin` (or `level"
            " operator`, if weights go by agent-check)"
        )
    by_name = {row["svname"]: row for row in rows}
    servers = []
    for row in states(state, where):
        counts = by_name.get(row["srv_name"])
        if counts is None:  # added between the two answers: seen in the next cycle
            continue
        admin, running = int(row["srv_admin_state"]), int(row["srv_op_state"])
        servers.append(
            Server(
                name=row["srv_name"],
                status=counts["status"],
                available=running in (STARTING, RUNNING) and not admin & (MAINTENANCE | DRAINED),
                backup=counts["bck"] == "1",
                weight=int(row["srv_uweight"]),
                configured=int(row["srv_iweight"]),
                in_flight=_count(counts, "scur"),
                queued=_count(counts, "qcur"),
                requests=_count(counts, "stot"),
                rt_mean_ms=float(_count(counts, "rtime")) if _count(counts, "stot") else None,
                errors=_count(counts, "econ") + _count(counts, "eresp") + _count(counts, "hrsp_5xx"),
                agent_check=bool(int(row.get("srv_agent_state") or 0) & AGENT_ENABLED),
                srv_record=row.get("srvrecord", "-") != "-",
                cookie=counts.get("cookie") or "",
                maxconn=_count(counts, "slim") or None,
                queue_mean_ms=float(_count(counts, "qtime")) if _count(counts, "stot") else None,
                slow_start=bool(counts.get("throttle")),
            )
        )
    return Snapshot(
        pid=int(facts["Pid"]),
        uptime_s=int(facts["Uptime_sec"]),
        connections=int(facts.get("CumConns", 0)),
        balance=totals["algo"],
        weights_mean=weights_mean(totals["algo"]),
        cookie=totals.get("cookie") or "",
        servers=tuple(servers),
    )


COLUMNS = frozenset(
    "svname status bck algo cookie scur qcur slim stot rtime qtime econ eresp hrsp_5xx throttle".split()  # noqa: SIM905
)
"""Of `show stat`'s hundred columns, those that are read here."""


def _rows(text: str) -> list[dict[str, str]]:
    """The lines of `show stat`, in the columns that matter."""
    lines = csv.reader(io.StringIO(text))
    wanted = [(index, name) for index, name in enumerate(next(lines, [])) if name in COLUMNS]
    return [{name: line[index] for index, name in wanted if index < len(line)} for line in lines if line]


def _count(row: Mapping[str, str], column: str) -> int:
    """A counter; a column that is empty or that this version doesn't have counts 0."""
    return int(row.get(column) or 0)


STATE_COLUMNS = frozenset(
    "srv_name srv_op_state srv_admin_state srv_uweight srv_iweight srv_agent_state srvrecord".split()  # noqa: SIM905
)
"""Of `show servers state`'s thirty, those that are read here."""


def states(text: str, where: str) -> list[dict[str, str]]:
    """The rows of `show servers state`, whose first lines are the format's version and `# ` with the columns."""
    lines = text.splitlines()
    if len(lines) < 2 or lines[0] != "1" or not lines[1].startswith("# "):
        raise BalancerError(f"{where}: expected `show servers state` in format 1, got {text[:80]!r}")
    wanted = [(index, name) for index, name in enumerate(lines[1][2:].split()) if name in STATE_COLUMNS]
    fields = (line.split() for line in lines[2:])
    return [{name: values[index] for index, name in wanted if index < len(values)} for values in fields]
