"""HAProxy of the lab, and the small client with which the lab looks at it on its own, whatever the policy does."""

from __future__ import annotations

import csv
import io
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slackwater_lab.cluster.hosts import POOL, Host
from slackwater_lab.cluster.paths import LabError
from slackwater_lab.cluster.spawn import Program, call, wait_until

BASE_WEIGHT = 100
BALANCES = {
    "roundrobin": "balance roundrobin",
    "leastconn": "balance leastconn",
    "random(2)": "balance random(2)",
    "bounded-random": "balance random(2)\n    hash-balance-factor 125",
}
"""Lines of the backend. A server may hold 1.25 times its share of all requests, as in the simulator."""
RETRY_ON = ("conn-failure", "empty-response")
RELOAD_WAIT_S = 30.0
ACCEPTS = 0x10000
"""The flag of a socket that listens in /proc/net/unix (__SO_ACCEPTCON)."""


def pools_of(members: Sequence[Host]) -> list[str]:
    """Their pools, in order."""
    return list(dict.fromkeys(host.pool for host in members))


def address_of(number: int) -> str:
    """The address of a pool's frontend; pools count from 0, and all frontends have the same port."""
    return f"127.0.0.{1 + number}"


def configuration(
    members: Sequence[Host],
    balance: str,
    port: int,
    admin_socket: Path,
    more: Mapping[str, str] | None = None,
) -> str:
    """No health checks: whether a slow host is avoided must be the policy's doing alone. `more` goes to each line.

    Each pool is a backend, with a frontend of its own.

    `retry-on`: a web server that restarts gracefully closes kept connections on which a request may just be arriving.
    `pool-purge-delay`: after its default of 5 s most requests of a quiet pool open a connection, which costs them some
    milliseconds on this machine; other balancers keep theirs.
    """

    def of_pool(number: int, pool: str) -> str:
        lines = more or {}
        servers = "\n".join(
            f"    server {host.name} {host.address}:80 weight {BASE_WEIGHT} {lines.get(host.name, '')}".rstrip()
            for host in members
            if host.pool == pool
        )
        return f"""\
frontend lab-{pool}
    bind {address_of(number)}:{port}
    maxconn 6000
    default_backend {pool}

backend {pool}
    {BALANCES[balance]}
    http-reuse safe
{servers}
"""

    pools = "\n".join(of_pool(number, pool) for number, pool in enumerate(pools_of(members)))
    return f"""\
global
    maxconn 8000
    stats socket {admin_socket} mode 600 level admin expose-fd listeners
    stats timeout 60s
    hard-stop-after 30s

defaults
    mode http
    option idle-close-on-response
    option redispatch
    retries 3
    retry-on {" ".join(RETRY_ON)}
    timeout connect 5s
    timeout client 30s
    timeout server 30s
    timeout queue 30s
    timeout http-keep-alive 30s
    default-server pool-purge-delay 1h

{pools}"""


@dataclass(frozen=True)
class Snapshot:
    """The backends at one instant: weight and requests so far of each server."""

    mono_s: float
    weight: dict[str, int]
    requests: dict[str, int]
    status: dict[str, str]


def parse_stat(text: str, mono_s: float) -> Snapshot:
    """Reads the CSV of `show stat` (HAProxy management guide, 9.1)."""
    servers = [row for row in _rows(text) if row["svname"] not in ("FRONTEND", "BACKEND")]
    return Snapshot(
        mono_s,
        {row["svname"]: int(row["weight"]) for row in servers},
        {row["svname"]: int(row["stot"]) for row in servers},
        {row["svname"]: row["status"] for row in servers},
    )


def _rows(stat: str) -> Iterator[dict[str, str]]:
    return csv.DictReader(io.StringIO(stat.removeprefix("# ")))


def ask(admin_socket: Path, command: str, wait_s: float = 15.0) -> str:
    """One command on HAProxy's admin socket; raises LabError when it cannot be had."""
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(wait_s)
            client.connect(str(admin_socket))
            client.sendall(command.encode() + b"\n")
            parts = []
            while part := client.recv(65536):
                parts.append(part)
    except OSError as error:
        raise LabError(f"{admin_socket}: `{command}`: {error}") from None
    return b"".join(parts).decode()


