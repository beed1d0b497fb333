"""A survey of a running HAProxy before anything is set up: its admin socket, its backends, and why a backend cannot be
driven."""

from __future__ import annotations

import contextlib
import csv
import grp
import io
import ipaddress
import pwd
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from slackwater.core.config import LbengineSettings
from slackwater.core.files import SERVICE_USER
from slackwater.core.messages import MAX_NAME, is_name
from slackwater.core.service_user import SYSTEMD, groups_of_unit
from slackwater.lbengine.backends.haproxy.algorithms import configured_name
from slackwater.lbengine.backends.haproxy.answers import MOST_DIGITS, facts_of, is_backend, placeholder
from slackwater.lbengine.backends.haproxy.haproxy import HAProxy
from slackwater.lbengine.backends.haproxy.preflight import check, of_several
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.lbengine.backends.haproxy.site import (
    SiteConfiguration,
    SurveyError,
    add_socket,
    find_in,
    not_usable_in,
    socket_named,
    spoken,
)
from slackwater.lbengine.balancer import BalancerError, BalancerUnreachable, Placeholder

USUAL_SOCKETS = (
    "/run/haproxy/admin.sock",
    "/run/haproxy/haproxy.sock",
    "/run/haproxy.sock",
    "/var/lib/haproxy/stats",
    "/var/run/haproxy/admin.sock",
    "/var/run/haproxy.sock",
)
"""The usual admin sockets of Debian, of HAProxy's guides, and of Red Hat."""
HAPROXY_GROUP = "haproxy"
INTERNAL = ("<", "MASTER")
"""Beginnings of the names of HAProxy's own proxies."""
SHOW_SERVERS = "show stat -1 6 -1"
"""Asks for the lines of the types backend (2) and server (4) of all proxies."""


class FoundServer(msgspec.Struct, frozen=True):
    """A server of a backend."""

    name: str
    address: str
    """HOST:PORT, or `unix` for a Unix socket; empty where it has none. HOST:+NUMBER or HOST:-NUMBER where HAProxy adds
    the number to the client's port."""
    weight: int
    """The weight that is set now, whatever HAProxy's checks make of it."""
    protocol: str = "http1"
    """The protocol that a monitor sees on its port, in the sniffer's words."""
    placeholder: Placeholder = ""
    fqdn: str = ""
    """The name that HAProxy resolves to its address."""
    configured_weight: int | None = None
    """None where HAProxy does not show it."""
    backup: bool = False
    """HAProxy uses it only while all others are down; its weight is left alone."""

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0].strip("[]") or ("" if self.placeholder else self.fqdn)

    @property
    def port_offset(self) -> str:
        """The number that HAProxy adds to the client's port, as `+1000`; empty: none."""
        port = self.address.rpartition(":")[2]
        return port if port[:1] in ("+", "-") else ""

    @property
    def port(self) -> int | None:
        port = self.address.rpartition(":")[2]
        return int(port) if port.isdigit() and int(port) else None

    @property
    def on_unix_socket(self) -> bool:
        return bool(self.address) and not self.host


class FoundBackend(msgspec.Struct, frozen=True):
    """A backend, and whether it can be driven."""

    name: str
    balance: str
    servers: list[FoundServer]
    lacks: list[str]
    """Why it cannot be driven, in words with the remedy; empty where it can."""
    warnings: list[str]
    """What should be changed in it, in words."""


class Access(msgspec.Struct, frozen=True):
    """What the controller's user lacks to use the admin socket."""

    refused: str = ""
    """Why it may not, in words; empty: it may."""
    group: str = ""
    """The group that its service must have; empty: none."""
    remedy: str = ""
    """What to change of the socket itself; empty: nothing."""

    def lacks(self, *, is_given: bool = False) -> list[str]:
        """What is missing, in words with the remedies; `is_given`: its service has the group by now."""
        remedies = [self.remedy] if self.remedy else []
        if self.group and not is_given:
            remedies.append(
                f"run `systemctl edit slackwater-controller` and add `[Service]` and `SupplementaryGroups={self.group}`"
            )
        return [f"{self.refused}: {', then '.join(remedies)}"] if remedies else []


class Survey(msgspec.Struct, frozen=True):
    """A running HAProxy."""

    socket: str
    found_by: str
    """How the socket was found, in words."""
    version: str
    backends: list[FoundBackend]
    access: Access


