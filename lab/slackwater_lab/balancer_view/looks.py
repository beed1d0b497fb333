"""The three ways to look at servers from the balancer: its counters, packets, and a table in HAProxy.

Each gives looks: what a server did since the look before.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slackwater.lbengine.backends.haproxy.answers import is_backend, rows_of
from slackwater.lbengine.backends.haproxy.haproxy import HAProxy
from slackwater_lab.balancer_view.front import BUCKETS_MS, POOL, PORTS, Front
from slackwater_lab.cluster.background import Background
from slackwater_lab.cluster.hosts import BRIDGE
from slackwater_lab.cluster.lab import Lab
from slackwater_lab.cluster.paths import LAB_DIR
from slackwater_lab.cluster.spawn import Program

TIMEOUT_S = 2.0
SNIFFER = "sniffer of the balancer"


@dataclass(frozen=True)
class Look:
    """What one way says of one server at one moment."""

    mono_s: float
    requests: float
    """Answers since the look before."""
    in_flight: float | None = None
    slowest_ms: float | None = None
    """How long the slowest of these took, or the oldest that waits has waited; None: nothing was answered, nothing
    waits."""
    answered_at_least: tuple[int, ...] = ()
    """Number of answers in the table so far that took at least as long as each bound."""


@dataclass
class Looks:
    """The looks at each server, in the order of time."""

    by_server: dict[str, list[Look]] = field(default_factory=dict)

    def add(self, server: str, look: Look) -> None:
        self.by_server.setdefault(server, []).append(look)


class Poller(Background):
    """Asks the balancers' sockets every so often, for their counters or for their tables."""

    def __init__(self, front: Front, every_s: float, command: str) -> None:
        super().__init__(f"poller of `{command}`")
        self.looks = Looks()
        self.cpu_s = 0.0
        """What asking and reading took in this process."""
        self._balancers = [HAProxy(str(path), POOL, TIMEOUT_S) for path in front.admin_sockets]
        self._every_s, self._command = every_s, command
        self._read = counters_of if command.startswith("show stat") else rows_of_table

    def _run(self) -> None:
        before: dict[str, list[int]] = {}
        begun_s = time.thread_time()
        dice = random.Random(1)
        # At random moments: at regular ones the counters would show the same phase of the hosts' quotas each time.
        while not self._end.wait(self._every_s * dice.uniform(0.5, 1.5)):
            answers = [balancer.ask(self._command)[0] for balancer in self._balancers]
            now_s = time.monotonic()
            now = summed(map(self._read, answers))
            for server, counts in now.items():
                if server in before:
                    self.looks.add(server, self._look(now_s, before[server], counts))
            before = now
            self.cpu_s = time.thread_time() - begun_s

    def _look(self, now_s: float, before: Sequence[int], now: Sequence[int]) -> Look:
        if self._read is counters_of:
            (asked_before, held_before), (asked, held) = before, now
            return Look(now_s, asked - held - asked_before + held_before, in_flight=held)
        new = [count - earlier for count, earlier in zip(now, before, strict=True)]
        reached = [bound for bound, count in zip(BUCKETS_MS, new[2:], strict=True) if count]
        slowest_ms = float(max(reached, default=0)) if new[0] else None
        return Look(now_s, new[0], slowest_ms=slowest_ms, answered_at_least=(now[0], *now[2:]))


def counters_of(answer: str) -> dict[str, list[int]]:
    """Server -> requests so far, and in flight."""
    rows = (row for row in rows_of(answer, "lab") if not is_backend(row))
    return {row["svname"]: [int(row["stot"] or 0), int(row["scur"] or 0)] for row in rows}


def rows_of_table(answer: str) -> dict[str, list[int]]:
    """Server -> its counters, of `show table`."""
    words = (line.split() for line in answer.splitlines() if "key=" in line)
    return {row[1].removeprefix("key="): [int(word.partition("=")[2]) for word in row[5:]] for row in words}


def summed(parts: Iterable[Mapping[str, Sequence[int]]]) -> dict[str, list[int]]:
    """Several balancers' counters as one."""
    total: dict[str, list[int]] = {}
    for part in parts:
        for server, counts in part.items():
            total[server] = [a + b for a, b in zip(total.get(server, [0] * len(counts)), counts, strict=True)]
    return total


