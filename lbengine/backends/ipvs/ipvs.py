"""IPVS, the kernel's balancer (LVS), through `ipvsadm` on this host.

`ipvsadm -e` sets a server anew, and resets all options that are not named (the forwarding method to direct routing, the
thresholds to none). So a weight is changed by reading all options and repeating them. A batch is one `ipvsadm -R`. It
goes on after an error and does not show it in its exit status, so only reading back shows the result.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from slackwater.core.messages import ServerCondition
from slackwater.lbengine.backends.ipvs.schedulers import SCHEDULERS
from slackwater.lbengine.backends.ipvs.table import (
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
from slackwater.lbengine.balancer import Balancer, BalancerError, BalancerUnreachable, Server, Snapshot

HIGHEST_WEIGHT = 65535
QUIESCENT = "/proc/sys/net/ipv4/vs/expire_quiescent_template"


@dataclass(frozen=True)
class CommandResult:
    """A command's exit status and output."""

    status: int
    out: str
    err: str


Run = Callable[[list[str], str], CommandResult]
"""(command, standard input) -> Result. Raises BalancerUnreachable when it can't be run or doesn't end in time."""


def run_here(timeout_s: float) -> Run:
    """Runs commands on this host, each for at most `timeout_s`."""

    def run(argv: list[str], stdin: str) -> CommandResult:
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
        return CommandResult(done.returncode, done.stdout, done.stderr)

    return run


@dataclass(frozen=True, kw_only=True)
class LvsServer(Server):
    """A real server of the service. `in_flight` are established connections, `requests` scheduled connections."""

    address: str
    """The address in ipvsadm's form: `10.0.0.11:80` or `[fd00::11]:80`."""
    condition: ServerCondition = "unchecked"
    upper: int = 0
    """Upper threshold of connections; 0: none."""


@dataclass(frozen=True, kw_only=True)
class LvsSnapshot(Snapshot):
    """A snapshot of the service. IPVS sees no queues, no response times and no errors.

    `connections`: connections that the service has scheduled so far. `pid`: keepalived's; 0 where no process owns the
    table.
    """

    servers: tuple[LvsServer, ...]
    flags: frozenset[str]
    persistent_s: int | None
    most_weight: int = HIGHEST_WEIGHT
    counts: Literal["requests", "connections"] = "connections"


class Lvs(Balancer):
    """A virtual service of the kernel's table, named as for ipvsadm: `-t 10.0.0.1:80`. Needs CAP_NET_ADMIN."""

    def __init__(self, service: str, run: Run) -> None:
        """Raises BalancerError when `service` is no name of a service."""
        try:
            self.service = Service.parse(service)
        except TableError as error:
            raise BalancerError(str(error)) from None
        self.where = f"IPVS service `{self.service}`"
        self._run = run

    def read(self) -> LvsSnapshot:
        """Scheduler and servers. It takes three commands; a server that comes or goes between them is left out.

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
                answers_pass="-m" in destination.options,
                is_tcp=self.service.option in ("-t", "-f"),
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
        """Sets weights (0..65535) in one batch, repeats all other options, and reads everything back.

        Raises BalancerError before anything is changed for a weight out of bounds or a server that is not there. It is
        raised afterwards when the kernel shows other values than those that were sent. Somebody else's change of the
        same servers' options in the few milliseconds between reading and writing is undone.
        """
        check_bounds(weights, self.where)
        entry_before, limits = self._entry(), self._thresholds()
        by_name = {server_name(destination.address): destination for destination in entry_before.destinations}
        if gone := [name for name in weights if name not in by_name or by_name[name].address not in limits]:
            raise BalancerError(f"{self.where} has no server {', '.join(gone)}; nothing was changed")
        if not weights:
            return
        lines = [
            edit_line(self.service, by_name[name], limits[by_name[name].address], weight)
            for name, weight in weights.items()
        ]
        done = self._run(["ipvsadm", "-R"], "".join(f"{line}\n" for line in lines))
        entry_after, now_limits = self._entry(), self._thresholds()
        shown_by_name = {server_name(destination.address): destination for destination in entry_after.destinations}
        wrong = []
        for name, weight in weights.items():
            old, shown = by_name[name], shown_by_name.get(name)
            if shown is None or shown.address not in now_limits:
                wrong.append(f"{name} is gone")
            elif shown.weight != weight:
                wrong.append(f"{name} shows {shown.weight} instead of {weight}")
            elif (shown.options, _limits(now_limits[shown.address])) != (
                old.options,
                _limits(limits[old.address]),
            ):
                wrong.append(
                    f"{name} has other options than before: {_describe(shown.options, now_limits[shown.address])}"
                )
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
    """A server's safe name: `10.0.0.11:80` stays as it is, `[fd00::11]:80` becomes `fd00::11_80`."""
    ipv6 = re.fullmatch(r"\[(.*)\]:(\d+)", address)
    if not ipv6:
        return address
    host = f"0{ipv6[1]}" if ipv6[1].startswith(":") else ipv6[1]
    return f"{host}_{ipv6[2]}"


def check_bounds(weights: Mapping[str, int], where: str) -> None:
    """Raises BalancerError when a weight is out of bounds."""
    for name, weight in weights.items():
        if not 0 <= weight <= HIGHEST_WEIGHT:
            bounds = f"expected 0..{HIGHEST_WEIGHT}"
            raise BalancerError(f"{where}: weight {weight} for {name}: {bounds}; nothing was changed")


def in_words(error: str, words: tuple[str, ...]) -> str:
    """ipvsadm's error, with its remedy where that is known."""
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