def free_port(wanted: int) -> int:
    """`wanted` on loopback if nobody listens there, else any that is free."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise LabError("no free port on 127.0.0.1")


def master_hears(pid: int, info: str) -> bool:
    """Whether HAProxy's master takes a SIGUSR2; `info` is what it answers to `show info`.

    From 2.5 to 3.0 a SIGUSR2 is lost until the master has executed itself anew to wait for its worker.
    """
    process = Path(f"/proc/{pid}")
    # First this: what a process caught before it executed itself anew says nothing of it afterwards.
    waits = b"HAPROXY_MWORKER_WAIT_ONLY=1" in (process / "environ").read_bytes()
    caught = next(line for line in (process / "status").read_text().splitlines() if line.startswith("SigCgt:"))
    hears = int(caught.split()[1], 16) >> (signal.SIGUSR2 - 1) & 1
    text = next(line for line in info.splitlines() if line.startswith("Version: ")).split()[1]
    version = tuple(map(int, text.split(".")[:2]))
    return bool(hears) and (waits or not (2, 5) <= version < (3, 1))


def listens(pid: int, path: str | Path) -> bool:
    """Whether a process listens on a Unix socket. After a reload both workers do for a moment: either may answer."""
    rows = (line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:])
    accepting = {row[6] for row in rows if int(row[3], 16) & ACCEPTS and row[-1].startswith(str(path))}
    try:
        return any(str(fd.readlink())[8:-1] in accepting for fd in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # the process ended, or closed a file meanwhile
        return Path(f"/proc/{pid}").exists()


class Balancer:
    """HAProxy as a running program."""

    def __init__(self, folder: Path, members: Sequence[Host], balance: str) -> None:
        self.admin_socket = folder / "haproxy.sock"
        self.config = folder / "haproxy.cfg"
        self.port = free_port(18080)
        self.members = list(members)
        self.urls = {pool: f"http://{address_of(number)}:{self.port}" for number, pool in enumerate(pools_of(members))}
        """Pool -> address of its frontend."""
        self.url = next(iter(self.urls.values()))
        self.program: Program | None = None
        self._folder = folder
        self.set_balance(balance)

    def set_balance(self, balance: str, lines: Mapping[str, str] | None = None) -> None:
        """Writes the configuration; in force from the next start or reload. `lines`: what server lines have besides."""
        if balance not in BALANCES:
            raise LabError(f"no balance `{balance}` in the lab; there are: {', '.join(BALANCES)}")
        self.balance, self.lines = balance, dict(lines or {})
        where = self.members, balance, self.port, self.admin_socket
        self.config.write_text(configuration(*where, self.lines))

    def start(self, wrapped: Sequence[str]) -> None:
        """`wrapped` is the command without arguments, as it is placed in its cgroup."""
        call([wrapped[-1], "-c", "-q", "-f", str(self.config)])
        argv = [*wrapped, "-W", "-f", str(self.config)]
        self.program = Program.start("haproxy", argv, self._folder / "haproxy.log")
        wait_until(self.answers, "HAProxy's admin socket", RELOAD_WAIT_S, watch=[self.program])

    def info(self) -> str:
        """What it answers to `show info`; empty while nobody answers."""
        try:
            answer = self.ask("show info")
        except LabError:
            return ""
        return answer if "Pid:" in answer else ""

    def answers(self) -> bool:
        return bool(self.info())

    def ask(self, command: str) -> str:
        return ask(self.admin_socket, command)

    def worker_pid(self) -> int | None:
        """None while no worker answers."""
        lines = self.info().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("Pid:")), None)

    def reload(self) -> None:
        """A seamless reload, as `systemctl reload haproxy` does; runtime weights are lost by it, as they always are."""
        if self.program is None:
            raise LabError("HAProxy is not running")
        master = self.program.process.pid
        wait_until(
            lambda: bool(answer := self.info()) and master_hears(master, answer),
            "HAProxy's master to be ready",
            RELOAD_WAIT_S,
            watch=[self.program],
        )
        if (before := self.worker_pid()) is None:
            raise LabError("HAProxy does not answer")
        self.program.process.send_signal(signal.SIGUSR2)
        wait_until(
            lambda: self.worker_pid() not in (None, before),
            "HAProxy's new worker",
            RELOAD_WAIT_S,
            watch=[self.program],
        )
        wait_until(
            lambda: not listens(before, self.admin_socket),
            "HAProxy's old worker to close its sockets",
            RELOAD_WAIT_S,
            watch=[self.program],
        )

    def snapshot(self) -> Snapshot:
        text = self.ask("show stat")
        return parse_stat(text, time.monotonic())

    def retries(self) -> int:
        """Requests that were sent, or connections that were tried, once more since this worker began."""
        return sum(int(row["wretr"] or 0) for row in _rows(self.ask("show stat -1 2 -1")))

    def set_weight(self, server: str, weight: int) -> None:
        """Sets a server's weight."""
        pool = next((host.pool for host in self.members if host.name == server), POOL)
        answer = self.ask(f"set server {pool}/{server} weight {weight}").strip()
        if answer:
            raise LabError(f"HAProxy refused weight {weight} for {server}: {answer}")
