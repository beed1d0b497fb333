"""The part of a site's own haproxy.cfg, and of the other files that HAProxy runs with, that the socket does not show:
the places of its sockets and backends, and the protocols of its servers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slackwater.lbengine.backends.haproxy.configuration import (
    PROXIES,
    in_folder,
    is_known,
    lines_of,
    rows_of,
    sections,
    started_with,
    stats_sockets,
    text_of,
    unix_path,
)

SERVERS = {"server": 3, "server-template": 4}
"""Keyword -> the index of the first option of its line."""
TCP_ADDRESS = re.compile(r"(?:(?:ipv[46]|tcp[46]?|mptcp[46]?)@)?(\S*:\d+)")
MAPPED_PORT = re.compile(r":([+-][0-9]+)$", re.ASCII)
"""The end of a server's address whose port is added to the client's."""
MEMCACHED = 11211
OTHER_FAMILIES = ("abns@", "abnsz@", "fd@", "sockpair@", "rhttp@", "uxdg@", "udp@", "udp4@", "udp6@")


class SurveyError(Exception):
    """No HAProxy was found that could be driven. The text says where it was looked for, and what to do."""


@dataclass(frozen=True)
class StatsSocket:
    """A line `stats socket` of a haproxy.cfg."""

    path: str
    """In the form of a pool's `socket`: a path, or `tcp://HOST:PORT`. Other families stay in HAProxy's form."""
    level: str
    place: str
    """The line's place, FILE:LINE."""

    @property
    def is_tcp(self) -> bool:
        return self.path.startswith("tcp://")

    @property
    def is_local(self) -> bool:
        return self.path.startswith("/") and is_known(self.path)


@dataclass(frozen=True)
class SiteConfiguration:
    """The contents of the files as far as they matter here."""

    sockets: list[StatsSocket] = field(default_factory=list)
    backends: dict[str, str] = field(default_factory=dict)
    """Backend -> FILE:LINE of its first line. There are several, joined by `or`, where each is in a branch of a
    condition (`.if`)."""
    protocols: dict[str, dict[str, str]] = field(default_factory=dict)
    """Backend -> server, without the number of a `server-template` -> its `proto` if it has one, or `ssl`.

    That may be of a branch of a condition that is not taken, so what HAProxy itself shows comes first.
    """
    offsets: dict[str, dict[str, str]] = field(default_factory=dict)
    """Backend -> server, without that number -> the number that HAProxy adds to the client's port, as `+1000`."""
    place: str = ""
    """FILE:LINE of the section `global`; the file alone where it has none; empty: there is no file."""

    def offset(self, backend: str, server: str) -> str:
        """The number that is added to the client's port, as `+1000`; empty where the server has a port of its own."""
        return _of_server(self.offsets.get(backend, {}), server)

    def protocol(self, backend: str, server: str) -> str:
        """The server's `proto`, or `ssl`; empty where the files name none."""
        return _of_server(self.protocols.get(backend, {}), server)


def _of_server(by_server: Mapping[str, str], server: str) -> str:
    return by_server.get(server) or by_server.get(server.rstrip("0123456789"), "")


def read_configuration(path: Path) -> SiteConfiguration:
    """Reads the file, and all others that a running HAProxy was started with beside it.

    Raises SurveyError for a file that cannot be read, or is no configuration.
    """
    named = list(in_folder(path))
    started = started_with(str(named[0].resolve())) if named else []
    files = [Path(file) for file in started[0].files] if started else named
    lines: list[tuple[str, str]] = []
    for file in files:
        shown = path if file == path.resolve() else file
        try:
            text = text_of(file)
        except OSError as error:
            raise SurveyError(f"{shown}: cannot be read: {error.strerror}") from None
        lines += [(f"{shown}:{number}", line) for number, line in enumerate(lines_of(text), start=1)]
    rows = rows_of([line for _, line in lines], started[0].environ if started else {})
    if any(rows) and not sections(rows):
        raise SurveyError(f"{path}: has no section such as `global` or `backend`; expected HAProxy's configuration")
    return _configuration(rows, [place for place, _ in lines], path, started[0].folder if started else "")


def _configuration(
    rows: Sequence[Sequence[str]], places: Sequence[str], path: Path, folder: str = ""
) -> SiteConfiguration:
    """`folder`: HAProxy's working directory, where it runs."""
    globals_at = [places[section.start] for section in sections(rows) if section.kind == "global"]
    configuration = SiteConfiguration(place=(globals_at or [str(path)])[0])
    defaults: dict[str, list[str]] = {}
    last_defaults: list[str] = []
    for kind, name, start, end in sections(rows):
        parent = rows[start][-1] if rows[start][-2:-1] == ["from"] else ""
        inherited = list(defaults.get(parent, [] if kind == "defaults" else last_defaults))
        if kind in PROXIES:
            before = configuration.backends.get(name)
            configuration.backends[name] = f"{before} or {places[start]}" if before else places[start]
        for number in range(start + 1, end):
            row = rows[number]
            if kind == "global":
                for address, level in stats_sockets(row):
                    configuration.sockets.append(StatsSocket(_place(address, folder), level, places[number]))
            elif row[:1] == ["default-server"]:
                inherited += row[1:]
            elif kind in PROXIES and row and row[0] in SERVERS:
                first = SERVERS[row[0]]
                if offset := MAPPED_PORT.search("".join(row[first - 1 : first])):
                    configuration.offsets.setdefault(name, {})[row[1]] = offset[1]
                options = [*inherited, *row[first:]]
                if protocol := _protocol_of(options):
                    configuration.protocols.setdefault(name, {})[row[1]] = protocol
        if kind == "defaults":
            last_defaults = defaults[name] = inherited
    return configuration