class Packets:
    """The sniffer on the balancer's host, which writes to a file meanwhile."""

    def __init__(
        self, lab: Lab, front: Front, sniffer: str, every_s: float | None, *, snap_length: int | None = None
    ) -> None:
        """`every_s`: a look for each server; None: a line for each request."""
        self._port = PORTS[front.shape.speech]
        self._hosts = {f"{host.address}:{self._port}": host.name for host in lab.hosts}
        self._log = LAB_DIR / f"sniffer-{time.monotonic_ns()}.jsonl"
        self._lab = lab
        protocol = "http1" if front.shape.speech == "http1" else "unknown"
        cut = [] if snap_length is None else ["--snap-length", str(snap_length)]
        if every_s is None:
            argv = [sniffer, "live", "-i", BRIDGE, "--port", f"{self._port}:{protocol}", "--exchanges", *cut]
        else:
            servers = [word for address in self._hosts for word in ("--server", address)]
            argv = [sniffer, "servers", "-i", BRIDGE, *servers, "--protocol", protocol, "--every", str(every_s), *cut]
        self.program = lab.add(Program.start(SNIFFER, lab.in_front(argv), self._log))

    def finish(self) -> list[str]:
        """Ends it; gives the lines that it wrote."""
        self.program.stop()
        self._lab.programs.remove(self.program)
        lines = self._log.read_text().splitlines()
        self._log.unlink()
        return [line for line in lines if line.startswith("{")]

    def requests_ms(self, lines: Sequence[str], from_unix_s: float, until_unix_s: float) -> dict[str, list[float]]:
        """Times by server of the requests that ended then."""
        times_ms: dict[str, list[float]] = {host: [] for host in self._hosts.values()}
        for row in map(json.loads, lines):
            if row.get("seconds") is None or row["server"] not in self._hosts:
                continue
            if from_unix_s <= row["time_unix_s"] + row["seconds"] < until_unix_s:
                times_ms[self._hosts[row["server"]]].append(row["seconds"] * 1000.0)
        return times_ms

    def looks(self, lines: Sequence[str]) -> Looks:
        """The looks at each server, on this machine's monotonic clock; a server without a line was silent."""
        ahead_s = time.time() - time.monotonic()
        looks, rows = Looks(), dict[str, dict[str, float]]()
        for row in map(json.loads, lines):
            if "server" in row:
                rows[self._hosts[row["server"]]] = row
                continue
            for host in self._hosts.values():
                looks.add(host, self._look(row["time_unix_s"] - ahead_s, rows.get(host)))
            rows.clear()
        return looks

    @staticmethod
    def _look(mono_s: float, row: dict[str, float] | None) -> Look:
        if row is None:
            return Look(mono_s, 0, in_flight=0)
        slowest_ms = max(row.get("rt_max_ms") or 0.0, row["oldest_unanswered_ms"])
        return Look(mono_s, row["exchanges"], row["in_flight"], slowest_ms or None)


def quantile_of_table(at_least: Sequence[int], share: float) -> float | None:
    """A quantile in ms from counts of (all, at least each bound), straight within its bucket; None: no requests."""
    total = at_least[0]
    if total <= 0:
        return None
    rank = share * total
    bounds = (0, *BUCKETS_MS, 2 * BUCKETS_MS[-1])
    for place, (low, high) in enumerate(itertools.pairwise(bounds)):
        begins, ends = total - at_least[place], total - (at_least[place + 1] if place + 1 < len(at_least) else 0)
        if rank <= ends:
            inside = (rank - begins) / (ends - begins) if ends > begins else 1.0
            return low + inside * (high - low)
    return float(BUCKETS_MS[-1])


def bucket_of(value_ms: float) -> int:
    """The place of a time's bucket."""
    return sum(bound <= math.floor(value_ms) for bound in BUCKETS_MS)


def cpu_of(pid: int) -> float:
    """CPU seconds of all threads of a process, to the nanosecond."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9
