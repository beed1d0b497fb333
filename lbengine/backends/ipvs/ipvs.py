"""IPVS, the kernel's balancer (LVS), through `ipvsadm` on this host.

`ipvsadm -e` sets a server anew: what is not named, it resets (the forwarding method to direct routing, the thresholds
to none). So weights are changed by reading everything and repeating it. A batch is one `ipvsadm -R`, which goes on
after an error and hides it in its exit status: only reading back shows the result.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from lbengine.backends.ipvs.schedulers import SCHEDULERS
from lbengine.backends.ipvs.table import (
    Entry,
    Service,
    TableError,
    Thresholds,
    edit_line,
    parse_connections,
    parse_save,
    parse_service_connections,
    parse_thresholds,
)
from lbengine.balancer import Balancer, BalancerError, BalancerUnreachable, Server, Snapshot

HIGHEST_WEIGHT = 65535
QUIESCENT = "/proc/sys/net/ipv4/vs/expire_quiescent_template"


@dataclass(frozen=True)
class Result:
    """What a command left: exit status and what it printed."""

    status: int
    out: str
    err: str


Run = Callable[[list[str], str], Result]
"""Runs a command with a standard input. Raises BalancerUnreachable when it can't be run or doesn't end in time."""


def run_here(timeout_s: float) -> Run:
    """Runs commands on this host, each for at most `timeout_s`."""

    def run(argv: list[str], stdin: str) -> Result:
        try:
            done = subprocess.run(
                argv,
                input=stdin,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
                env={**os.environ, "LC_ALL": "C"},
            )
        except FileNotFoundError:
            raise BalancerUnreachable(f"{argv[0]} is not on this host; install it (Debian: `{argv[0]}`)") from None
        except PermissionError:
            raise BalancerUnreachable(f"{argv[0]} may not be run by this user") from None
        except subprocess.TimeoutExpired:
            raise BalancerUnreachable(f"`{' '.join(argv)}` did not end within {timeout_s:g} s") from None
        return Result(done.returncode, done.stdout, done.stderr)

    return run


@dataclass(frozen=True, kw_only=True)
class LvsServer(Server):
    """One real server of the service. `in_flight` are established connections, `requests` the scheduled ones."""

    address: str
    """`10.0.0.11:80` or `[fd00::11]:80`, as ipvsadm has it."""
    status: str = "no check"
    upper: int = 0
    """Threshold of connections; 0: none."""


@dataclass(frozen=True, kw_only=True)
class LvsSnapshot(Snapshot):
    """One look at the service. IPVS sees no queues, no response times and no errors.

    `connections` were scheduled by the service so far; `pid` is keepalived's, 0 where no process owns the table.
    """

    servers: tuple[LvsServer, ...]
    flags: frozenset[str]
    persistent_s: int | None
    most_weight: int = HIGHEST_WEIGHT
    counts: Literal["requests", "connections"] = "connections"


class Lvs(Balancer):
    """A virtual service of the kernel's table, named as for ipvsadm: `-t 10.0.0.1:80`. Needs CAP_NET_ADMIN."""

    def __init__(self, service: str, run: Run) -> None:
        """Raises BalancerError when `service` is no name of one."""
        try:
            self.service = Service.parse(service)
        except TableError as error:
            raise BalancerError(str(error)) from None
        self.where = f"IPVS service `{self.service}`"
        self._run = run

    def read(self) -> LvsSnapshot:
        """Scheduler and servers. Three commands, so a server that comes or goes meanwhile is left out.

        Raises BalancerUnreachable when ipvsadm can't be run, BalancerError when there is no such service.
        """
        entry, limits = self._entry(), self._thresholds()
        try:
            stats = self._ipvsadm("-Ln", "--stats", "--exact")
            counts = parse_connections(stats, self.service)
            taken = parse_service_connections(stats, self.service)
        except TableError as error:
            raise BalancerError(f"{self.where}: {error}") from None
        servers = [
            LvsServer(
                name=server_name(destination.address),
                address=destination.address,
                weight=destination.weight,
                in_flight=limits[destination.address].active,
                requests=counts[destination.address],
                upper=limits[destination.address].upper,
            )
            for destination in entry.destinations
            if destination.address in limits and destination.address in counts
        ]
        servers.sort(key=lambda server: server.name)
        row = SCHEDULERS.get(entry.scheduler)
        return LvsSnapshot(
            balance=entry.scheduler,
            weights_mean=None if row is None else row.weights_mean,
            serves_in_runs=row is not None and row.serves_in_runs,
            flags=entry.flags,
            persistent_s=entry.persistent_s,
            connections=taken,
            servers=tuple(servers),
        )

    def set_weights(self, weights: Mapping[str, int]) -> None:
        """Sets weights (0..65535) in one batch, keeps everything else as it is, and reads all of it back.

        Raises BalancerError before anything is changed for a weight out of bounds or a server that is not there;
        afterwards when the kernel shows something else than what was asked for. Between the reading and the writing
        (a few milliseconds) somebody else's change of the same servers' options would be undone.
        """
        check_bounds(weights, self.where)
        before, limits = self._entry(), self._thresholds()
        by_name = {server_name(destination.address): destination for destination in before.destinations}
        if gone := [name for name in weights if name not in by_name or by_name[name].address not in limits]:
            raise BalancerError(f"{self.where} has no server {', '.join(gone)}; nothing was changed")
        if not weights:
            return
        lines = [
            edit_line(self.service, by_name[name], limits[by_name[name].address], weight)
            for name, weight in weights.items()
        ]
        done = self._run(["ipvsadm", "-R"], "".join(f"{line}\n" for line in lines))
        after, now = self._entry(), self._thresholds()
        found = {server_name(destination.address): destination for destination in after.destinations}
        wrong = []
        for name, weight in weights.items():
            asked, shown = by_name[name], found.get(name)
            if shown is None or shown.address not in now:
                wrong.append(f"{name} is gone")
            elif shown.weight != weight:
                wrong.append(f"{name} shows {shown.weight} instead of {weight}")
            elif (shown.options, _limits(now[shown.address])) != (asked.options, _limits(limits[asked.address])):
                wrong.append(f"{name} has other options than before: {_describe(shown.options, now[shown.address])}")
        if wrong:
            error = f" ({_last_line(done.err)})" if done.err.strip() else ""
            raise BalancerError(f"{self.where} read back: {', '.join(wrong)}{error}")

    def expires_quiescent(self) -> bool:
        """Whether persistent clients leave a server of weight 0 (net.ipv4.vs.expire_quiescent_template)."""
        return self._run(["cat", QUIESCENT], "").out.strip() == "1"

    def _entry(self) -> Entry:
        text = self._ipvsadm("-Sn")
        try:
            entries = parse_save(text)
        except TableError as error:
            raise BalancerError(f"{self.where}: {error}") from None
        for entry in entries:
            if entry.service == self.service:
                return entry
        known = ", ".join(f"`{entry.service}`" for entry in entries) or "none at all"
        raise BalancerError(f"{self.where} is not in the kernel's table; it has: {known}")

    def _thresholds(self) -> dict[str, Thresholds]:
        try:
            return parse_thresholds(self._ipvsadm("-Ln", "--thresholds"), self.service)
        except TableError as error:
            raise BalancerError(f"{self.where}: {error}") from None

    def _ipvsadm(self, *words: str) -> str:
        done = self._run(["ipvsadm", *words], "")
        if done.status != 0:
            raise BalancerUnreachable(f"{self.where}: {in_words(done.err, words)}")
        return done.out


