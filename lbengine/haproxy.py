"""One door to HAProxy: its runtime API over a Unix socket (Management Guide, section 9.3 "Unix Socket commands").

One connection carries one line of commands joined by `;`; each answer ends with an empty line.
"""

from __future__ import annotations

import csv
import io
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slackwater.messages import is_name

MOST_BYTES = 8000
"""Longest line sent at once: HAProxy's buffer (tune.bufsize) is 16384 unless the site made it smaller."""
MAINTENANCE = 0x01 | 0x02 | 0x04 | 0x20 | 0x40
DRAINED = 0x08 | 0x10
"""Bits of srv_admin_state. A server of weight 0 may show as DRAIN in `show stat`, so the status alone doesn't tell."""
STARTING, RUNNING = 1, 2
AGENT_ENABLED = 0x04
"""Bit of srv_agent_state."""


class BalancerError(Exception):
    """HAProxy cannot be used or refused something; the text says which socket, what, and what was expected."""


class BalancerUnreachable(BalancerError):
    """Nobody answers on the socket, or not to the end: HAProxy is away, restarting or stuck. Worth trying again."""


@dataclass(frozen=True)
class Server:
    """One server of the backend as HAProxy shows it."""

    name: str
    status: str
    """HAProxy's word: `UP`, `no check`, `DOWN`, `MAINT`, `DRAIN`, ..."""
    available: bool
    """It takes requests if its weight is above 0: running, and neither in maintenance nor drained by an operator."""
    backup: bool
    weight: int
    """The user weight now (srv_uweight)."""
    configured: int
    """The weight of the configuration file (srv_iweight)."""
    in_flight: int
    queued: int
    requests: int
    """Since HAProxy started."""
    rt_mean_ms: float | None
    """Mean of the last 1024 responses; absent before the first."""
    errors: int
    """Failed connections, failed responses and responses of status 500 and above, since HAProxy started."""
    agent_check: bool
    srv_record: bool
    cookie: str


@dataclass(frozen=True)
class Snapshot:
    """What one connection told about the process and the backend."""

    pid: int
    uptime_s: int
    connections: int
    """Accepted since the process started, ours included."""
    version: str
    stopping: bool
    balance: str
    """The algorithm; HAProxy 2.6 calls `random` "unknown"."""
    cookie: str
    servers: tuple[Server, ...]


class HAProxy:
    """A backend of the HAProxy behind an admin socket. Opens a connection for each call and keeps none."""

    def __init__(self, path: str, backend: str, timeout_s: float) -> None:
        if not is_name(backend):
            raise BalancerError(f"{path}: {backend!r} is no safe name of a backend (letters, digits, `_-:.` expected)")
        self.path = path
        self.backend = backend
        self.timeout_s = timeout_s
        self._show_state = f"show servers state {backend}"

    def read(self) -> Snapshot:
        """The process, the algorithm and all servers, of one moment. Raises BalancerError."""
        info, stat, state = self.ask("show info", f"show stat {self.backend} 6 -1", self._show_state)
        return parse(info, stat, state, f"{self.path}: backend `{self.backend}`")

    def set_weights(self, weights: Mapping[str, int]) -> None:
        """Sets absolute weights (0..256) and reads them back.

        Raises BalancerError before anything is sent when a name or a weight is not safe; afterwards when HAProxy
        refused one (the others are set then) or shows another weight than the one set.
        """
        for server, weight in weights.items():
            if not is_name(server):
                raise BalancerError(
                    f"{self.path}: {server!r} is no safe name of a server (letters, digits, `_-:.` expected); not sent"
                )
            if not 0 <= weight <= 256:
                raise BalancerError(f"{self.path}: weight {weight} for {server}: expected 0..256; not sent")
        commands = [f"set server {self.backend}/{server} weight {weight}" for server, weight in weights.items()]
        *answers, state = self.ask(*commands, self._show_state)
        refused = [
            f"{server}: {answer.strip()}" for server, answer in zip(weights, answers, strict=True) if answer.strip()
        ]
        if refused:
            raise BalancerError(f"{self.path}: backend `{self.backend}` refused: {'; '.join(refused)}")
        shown = {row["srv_name"]: int(row["srv_uweight"]) for row in _states(state, self.path)}
        wrong = [
            f"{server} shows {shown.get(server, 'nothing')} instead of {weight}"
            for server, weight in weights.items()
            if shown.get(server) != weight
        ]
        if wrong:
            raise BalancerError(f"{self.path}: backend `{self.backend}` read back: {', '.join(wrong)}")

    def ask(self, *commands: str) -> list[str]:
        """Sends commands in as few connections as fit and returns their answers, without the empty lines that end them.

        Raises BalancerUnreachable when HAProxy doesn't answer all of them within the timeout, BalancerError when a
        command is no single one.
        """
        for command in commands:
            if not command.isprintable() or ";" in command:
                raise BalancerError(f"{self.path}: {command!r} is not one command; not sent")
        answers: list[str] = []
        batch: list[str] = []
        for command in commands:
            if batch and sum(len(other) + 1 for other in batch) + len(command) > MOST_BYTES:
                answers += self._ask_once(batch)
                batch = []
            batch.append(command)
        return answers + self._ask_once(batch) if batch else answers

    def _ask_once(self, commands: Sequence[str]) -> list[str]:
        until_s = time.monotonic() + self.timeout_s
        received = bytearray()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            try:
                connection.settimeout(self.timeout_s)
                connection.connect(self.path)
                connection.sendall(";".join(commands).encode() + b"\n")
                while True:
                    connection.settimeout(max(until_s - time.monotonic(), 0.001))
                    if not (chunk := connection.recv(65536)):
                        break
                    received += chunk
            except TimeoutError:
                raise BalancerUnreachable(
                    f"{self.path}: HAProxy did not answer within {self.timeout_s:g} s; is it running or stuck?"
                ) from None
            except FileNotFoundError:
                raise BalancerUnreachable(
                    f"{self.path}: no such socket; expected HAProxy's `stats socket {self.path} level admin`"
                ) from None
            except PermissionError:
                raise BalancerUnreachable(
                    f"{self.path}: no permission to connect; expected a socket that this user may write to"
                    " (`stats socket PATH user USER mode 600 level admin`)"
                ) from None
            except ConnectionRefusedError:
                raise BalancerUnreachable(
                    f"{self.path}: nobody listens there; expected a running HAProxy's admin socket"
                ) from None
            except OSError as error:
                raise BalancerUnreachable(f"{self.path}: {error.strerror or error}; is HAProxy restarting?") from None
        answers = split_answers(received.decode("utf-8", "replace"))
        if len(answers) != len(commands):
            raise BalancerUnreachable(
                f"{self.path}: {len(answers)} of {len(commands)} answers came, then HAProxy closed the connection;"
                " is it restarting?"
            )
        return answers