def find_socket(named: str, configuration: SiteConfiguration, usual: Sequence[str] = USUAL_SOCKETS) -> tuple[str, str]:
    """The admin socket, and in words how it was found: named, in the configuration, or at a usual place.

    Raises SurveyError where there is none.
    """
    if named:
        return socket_named(named), "as given"
    if (socket_and_place := find_in(configuration)) is not None:
        return socket_and_place
    for path in usual:
        if _is_socket(path):
            return path, "at a usual place"
    unusable = not_usable_in(configuration)
    found = f"no admin socket of HAProxy was found{f' ({unusable})' if unusable else ''}"
    raise SurveyError(
        f"{found}; {add_socket(configuration)}, or name its socket with --socket. Looked at: {', '.join(usual)}"
    )


def survey(socket: str, found_by: str, configuration: SiteConfiguration, timeout_s: float) -> Survey:
    """Asks the HAProxy behind the socket, and changes nothing. Raises SurveyError when it does not answer."""
    haproxy = HAProxy(socket, "none", timeout_s)
    questions = ("show info", SHOW_SERVERS, "show servers state", "set server none/none")
    try:
        info, stats, state, tried = haproxy.ask(*questions)
        facts = facts_of(info, socket)
    except BalancerError as error:
        raise SurveyError(str(error)) from None
    if "Permission denied" in tried:
        raise SurveyError(
            f"{socket}: this socket has no admin level; add `level admin` to its `stats socket` line and reload HAProxy"
        )
    if one_of_many := of_several(facts):
        raise SurveyError(f"{socket}: {one_of_many}")
    backends = [
        _examined(name, balance, servers, socket, configuration, timeout_s)
        for name, balance, servers in backends_of(stats, state, configuration)
    ]
    return Survey(socket, found_by, facts.get("Version", "?"), backends, access_of(socket, configuration))


def backends_behind(
    sockets: Sequence[str], configuration: SiteConfiguration, timeout_s: float
) -> dict[str, FoundBackend]:
    """The backends, by name, behind the first of these sockets that answers, whatever its level. Whether they can be
    driven is not asked. Raises SurveyError where none answers."""
    errors = []
    for socket in sockets:
        try:
            stats, state = HAProxy(socket, "none", timeout_s).ask(SHOW_SERVERS, "show servers state")
        except BalancerError as error:
            errors.append(str(error))
            continue
        return {
            name: FoundBackend(name, balance, servers, [], [])
            for name, balance, servers in backends_of(stats, state, configuration)
        }
    raise SurveyError("; ".join(errors))


def backends_of(
    stats: str, state: str, configuration: SiteConfiguration
) -> Iterator[tuple[str, str, list[FoundServer]]]:
    """(name, algorithm, servers) of each backend with servers, in HAProxy's order."""
    by_backend: dict[str, tuple[str, list[FoundServer]]] = {}
    rows = _rows(stats)
    for row in rows:
        if is_backend(row):
            by_backend[row["pxname"]] = configured_name(row.get("algo") or ""), []
    states = _states(state)
    for row in rows:
        if not is_backend(row) and row["pxname"] in by_backend:
            shown = states.get((row["pxname"], row["svname"]), {})
            by_backend[row["pxname"]][1].append(_server(row, shown, configuration))
    for name, (balance, servers) in by_backend.items():
        if not name.startswith(INTERNAL) and servers:
            yield name, balance, _with_names(servers)


def _rows(stats: str) -> list[dict[str, str]]:
    """The lines of `show stat` that name their proxy and server."""
    try:
        rows = list(csv.DictReader(io.StringIO(stats.removeprefix("# ")), restval=""))
    except csv.Error:
        return []
    return [row for row in rows if row.get("pxname") and row.get("svname")]


def _states(state: str) -> dict[tuple[str, str], dict[str, str]]:
    """The lines of `show servers state`, by backend and server."""
    lines = state.splitlines()[1:]
    columns = lines[0][2:].split() if lines else []
    rows = [dict(zip(columns, line.split(), strict=False)) for line in lines[1:]]
    return {(row["be_name"], row["srv_name"]): row for row in rows if "be_name" in row and "srv_name" in row}


