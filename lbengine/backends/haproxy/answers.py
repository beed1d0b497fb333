"""HAProxy's answers to `show info`, `show stat` and `show servers state`, as values.

HAProxy Management Guide, sections 9.1 and 9.3.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from slackwater.core.messages import MAX_NAME, ServerCondition, is_server_name
from slackwater.lbengine.backends.haproxy.algorithms import configured_name, weights_mean
from slackwater.lbengine.balancer import BalancerError, BalancerUnreachable, Placeholder, Server, Snapshot

MAINTENANCE = 0x01 | 0x02 | 0x20
DRAINED = 0x08 | 0x10
DISABLED = 0x01 | 0x04
"""Bits of srv_admin_state. A server of weight 0 may show as DRAIN in `show stat`, so the status is not enough. Two bits
are no maintenance: 0x40 (`SRV_ADMF_HMAINT`), as its name is from the socket or from a SRV record, and 0x04 (`CMAINT`),
as its line has `disabled`, which stays when somebody has enabled it."""
NOWHERE = ("0.0.0.0", "::")
"""srv_addr of a server without an address. It may also be `-`, as for a Unix socket; `show stat` tells them apart."""
STOPPED, STARTING, RUNNING = 0, 1, 2
MOST_WEIGHT = 256
"""SRV_UWGHT_MAX"""
COUNTED_BY_MODE: Mapping[str, Literal["requests", "connections"]] = {"http": "requests", "tcp": "connections"}
"""What the servers' counters count in each mode. Other modes (`log`, `spop`) are no work that users wait for."""
AGENT_ENABLED = 0x04
"""Bit of srv_agent_state."""


def facts_of(info: str, where: str) -> dict[str, str]:
    """The facts in `show info`: name -> value.

    Raises BalancerError, and BalancerUnreachable for a process that is ending. Its socket may still accept connections,
    but it refuses changes and shows no servers, and another process takes over.
    """
    facts = dict(line.split(": ", 1) for line in info.splitlines() if ": " in line)
    if not facts.get("Pid") or not facts.get("Uptime_sec"):
        raise BalancerError(f"{where}: expected HAProxy's `show info`, got {info[:80]!r}")
    for name in ("Pid", "Uptime_sec"):
        count_of(facts, name, where)
    if facts.get("Stopping") == "1":
        raise BalancerUnreachable(f"{where}: this HAProxy (pid {facts['Pid']}) is stopping; is it restarting?")
    return facts


def parse(info: str, stat: str, state: str, where: str) -> Snapshot:
    """The snapshot in three answers; `where` (socket and backend) stands in the errors.

    A server whose row cannot be read is left out, and named in `Snapshot.unreadable`. Raises BalancerError where no
    server can be read, or the answers are not those of a backend.
    """
    facts = facts_of(info, where)
    if not stat.startswith("# ") or "Can't find backend" in state:
        raise BalancerError(f"{where}: no such backend: {(stat if not stat.startswith('# ') else state)[:80].strip()}")
    rows = rows_of(stat, where)
    totals = next((row for row in rows if is_backend(row)), None)
    if totals is None:
        raise BalancerError(f"{where}: that is no backend; expected one with servers (is it a frontend's name?)")
    if not totals.get("algo"):
        raise BalancerError(
            f"{where}: HAProxy doesn't show the balance algorithm here; expected a socket with `level admin` (or `level"
            " operator`, if weights go by agent-check)"
        )
    mode = totals.get("mode") or ""
    if mode not in COUNTED_BY_MODE:
        raise BalancerError(f"{where}: HAProxy shows its mode as `{mode}`; expected `http` or `tcp`")
    balance = configured_name(totals["algo"])
    by_name = {row["svname"]: row for row in rows if "svname" in row and not is_backend(row)}
    server_states, unreadable = states(state, where)
    servers = []
    for state_ in server_states:
        if state_.name in by_name:  # else it was added between the two answers, and the next cycle sees it
            try:
                servers.append(_server(state_, by_name[state_.name], where))
            except BalancerError as error:
                unreadable[state_.name] = str(error)
    if unreadable and not servers:
        raise BalancerError(next(iter(unreadable.values())))
    return Snapshot(
        pid=count_of(facts, "Pid", where),
        uptime_s=count_of(facts, "Uptime_sec", where),
        connections=count_of(facts, "CumConns", where),
        balance=balance,
        weights_mean=weights_mean(balance),
        weighs_away=True,
        counts=COUNTED_BY_MODE[mode],
        cookie=totals.get("cookie") or "",
        servers=tuple(servers),
        unreadable=unreadable,
    )