def split_answers(text: str) -> list[str]:
    """The answers in a reply: each ends with an empty line; what comes after the last empty line is cut off."""
    answers: list[str] = []
    lines: list[str] = []
    for line in text.split("\n")[:-1]:
        if line:
            lines.append(line)
        else:
            answers.append("\n".join(lines))
            lines = []
    return answers


def parse(info: str, stat: str, state: str, where: str) -> Snapshot:
    """Puts the three answers together; `where` (socket and backend) stands in the errors. Raises BalancerError."""
    facts = dict(line.split(": ", 1) for line in info.splitlines() if ": " in line)
    if "Pid" not in facts or "Uptime_sec" not in facts:
        raise BalancerError(f"{where}: expected HAProxy's `show info`, got {info[:80]!r}")
    if not stat.startswith("# ") or "Can't find backend" in state:
        raise BalancerError(f"{where}: no such backend: {(stat if not stat.startswith('# ') else state)[:80].strip()}")
    rows = list(csv.DictReader(io.StringIO(stat[2:])))
    totals = next((row for row in rows if row["svname"] == "BACKEND"), None)
    if totals is None:
        raise BalancerError(f"{where}: that is no backend; expected one with servers (is it a frontend's name?)")
    if not totals.get("algo"):
        raise BalancerError(
            f"{where}: HAProxy doesn't show the balance algorithm here; expected a socket with `level admin`"
        )
    by_name = {row["svname"]: row for row in rows}
    servers = []
    for row in _states(state, where):
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
            )
        )
    return Snapshot(
        pid=int(facts["Pid"]),
        uptime_s=int(facts["Uptime_sec"]),
        connections=int(facts.get("CumConns", 0)),
        version=facts.get("Version", ""),
        stopping=facts.get("Stopping", "0") == "1",
        balance=totals["algo"],
        cookie=totals.get("cookie") or "",
        servers=tuple(servers),
    )


def _count(row: Mapping[str, str], column: str) -> int:
    """A counter; a column that is empty or that this version doesn't have counts 0."""
    return int(row.get(column) or 0)


def _states(text: str, where: str) -> list[dict[str, str]]:
    """The rows of `show servers state`, whose first lines are the format's version and `# ` with the columns."""
    lines = text.splitlines()
    if len(lines) < 2 or lines[0] != "1" or not lines[1].startswith("# "):
        raise BalancerError(f"{where}: expected `show servers state` in format 1, got {text[:80]!r}")
    columns = lines[1][2:].split()
    return [dict(zip(columns, line.split(), strict=False)) for line in lines[2:]]
