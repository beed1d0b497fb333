"""HAProxy's answers to `show info`, `show stat` and `show servers state`, as values.

HAProxy Management Guide, sections 9.1 and 9.3.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from lbengine.backends.haproxy.algorithms import weights_mean
from lbengine.balancer import BalancerError, BalancerUnreachable, Placeholder, Server, Snapshot

MAINTENANCE = 0x01 | 0x02 | 0x20
DRAINED = 0x08 | 0x10
DISABLED = 0x01 | 0x04
"""Bits of srv_admin_state. A server of weight 0 may show as DRAIN in `show stat`, so the status is not enough. Two bits
are no maintenance: 0x40 (`SRV_ADMF_HMAINT`), as its name is from the socket or from a SRV record, and 0x04 (`CMAINT`),
as its line has `disabled`, which stays when somebody has enabled it."""
NOWHERE = ("0.0.0.0", "::")
"""srv_addr of a server without an address, beside `-`, which a Unix socket has too (`show stat` tells them apart)."""
STARTING, RUNNING = 1, 2
AGENT_ENABLED = 0x04
"""Bit of srv_agent_state."""


def facts_of(info: str, where: str) -> dict[str, str]:
    """The facts in `show info`. Raises BalancerError, and BalancerUnreachable for a process that is ending: its socket
    may still be connected to, but it refuses changes, shows no servers, and another one takes over."""
    facts = dict(line.split(": ", 1) for line in info.splitlines() if ": " in line)
    if not facts.get("Pid") or not facts.get("Uptime_sec"):
        raise BalancerError(f"{where}: expected HAProxy's `show info`, got {info[:80]!r}")
    for name in ("Pid", "Uptime_sec"):
        count_of(facts, name, where)
    if facts.get("Stopping") == "1":
        raise BalancerUnreachable(f"{where}: this HAProxy (pid {facts['Pid']}) is stopping; is it restarting?")
    return facts


def parse(info: str, stat: str, state: str, where: str) -> Snapshot:
    """Puts the three answers together; `where` (socket and backend) stands in the errors. Raises BalancerError."""
    facts = facts_of(info, where)
    if not stat.startswith("# ") or "Can't find backend" in state:
        raise BalancerError(f"{where}: no such backend: {(stat if not stat.startswith('# ') else state)[:80].strip()}")
    rows = rows_of(stat, where)
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
        counts = by_name.get(row.name)
        if counts is None:  # added between the two answers: seen in the next cycle
            continue
        count = partial(count_of, counts, where=where)
        servers.append(
            Server(
                name=row.name,
                status=counts["status"],
                available=row.running in (STARTING, RUNNING) and not row.admin & (MAINTENANCE | DRAINED),
                backup=counts["bck"] == "1",
                weight=row.weight,
                configured=row.configured,
                in_flight=count("scur"),
                queued=count("qcur"),
                requests=count("stot"),
                rt_mean_ms=float(count("rtime")) if count("stot") else None,
                errors=count("econ") + count("hrsp_5xx") + max(count("eresp"), count("wretr"), count("wredis")),
                agent_check=bool(row.agent & AGENT_ENABLED),
                srv_record=row.srv_record,
                cookie=counts.get("cookie") or "",
                maxconn=count("slim") or None,
                queue_mean_ms=float(count("qtime")) if count("stot") else None,
                slow_start=bool(counts.get("throttle")),
                placeholder=placeholder(row.admin, row.address, counts.get("addr") or ""),
            )
        )
    return Snapshot(
        pid=count_of(facts, "Pid", where),
        uptime_s=count_of(facts, "Uptime_sec", where),
        connections=count_of(facts, "CumConns", where),
        balance=totals["algo"],
        weights_mean=weights_mean(totals["algo"]),
        cookie=totals.get("cookie") or "",
        servers=tuple(servers),
    )


COLUMNS = {"svname", "status", "bck", "algo", "cookie", "addr", "scur", "qcur", "slim", "stot", "rtime", "qtime"} | {
    *("econ", "eresp", "wretr", "wredis", "hrsp_5xx", "throttle"),
}
"""Of `show stat`'s hundred columns, those that are read here."""