def _server(state: ServerStateLine, row: Mapping[str, str], where: str) -> Server:
    """A server from its state and its row. If its counters are no numbers it is uncounted. Raises BalancerError."""
    where = f"{where}: server {state.name}"
    _expect(row, ("status", "bck"), "show stat", where)
    counts: dict[str, int] = {}
    uncounted = ""
    try:
        counts = {column: count_of(row, column, where) for column in COUNTERS}
    except BalancerError as error:
        uncounted = str(error)
    measured = _measured(counts) if counts else {}
    return Server(
        name=state.name,
        condition=_condition(state, row["status"]),
        backup=row["bck"] == "1",
        weight=state.weight,
        configured=state.configured,
        agent_check=bool(state.agent & AGENT_ENABLED),
        srv_record=state.srv_record,
        cookie=row.get("cookie") or "",
        maxconn=count_of(row, "slim", where) or None,
        address=row.get("addr") or "",
        is_encrypted=state.is_encrypted,
        slow_start=bool(row.get("throttle")),
        placeholder=placeholder(state.admin, state.address, row.get("addr") or ""),
        uncounted=uncounted,
        **measured,
    )


def _measured(counts: Mapping[str, int]) -> dict[str, Any]:
    """The fields of a server that are made of its counters."""
    answered = bool(counts["stot"])
    return {
        "in_flight": counts["scur"],
        "queued": counts["qcur"],
        "requests": counts["stot"],
        "rt_mean_ms": float(counts["rtime"]) if answered else None,
        "errors": counts["econ"] + counts["hrsp_5xx"] + max(counts["eresp"], counts["wretr"], counts["wredis"]),
        "unanswered": counts["econ"] + max(counts["wretr"], counts["wredis"]),
        "queue_mean_ms": float(counts["qtime"]) if answered else None,
    }


def _condition(state: ServerStateLine, status: str) -> ServerCondition:
    if state.admin & MAINTENANCE:
        return "maintenance"
    if state.running == STOPPED:
        return "down"
    if state.admin & DRAINED or state.running not in (STARTING, RUNNING):
        return "draining"
    return "unchecked" if status == "no check" else "up"


def is_backend(row: Mapping[str, str]) -> bool:
    """Whether a line of `show stat` is the backend's own, whatever its servers are called."""
    return row["type"] == "1" if row.get("type") else row.get("svname") == "BACKEND"


COUNTERS = {"scur", "qcur", "stot", "rtime", "qtime", "econ", "eresp", "wretr", "wredis", "hrsp_5xx"}
COLUMNS = COUNTERS | {"svname", "status", "bck", "algo", "cookie", "addr", "slim", "type", "throttle", "mode"}
"""The columns of `show stat` that are read here, of some hundred."""


def rows_of(stat: str, where: str) -> list[dict[str, str]]:
    """The lines of `show stat`, each with its values of `COLUMNS`. A line that is cut off lacks the last ones, and its
    counters are no numbers: a 0 would be taken for a restart.

    Raises BalancerError for lines without the columns that every version has.
    """
    lines = csv.reader(io.StringIO(stat.removeprefix("# ")))
    try:
        head = next(lines, [])
        wanted = [(index, name) for index, name in enumerate(head) if name in COLUMNS]
        missing = {name: "nothing" for _, name in wanted if name in COUNTERS}
        rows = [missing | {name: line[index] for index, name in wanted if index < len(line)} for line in lines if line]
    except csv.Error as error:
        raise BalancerError(f"{where}: expected the CSV of `show stat`: {error}") from None
    if rows:
        _expect(head, ("svname", "status", "bck"), "show stat", where)
    return rows


def _expect(row: Collection[str], columns: Iterable[str], command: str, where: str) -> None:
    missing = [name for name in columns if name not in row]
    if missing:
        raise BalancerError(f"{where}: expected {', '.join(missing)} in each line of `{command}`")


def count_of(row: Mapping[str, str], column: str, where: str) -> int:
    """The value of a counter; 0 where the column is empty, or this version has none. Raises BalancerError."""
    text = row.get(column)
    if not text or text == "0":
        return 0
    if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS and (count := int(text)) <= MOST_COUNT:
        return count
    raise BalancerError(f"{where}: expected a number for {column}, got {text[:40]!r}")


