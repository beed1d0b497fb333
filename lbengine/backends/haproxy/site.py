"""What a site's own haproxy.cfg, with the other files that HAProxy runs with, says beyond what the socket shows: where
its sockets are, where its backends begin, and what its servers speak."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lbengine.backends.haproxy.configuration import (
    in_folder,
    is_known,
    lines_of,
    rows_of,
    sections,
    started_with,
    text_of,
)

SERVERS = {"server": 3, "server-template": 4}
"""Keyword -> the index of the first option of its line."""
TCP_ADDRESS = re.compile(r"(?:(?:ipv[46]|tcp[46]?|mptcp[46]?)@)?(\S*:\d+)")
MAPPED_PORT = re.compile(r":([+-][0-9]+)$", re.ASCII)
"""The end of a server's address whose port HAProxy adds to the client's."""
MEMCACHED = 11211
OTHER_FAMILIES = ("abns@", "abnsz@", "fd@", "sockpair@", "rhttp@", "uxst@", "uxdg@", "udp@", "udp4@", "udp6@")


class SurveyError(Exception):
    """No HAProxy was found that could be driven; the text says where was looked, and what to do."""


@dataclass(frozen=True)
class StatsSocket:
    """A line `stats socket` of a haproxy.cfg."""

    path: str
    """As a pool's `socket` has it: a path, or `tcp://HOST:PORT`; for other families as HAProxy has it."""
    level: str
    at: str
    """FILE:LINE."""

    @property
    def is_tcp(self) -> bool:
        return self.path.startswith("tcp://")

    @property
    def is_local(self) -> bool:
        return self.path.startswith("/") and is_known(self.path)


@dataclass(frozen=True)
class Configuration:
    """What the files say."""

    sockets: list[StatsSocket] = field(default_factory=list)
    backends: dict[str, str] = field(default_factory=dict)
    """Backend -> FILE:LINE of its first line; of several, where each is in a branch of a condition (`.if`)."""
    protocols: dict[str, dict[str, str]] = field(default_factory=dict)
    """Backend -> server, without the number of a `server-template` -> its `proto` if it has one, or `ssl`."""
    offsets: dict[str, dict[str, str]] = field(default_factory=dict)
    """Backend -> server, as before -> what HAProxy adds to the port that the client came in by: `+1000`."""

    def offset(self, backend: str, server: str) -> str:
        """What is added to the client's port; empty where the server has a port of its own."""
        return _of_server(self.offsets.get(backend, {}), server)

    def protocol(self, backend: str, server: str) -> str:
        """The server's `proto`; empty where none is said."""
        return _of_server(self.protocols.get(backend, {}), server)


def _of_server(said: Mapping[str, str], server: str) -> str:
    return said.get(server) or said.get(server.rstrip("0123456789"), "")


def read_configuration(path: Path) -> Configuration:
    """The file, with all others that a running HAProxy was started with beside it. Raises SurveyError for one that
    cannot be read."""
    started = started_with(str(path.resolve()))
    files = [Path(one) for one in started[0].files] if started else list(in_folder(path))
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
    return _configuration(rows, [at for at, _ in lines])


def _configuration(rows: Sequence[Sequence[str]], at: Sequence[str]) -> Configuration:
    found = Configuration()
    prefix = ""
    of_defaults: dict[str, list[str]] = {}
    last: list[str] = []
    for kind, name, start, end in sections(rows):
        parent = rows[start][-1] if rows[start][-2:-1] == ["from"] else ""
        usual = list(of_defaults.get(parent, [] if kind == "defaults" else last))
        if kind in ("backend", "listen"):
            before = found.backends.get(name)
            found.backends[name] = f"{before} or {at[start]}" if before else at[start]
        for number in range(start + 1, end):
            row = rows[number]
            if kind == "global" and row[:2] == ["unix-bind", "prefix"]:
                prefix = "".join(row[2:3])
            elif kind == "global" and row[:2] == ["stats", "socket"] and len(row) > 2:
                level = row[len(row) - row[::-1].index("level")] if "level" in row[3:-1] else "operator"
                found.sockets.append(StatsSocket(_place(row[2], prefix), level, at[number]))
            elif row[:1] == ["default-server"]:
                usual += row[1:]
            elif kind in ("backend", "listen") and row and row[0] in SERVERS:
                first = SERVERS[row[0]]
                if offset := MAPPED_PORT.search("".join(row[first - 1 : first])):
                    found.offsets.setdefault(name, {})[row[1]] = offset[1]
                options = [*usual, *row[first:]]
                if said := _said(options):
                    found.protocols.setdefault(name, {})[row[1]] = said
        if kind == "defaults":
            last = of_defaults[name] = usual
    return found