def _protocol_of(options: Sequence[str]) -> str:
    """The protocol that a server's options name: `ssl`, or its `proto`. HAProxy 2.2 does not show `ssl` itself."""
    protocol, uses_ssl = "", False
    for key, value in zip(options, [*options[1:], ""], strict=False):
        protocol = value if key == "proto" else protocol
        uses_ssl = key == "ssl" or (uses_ssl and key != "no-ssl")
    return "ssl" if uses_ssl else protocol


def _place(address: str, folder: str) -> str:
    """The place of a socket, in the form of `StatsSocket.path`."""
    path = unix_path(address, folder)
    if path is not None:
        return path
    tcp = None if address.startswith(OTHER_FAMILIES) else TCP_ADDRESS.fullmatch(address)
    if not tcp:
        return address
    host, _, port = tcp[1].rpartition(":")
    # HAProxy takes an IPv6 address without brackets too.
    return f"tcp://[{host}]:{port}" if ":" in host and not host.startswith("[") else f"tcp://{host}:{port}"


def socket_named(name: str) -> str:
    """The absolute path of a socket that a person names, also in HAProxy's form (`unix@PATH`).

    Raises SurveyError where it cannot be used.
    """
    place = name if name.startswith("tcp://") else _place(name, "")
    if place.startswith("tcp://"):
        raise SurveyError(f"{name}: {_on_tcp(place, SiteConfiguration())}")
    if place.startswith(OTHER_FAMILIES):
        raise SurveyError(f"{name}: expected the path of a Unix socket, as in /run/haproxy/admin.sock")
    return str(Path(place).absolute())


def find_in(configuration: SiteConfiguration) -> tuple[str, str] | None:
    """The first admin socket of the configuration that can be used, and its place in words; None where there is none.

    Raises SurveyError where none of its sockets can be used.
    """
    sockets = configuration.sockets
    admin = [line for line in sockets if line.is_local and line.level == "admin"]
    # A line may be in a branch of a condition that is not taken.
    there = [line for line in admin if Path(line.path).is_socket()]
    for line in there or admin:
        return line.path, f"from {line.place}"
    for line in sockets:
        if line.is_local:
            raise SurveyError(
                f"{line.place}: `stats socket {line.path}` has level {line.level}; add `level admin` to this line and"
                " reload HAProxy"
            )
    for line in sockets:
        if not is_known(line.path):
            raise SurveyError(
                f"{line.place}: the address of this `stats socket` has a variable whose value only HAProxy knows; name"
                " the socket with --socket"
            )
    for line in sockets:
        if line.is_tcp:
            raise SurveyError(f"{line.place}: {_on_tcp(line.path, configuration)}")
    return None


def not_usable_in(configuration: SiteConfiguration) -> str:
    """The lines `stats socket` whose address is neither a path nor on TCP, in words; empty: there are none."""
    lines = [line for line in configuration.sockets if not (line.is_local or line.is_tcp) and is_known(line.path)]
    return "; ".join(f"{line.place}: `stats socket {line.path}` has no path, so it cannot be used" for line in lines)


def add_socket(configuration: SiteConfiguration) -> str:
    """How HAProxy gets an admin socket, in words."""
    where = f" ({configuration.place})" if configuration.place else " of its configuration"
    return (
        "add the line `stats socket /run/haproxy/admin.sock mode 660 level admin group haproxy` to the section `global`"
        f"{where} and restart HAProxy"
    )


def _on_tcp(place: str, configuration: SiteConfiguration) -> str:
    # One can't connect to an address that means all addresses.
    address = re.sub(r"^tcp://(\*|0\.0\.0\.0|\[?::\]?)?(?=:\d+$)", "tcp://127.0.0.1", place)
    return (
        "an admin socket on a TCP address has no login, so anyone who reaches it controls HAProxy;"
        f' {add_socket(configuration)}, or write the configuration by hand, with `socket = "{address}"` and'
        " `allow_tcp_socket = true`"
    )


def spoken(protocol: str, mode: str, port: int, *, uses_ssl: bool | None) -> str:
    """The protocol that a monitor sees on a server's port, in the sniffer's words.

    `unknown` is anything but HTTP/1 or memcached in the clear: a monitor can only time it. `protocol`: as in
    `SiteConfiguration`; `mode`: the backend's; `uses_ssl`: by HAProxy itself, None where it does not show it.
    """
    if uses_ssl or (uses_ssl is None and protocol == "ssl") or protocol not in ("", "h1", "ssl"):
        return "unknown"
    if mode not in ("", "http"):
        return "memcached" if port == MEMCACHED else "unknown"
    return "http1"