STATE_COLUMNS = {"srv_name", "srv_addr", "srv_op_state", "srv_admin_state", "srv_uweight", "srv_iweight"} | {
    *("srv_agent_state", "srvrecord", "srv_use_ssl"),
}
"""The columns of `show servers state` that are read here, of some thirty."""
ALWAYS_SHOWN = ("srv_name", "srv_op_state", "srv_admin_state", "srv_uweight", "srv_iweight")
MOST_DIGITS = 20
"""Digits of the highest counter of 64 bits."""
MOST_COUNT = 2**63 - 1
"""The highest counter that the journal and JSON can hold; HAProxy's are far below."""


@dataclass(frozen=True)
class ServerStateLine:
    """A server's line in `show servers state`."""

    name: str
    running: int
    """srv_op_state"""
    admin: int
    """srv_admin_state"""
    weight: int
    """srv_uweight: the weight in force."""
    configured: int
    """srv_iweight: the weight at HAProxy's start."""
    agent: int
    """srv_agent_state"""
    srv_record: bool
    address: str = ""
    """srv_addr"""
    is_encrypted: bool = False
    """srv_use_ssl"""


def backend_id(state: str) -> str:
    """HAProxy's number of the backend whose servers are shown; empty where none are.

    Numbers are unique. Names are not: a frontend may have the backend's name, and `show stat` takes a name that begins
    with digits for a number.
    """
    lines = state.splitlines()[1:3]
    columns = lines[0][2:].split() if lines else []
    values = dict(zip(columns, lines[1].split(), strict=False)) if len(lines) == 2 else {}
    return values.get("be_id", "")


def is_of(stat: str, number: str) -> bool:
    """Whether the lines of `show stat` are those of the backend with this number, and not another proxy's."""
    head, _, lines = stat.removeprefix("# ").partition("\n")
    last = lines.rstrip("\n").rpartition("\n")[2]  # all are of one proxy, and the backend's own stands last
    try:
        names, values = csv.reader([head]), csv.reader([last])
        row = dict(zip(next(names, []), next(values, []), strict=False))
    except csv.Error:
        return False
    return row.get("iid") == number


def placeholder(admin: int, address: str, shown: str) -> Placeholder:
    """`Server.placeholder` by `admin` (srv_admin_state), `address` (srv_addr) and `shown` (`addr` of `show stat`)."""
    if admin & DISABLED == DISABLED:
        return "disabled"
    return "no_address" if address in NOWHERE or (address == "-" and not shown) else ""


def states(text: str, where: str) -> tuple[list[ServerStateLine], dict[str, str]]:
    """The rows of `show servers state`, and the rows that cannot be read as name -> why, in words.

    The first line must be the format's version, the second `# ` with the columns. Raises BalancerError for another
    format.
    """
    lines = text.splitlines()
    if len(lines) < 2 or lines[0] != "1" or not lines[1].startswith("# "):
        raise BalancerError(f"{where}: expected `show servers state` in format 1, got {text[:80]!r}")
    wanted = [(index, name) for index, name in enumerate(lines[1][2:].split()) if name in STATE_COLUMNS]
    rows = [
        {name: values[index] for index, name in wanted if index < len(values)} for values in map(str.split, lines[2:])
    ]
    times = Counter(row.get("srv_name", "") for row in rows)
    server_states, unreadable = [], dict[str, str]()
    for row in rows:
        name = row.get("srv_name", "")
        try:
            server_states.append(_state(row, times[name], where))
        except BalancerError as error:
            unreadable[name] = str(error)
    return server_states, unreadable


def _state(row: Mapping[str, str], times: int, where: str) -> ServerStateLine:
    """A row of `show servers state`; `times`: number of rows with its name. Raises BalancerError."""
    _expect(row, ("srv_name",), "show servers state", where)
    name = row["srv_name"]
    if not is_server_name(name):
        expected = f"letters, digits and `_-:.`, {MAX_NAME} at most"
        raise BalancerError(f"{where}: server {name[:MAX_NAME]!r}: expected a name of {expected}")
    where = f"{where}: server {name}"
    if times > 1:
        raise BalancerError(f"{where}: expected one server of this name, got {times}")
    _expect(row, ALWAYS_SHOWN, "show servers state", where)
    columns = ("srv_op_state", "srv_admin_state", "srv_uweight", "srv_iweight", "srv_agent_state")
    running, admin, weight, configured, agent = (count_of(row, column, where) for column in columns)
    if not weight <= MOST_WEIGHT >= configured:
        raise BalancerError(f"{where}: expected weights up to {MOST_WEIGHT}, got {weight}, configured {configured}")
    srv_record = row.get("srvrecord", "-") != "-"
    is_encrypted = row.get("srv_use_ssl", "0") not in ("0", "-")
    address = row.get("srv_addr", "")
    return ServerStateLine(name, running, admin, weight, configured, agent, srv_record, address, is_encrypted)
