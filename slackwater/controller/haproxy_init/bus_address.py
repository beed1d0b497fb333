"""The address at which web servers reach the bus, and a certificate for it where the person has none."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import re
import socket
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from slackwater.core.bus import authority
from slackwater.core.bus.authority import AuthorityFiles, Write
from slackwater.core.bus.node_settings import toml_text
from slackwater.core.config import (
    ADDRESS_PATTERN,
    BusSettings,
    ConfigError,
    ControllerSettings,
    host_and_port,
    is_loopback,
    parse,
)

ANY_PORT = 9
"""A port to which nothing is sent: the kernel only chooses a route."""
BUS_SECTION = re.compile(r"^\[bus\].*(?:\n(?!\[).*)*", re.MULTILINE)


@dataclass(frozen=True)
class BusAddress:
    """Where the web servers reach the bus. Empty: the bus stays as it is."""

    listen: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""

    @property
    def lines(self) -> list[str]:
        """The section `[bus]` of controller.toml."""
        values = {"listen": self.listen, "tls_cert": self.tls_cert, "tls_key": self.tls_key, "tls_ca": self.tls_ca}
        return ["[bus]", *(f"{key} = {toml_text(value)}" for key, value in values.items() if value)]

    def is_in(self, bus: BusSettings) -> bool:
        there = bus.listen, bus.tls_cert, bus.tls_key, bus.tls_ca
        wanted = self.listen, self.tls_cert, self.tls_key, self.tls_ca
        return all(not new or new == old for new, old in zip(wanted, there, strict=True))


def with_certificate(address: BusAddress, folder: Path) -> BusAddress:
    """The address, with the files of a certificate of our own where other machines reach the bus and none is named.

    Raises ConfigError where no certificate can be made for the address.
    """
    named = address.tls_cert or address.tls_key or address.tls_ca
    if named or not re.search(ADDRESS_PATTERN, address.listen) or is_loopback(address.listen):
        return address
    files = AuthorityFiles(folder.absolute())
    authority.name_of(host_and_port(address.listen)[0])  # refuses before anything is written
    return replace(address, tls_cert=str(files.certificate), tls_key=str(files.key), tls_ca=str(files.authority))


def with_bus(text: str, address: BusAddress, path: Path) -> str:
    """The text of controller.toml with this section `[bus]`, at its end.

    Raises ConfigError where it has a section that says otherwise, and for an address that is not accepted.
    """
    if address.is_in(parse(text, str(path)).bus):
        return text
    if "bus" in tomllib.loads(text.removeprefix("\ufeff")):
        wanted = "; ".join(address.lines[1:])
        raise ConfigError(f"{path}: its section [bus] says otherwise: write this there, and run it again: {wanted}")
    added = "\n".join([text.rstrip("\n"), "", *address.lines, ""])
    parse(added, str(path))
    return added


def bus_section(text: str, path: Path) -> str:
    """The section `[bus]` of controller.toml, as it stands there, with its comments; empty where it has none.

    Raises ConfigError where its settings stand in another form, which would be lost.
    """
    found = BUS_SECTION.search(text)
    section = f"\n{found[0].rstrip()}\n" if found else ""
    with contextlib.suppress(tomllib.TOMLDecodeError):  # of a broken file the section is all that can be kept
        if tomllib.loads(text.removeprefix("\ufeff")).get("bus") != tomllib.loads(section).get("bus"):
            raise ConfigError(
                f"{path}: not all settings of its bus stand below a line `[bus]`, so they would be lost: write them"
                " there, or move the file away"
            )
    return section


def with_servers(text: str, pool: str, servers: Mapping[str, str], path: Path) -> str:
    """The text of controller.toml whose pool has these nodes for its servers (server -> node, the same name too).

    The pool's entries for other servers stay: these may come again. Raises ConfigError where its table has other nodes
    for these servers, or is not found.
    """
    before = next(settings for settings in parse(text, str(path)).pool if settings.name == pool)
    if all(before.servers.get(server, server) == node for server, node in servers.items()):
        return text
    wanted = before.servers | {
        server: node for server, node in servers.items() if node != before.servers.get(server, server)
    }
    pairs = ", ".join(f"{toml_text(server)} = {toml_text(node)}" for server, node in wanted.items())
    line = f"servers = {{ {pairs} }}"
    name = re.compile(rf"^name *= *{re.escape(toml_text(pool))}.*$", re.MULTILINE)
    added = name.sub(lambda match: f"{match[0]}\n{line}", text, count=1)
    if not before.servers:
        after = next(settings for settings in parse(added, str(path)).pool if settings.name == pool)
        if after.servers == wanted:
            return added
    raise ConfigError(f"{path}: servers of pool `{pool}` share machines: write this there, and run it again: {line}")


def make_certificate(settings: ControllerSettings, folder: Path, write: Write) -> list[str]:
    """Makes the files that `with_certificate` has named; returns in words which files were made."""
    files, host = AuthorityFiles(folder.absolute()), host_and_port(settings.bus.listen)[0]
    made, until = authority.ensure(files, host, write, datetime.datetime.now(datetime.UTC))
    certificate = f"{files.certificate}: a certificate of {files.authority} for {host}, valid until {until:%Y-%m-%d}"
    if not made:
        return [f"{certificate}, was there"]
    reports = [f"made {certificate}; `slackwater monitors` signs the next one in its last month"]
    if files.authority_key in made:
        reports.append(f"made {files.authority_key}, which signs it: keep it, and let nobody read it")
    return reports


def own_address(towards: Iterable[str]) -> str:
    """The address from which this machine reaches the first of these hosts that is an address and has a route.

    Empty where there is none.
    """
    for host in towards:
        try:
            version = ipaddress.ip_address(host).version
            with socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as way:
                way.connect((host, ANY_PORT))
                address: str = way.getsockname()[0]
        except (ValueError, OSError):  # a name, which may take long to look up; or no route
            continue
        return address if version == 4 else f"[{address}]"
    return ""