def server_name(address: str) -> str:
    """A name that is safe everywhere: `10.0.0.11:80` as it is, `[fd00::11]:80` as `fd00::11_80`."""
    found = re.fullmatch(r"\[(.*)\]:(\d+)", address)
    if not found:
        return address
    host = f"0{found[1]}" if found[1].startswith(":") else found[1]
    return f"{host}_{found[2]}"


def check_bounds(weights: Mapping[str, int], where: str) -> None:
    """Raises BalancerError when a weight is out of bounds."""
    for name, weight in weights.items():
        if not 0 <= weight <= HIGHEST_WEIGHT:
            bounds = f"expected 0..{HIGHEST_WEIGHT}"
            raise BalancerError(f"{where}: weight {weight} for {name}: {bounds}; nothing was changed")


def in_words(error: str, words: tuple[str, ...]) -> str:
    """What ipvsadm complained of, with what to do."""
    if "Permission denied" in error:
        return "no permission to use IPVS; expected root or CAP_NET_ADMIN"
    if "Can't initialize ipvs" in error:
        return "this kernel has no IPVS, or its module is not loaded (`modprobe ip_vs`)"
    if "No such service" in error or "Service not defined" in error:
        return "no such virtual service"
    return f"`ipvsadm {' '.join(words)}` failed: {_last_line(error) or 'without a message'}"


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def _limits(thresholds: Thresholds) -> tuple[int, int]:
    return thresholds.upper, thresholds.lower


def _describe(options: tuple[str, ...], thresholds: Thresholds) -> str:
    return f"{' '.join(options)} -x {thresholds.upper} -y {thresholds.lower}"