def rows_of(stat: str, where: str) -> list[dict[str, str]]:
    """The lines of `show stat`, in the columns that matter. Raises BalancerError for lines without the first three."""
    try:
        head, *lines = list(csv.reader(io.StringIO(stat.removeprefix("# ")))) or [[]]
    except csv.Error as error:
        raise BalancerError(f"{where}: expected the CSV of `show stat`: {error}") from None
    wanted = [(index, name) for index, name in enumerate(head) if name in COLUMNS]
    rows = [{name: line[index] for index, name in wanted if index < len(line)} for line in lines if line]
    for row in rows:
        _expect(row, ("svname", "status", "bck"), "show stat", where)
    return rows


def _expect(row: Mapping[str, str], columns: Iterable[str], command: str, where: str) -> None:
    missing = [name for name in columns if name not in row]
    if missing:
        raise BalancerError(f"{where}: expected {', '.join(missing)} in each line of `{command}`")


def count_of(row: Mapping[str, str], column: str, where: str) -> int:
    """A counter; a column that is empty or that this version doesn't have counts 0."""
    text = row.get(column) or "0"
    if not (text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS):
        raise BalancerError(f"{where}: expected a number for {column}, got {text[:40]!r}")
    return int(text)


STATE_COLUMNS = frozenset(
    "srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight srv_agent_state srvrecord".split()  # noqa: SIM905
)
"""Of `show servers state`'s thirty, those that are read here."""
ALWAYS_SHOWN = ("srv_name", "srv_op_state", "srv_admin_state", "srv_uweight", "srv_iweight")
MOST_DIGITS = 20
"""Of a counter of 64 bits."""


@dataclass(frozen=True)
class ServerState:
    """One server in `show servers state`."""

    name: str
    running: int
    """srv_op_state"""
    admin: int
    """srv_admin_state"""
    weight: int
    """In force: srv_uweight."""
    configured: int
    """At the start: srv_iweight."""
    agent: int
    """srv_agent_state"""
    srv_record: bool
    address: str = ""
    """srv_addr"""


def backend_id(state: str) -> str:
    """HAProxy's number of the backend whose servers are shown; empty where none are. Numbers are unique, while a
    frontend may have the backend's name, and `show stat` takes a name that begins with digits for a number."""
    lines = state.splitlines()[1:3]
    columns = lines[0][2:].split() if lines else []
    values = dict(zip(columns, lines[1].split(), strict=False)) if len(lines) == 2 else {}
    return values.get("be_id", "")


def is_of(stat: str, number: str) -> bool:
    """Whether lines of `show stat` are those of the backend of this number, and not another proxy's."""
    head, _, lines = stat.removeprefix("# ").partition("\n")
    last = lines.rstrip("\n").rpartition("\n")[2]  # all are of one proxy, and the backend's own stands last
    try:
        names, values = csv.reader([head]), csv.reader([last])
        row = dict(zip(next(names, []), next(values, []), strict=False))
    except csv.Error:
        return False
    return row.get("iid") == number


def placeholder(admin: int, address: str, shown: str) -> Placeholder:
    """As `Server.placeholder`, from srv_admin_state, srv_addr and `addr` of `show stat`."""
    if admin & DISABLED == DISABLED:
        return "disabled"
    return "no_address" if address in NOWHERE or (address == "-" and not shown) else ""


def states(text: str, where: str) -> list[ServerState]:
    """The rows of `show servers state`, whose first lines are the format's version and `# ` with the columns.

    Raises BalancerError.
    """
    lines = text.splitlines()
    if len(lines) < 2 or lines[0] != "1" or not lines[1].startswith("# "):
        raise BalancerError(f"{where}: expected `show servers state` in format 1, got {text[:80]!r}")
    wanted = [(index, name) for index, name in enumerate(lines[1][2:].split()) if name in STATE_COLUMNS]
    found = []
    for values in (line.split() for line in lines[2:]):
        row = {name: values[index] for index, name in wanted if index < len(values)}
        _expect(row, ALWAYS_SHOWN, "show servers state", where)
        columns = ("srv_op_state", "srv_admin_state", "srv_uweight", "srv_iweight", "srv_agent_state")
        running, admin, weight, configured, agent = (count_of(row, column, where) for column in columns)
        srv_record = row.get("srvrecord", "-") != "-"
        address = row.get("srv_addr", "")
        found.append(ServerState(row["srv_name"], running, admin, weight, configured, agent, srv_record, address))
    return found