def _said(options: Sequence[str]) -> str:
    """What a server's options say that it speaks; HAProxy 2.2 does not show `ssl`."""
    protocol, uses_ssl = "", False
    for key, value in zip(options, [*options[1:], ""], strict=False):
        protocol = value if key == "proto" else protocol
        uses_ssl = key == "ssl" or (uses_ssl and key != "no-ssl")
    return "ssl" if uses_ssl else protocol


def _place(address: str, prefix: str) -> str:
    address = address.removeprefix("unix@")
    if address.startswith("/"):
        return prefix + address
    tcp = None if address.startswith(OTHER_FAMILIES) else TCP_ADDRESS.fullmatch(address)
    return f"tcp://{tcp[1]}" if tcp else address


def socket_named(name: str) -> str:
    """The path of a socket that a person names, in HAProxy's words too. Raises SurveyError where it cannot be used."""
    place = name if name.startswith("tcp://") else _place(name, "")
    if place.startswith("tcp://"):
        raise SurveyError(f"{name}: {_on_tcp(place)}")
    if place.startswith(OTHER_FAMILIES):
        raise SurveyError(f"{name}: expected the path of a Unix socket, as in /run/haproxy/admin.sock")
    return place


def find_in(configuration: Configuration) -> tuple[str, str] | None:
    """The first admin socket of the configuration that can be used, and where it stands; None where it names none.

    Raises SurveyError where it has only such that cannot be used.
    """
    sockets = configuration.sockets
    admin = [one for one in sockets if one.is_local and one.level == "admin"]
    there = [one for one in admin if Path(one.path).is_socket()]  # a line may be in a branch that is not taken
    for one in there or admin:
        return one.path, f"from {one.at}"
    for one in sockets:
        if one.is_local:
            raise SurveyError(
                f"{one.at}: `stats socket {one.path}` has level {one.level}; add `level admin` to this line and reload"
                " HAProxy"
            )
    for one in sockets:
        if not is_known(one.path):
            raise SurveyError(
                f"{one.at}: the address of this `stats socket` has a variable whose value only HAProxy knows; name the"
                " socket with --socket"
            )
    for one in sockets:
        if one.is_tcp:
            raise SurveyError(f"{one.at}: {_on_tcp(one.path)}")
    return None


def _on_tcp(place: str) -> str:
    to = re.sub(r"^tcp://(\*|0\.0\.0\.0|\[?::\]?)?(?=:\d+$)", "tcp://127.0.0.1", place)  # of all, one to connect to
    return (
        "an admin socket on a TCP address has no login, so anyone who reaches it controls HAProxy; add `stats socket"
        " /run/haproxy/admin.sock mode 660 level admin` to the section `global` and restart HAProxy, or write the"
        f' configuration by hand, with `socket = "{to}"` and `allow_tcp_socket = true`'
    )


def spoken(protocol: str, mode: str, port: int, *, uses_ssl: bool) -> str:
    """What a monitor sees on a server's port, in the sniffer's words: what is not HTTP/1 in the clear it can only time.

    `protocol`: the server's `proto`; `mode`: the backend's.
    """
    if uses_ssl or protocol not in ("", "h1"):
        return "unknown"
    if mode not in ("", "http"):
        return "memcached" if port == MEMCACHED else "unknown"
    return "http1"