def _server(row: Mapping[str, str], shown: Mapping[str, str], configuration: SiteConfiguration) -> FoundServer:
    address = row.get("addr") or ""
    number = address.rpartition(":")[2]
    protocol = spoken(
        configuration.protocol(row["pxname"], row["svname"]),
        row.get("mode") or "",
        _number(number) or 0,
        uses_ssl={"0": False, "1": True}.get(shown.get("srv_use_ssl", "")),
    )
    admin = shown.get("srv_admin_state", "0")
    offset = configuration.offset(row["pxname"], row["svname"])
    offset = offset if number.removeprefix("-") == offset[1:] else ""  # else it is of a branch that is not taken
    return FoundServer(
        row["svname"],
        _in_plain_words(f"{address.removesuffix(number)}{offset}" if offset else address),
        _number(shown.get("srv_uweight", row.get("weight", ""))) or 0,
        protocol,
        placeholder(_number(admin) or 0, shown.get("srv_addr", ""), address),
        shown.get("srv_fqdn", "-").removeprefix("-"),
        _number(shown.get("srv_iweight", "")),
        row.get("bck") == "1",
    )


def _in_plain_words(address: str) -> str:
    """The address, in the form of IPv4 where HAProxy shows an IPv4 address as IPv6 (`[::ffff:192.0.2.1]:80`)."""
    host, colon, port = address.rpartition(":")
    with contextlib.suppress(ValueError):
        mapped = ipaddress.IPv6Address(host.strip("[]")).ipv4_mapped
        return f"{mapped}{colon}{port}" if mapped else address
    return address


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else None


def _with_names(servers: list[FoundServer]) -> list[FoundServer]:
    """The servers. A server without an address counts as a machine if no other has its DNS name.

    Several servers with the same name are empty slots.
    """
    counts = Counter(server.fqdn for server in servers)
    return [
        msgspec.structs.replace(server, placeholder="")
        if server.placeholder == "no_address" and server.fqdn and counts[server.fqdn] == 1
        else server
        for server in servers
    ]


def _examined(
    name: str,
    balance: str,
    servers: list[FoundServer],
    socket: str,
    configuration: SiteConfiguration,
    timeout_s: float,
) -> FoundBackend:
    where = f" ({configuration.backends[name]})" if name in configuration.backends else ""
    if not is_name(name):
        expected = f"at most {MAX_NAME} letters, digits and `_-:`, with single dots between"
        text = f"its name{where} is not safe; expected {expected}"
        return FoundBackend(name, balance, servers, [text], [])
    pool = HAProxyPool(name=name, backend=name, socket=socket)
    start = f"{socket}: backend `{name}`"
    try:
        warnings = check(pool, LbengineSettings(socket_timeout_s=timeout_s))
    except BalancerUnreachable as error:
        raise SurveyError(str(error)) from None
    except BalancerError as error:
        return FoundBackend(name, balance, servers, [str(error).replace(start, f"backend `{name}`{where}")], [])
    return FoundBackend(
        name, balance, servers, [], [text.replace(start, f"backend `{name}`{where}") for text in warnings]
    )


def access_of(
    socket: str, configuration: SiteConfiguration, user: str = SERVICE_USER, systemd: Path = SYSTEMD
) -> Access:
    """What the controller's user lacks to connect to the socket; nothing where there is no such user on this host."""
    try:
        service = pwd.getpwnam(user)
        status = Path(socket).stat()
    except (KeyError, OSError):
        return Access()
    unit_groups = groups_of_unit(systemd)
    groups = {
        service.pw_gid,
        *(group.gr_gid for group in grp.getgrall() if user in group.gr_mem or group.gr_name in unit_groups),
    }
    if status.st_mode & stat.S_IWOTH or (status.st_uid == service.pw_uid and status.st_mode & stat.S_IWUSR):
        return Access()
    refused = f"user {user} may not write to {socket}"
    if status.st_mode & stat.S_IWGRP and status.st_gid != 0:
        return Access() if status.st_gid in groups else Access(refused, _group_name(status.st_gid))
    line = next((line.place for line in configuration.sockets if line.path == socket), "its `stats socket` line")
    return Access(
        refused,
        "" if HAPROXY_GROUP in unit_groups else HAPROXY_GROUP,
        f"add `mode 660 group {HAPROXY_GROUP}` to {line} and restart HAProxy (a reload keeps the socket's owner)",
    )


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(Path(path).stat().st_mode)
    except OSError:
        return False
