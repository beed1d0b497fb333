"""The part of keepalived's configuration that matters for weights: its virtual servers, their real servers, and the
files that steer their weights. Pure (keepalived.conf(5), sections "Track files" and "Virtual servers").

`~LST` is not followed, and is an error. So is a value that is not understood: it is never taken for the default.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from slackwater.lbengine.backends.ipvs.table import Service
from slackwater.lbengine.backends.keepalived.lines import (
    ConfigurationError,
    Line,
    Texts,
    gather,
    lines_of,
    without_comment,
)

__all__ = ["ConfigurationError", "Texts", "gather", "virtual_servers"]
DEEPEST_BLOCK = 50
PROTOCOLS = {"TCP": "-t", "UDP": "-u", "SCTP": "--sctp-service"}
PROTOCOL_IF_NONE_IS_SAID = "UDP"
REAL_WEIGHTS = range(2**31)
USUAL_WEIGHTS = range(1, 2**31)
"""Bounds of a virtual server's weight, which its real servers have that name none."""
QUORUMS = range(1, 2**32)
FILE_WEIGHTS = range(-254, 255)
ANY_INTEGER = range(-(2**31) + 1, 2**31)
ALWAYS_KNOWN = re.compile(r"[A-Za-z]\w*", re.ASCII)
"""The form of keepalived's keywords. Anything else in a block that matters was not followed."""


@dataclass
class Statement:
    """A keyword with its words, and the statements in the braces behind it."""

    words: list[str]
    where: str = ""
    """FILE:LINE."""
    inside: list[Statement] = field(default_factory=list)

    def all(self, *keywords: str) -> Iterator[Statement]:
        return (statement for statement in self.inside if statement.words[0] in keywords)

    def value(self, *keywords: str) -> str | None:
        """The first word after the last statement of these keywords, as keepalived takes it."""
        values = [statement.words[1] for statement in self.all(*keywords) if len(statement.words) > 1]
        return values[-1] if values else None


@dataclass(frozen=True)
class TrackFile:
    """A file whose number, times `weight`, is added to a real server's weight."""

    path: str
    weight: int = 1
    reverse: bool = False


@dataclass(frozen=True)
class RealServer:
    """A real server of a virtual server."""

    address: str
    """The address in ipvsadm's form."""
    weight: int
    """The configured weight, which it has while its file holds 0 or is not there."""
    files: tuple[tuple[str, TrackFile | None], ...]
    """Name and file of each track_file in its FILE_CHECKs; None: there is no file of that name."""
    dynamic_scripts: bool = False
    """A MISC_CHECK with `misc_dynamic` sets weights too."""


@dataclass(frozen=True)
class VirtualServer:
    """A virtual server."""

    services: tuple[Service, ...]
    """Several for a group."""
    servers: tuple[RealServer, ...]
    quorum: int = 1
    """The service counts as down while the sum of the live servers' weights is below this."""


def statements(lines: Iterable[Line]) -> list[Statement]:
    """The lines as a tree. Raises ConfigurationError for braces and quotes that don't match."""
    top = Statement([""])
    open_blocks = [top]
    for where, line in lines:
        words: list[str] = []
        for word, is_brace in [*_words(line, where), ("\n", True)]:
            if not is_brace:
                words.append(word)
                continue
            if words:
                open_blocks[-1].inside.append(Statement(words, where))
            words = []
            if word == "{":
                if not open_blocks[-1].inside:
                    raise ConfigurationError(f"{where}: `{{` after nothing")
                if len(open_blocks) > DEEPEST_BLOCK:
                    raise ConfigurationError(f"{where}: more than {DEEPEST_BLOCK} blocks within each other")
                open_blocks.append(open_blocks[-1].inside[-1])
            elif word == "}":
                if len(open_blocks) == 1:
                    raise ConfigurationError(f"{where}: `}}` without `{{`")
                open_blocks.pop()
    if len(open_blocks) > 1:
        unclosed = open_blocks[-1]
        raise ConfigurationError(f"{unclosed.where}: `{{` of `{' '.join(unclosed.words)}` is never closed")
    return top.inside


def _words(line: str, where: str) -> Iterator[tuple[str, bool]]:
    """(word, whether it is a brace) of a line without its comment. Only double quotes keep words together."""
    rest = without_comment(line).strip()
    while rest:
        if rest[0] == '"':
            word, closed, rest = rest[1:].partition('"')
            if not closed:
                raise ConfigurationError(f"{where}: a quote is never closed")
            yield word, False
        else:
            match = re.match(r'[{}]|[^\s{}"]+', rest)
            assert match is not None
            rest = rest[match.end() :]
            yield match[0], match[0] in "{}"
        rest = rest.lstrip()


def virtual_servers(texts: dict[str, str]) -> list[VirtualServer]:
    """All virtual servers of a configuration (the texts of `gather`). Raises ConfigurationError."""
    blocks = statements(lines_of(texts))
    files = {}
    for top in blocks:
        if top.words[0] in ("track_file", "vrrp_track_file") and len(top.words) > 1 and (path := top.value("file")):
            weights = list(top.all("weight"))
            files[top.words[1]] = TrackFile(
                path, *_weight(weights[-1] if weights else None, TrackFile(path), FILE_WEIGHTS)
            )
    groups = {top.words[1]: top for top in blocks if top.words[0] == "virtual_server_group" and len(top.words) > 1}
    return [_virtual_server(top, files, groups) for top in blocks if top.words[0] == "virtual_server"]


def _virtual_server(block: Statement, files: dict[str, TrackFile], groups: dict[str, Statement]) -> VirtualServer:
    for statement in _below(block):
        is_undefined = bool(statement.inside) and statement.words[-1].endswith("$")  # `${NAME}`, taken for a block
        if is_undefined or not ALWAYS_KNOWN.fullmatch(statement.words[0]):
            raise ConfigurationError(f"{statement.where}: `{' '.join(statement.words)[:80]}` is not understood here")
    option = _protocol(block)
    ipv6_mark = block.value("ip_family") == "inet6"
    services: list[Service] = []
    if block.words[1:2] == ["group"]:
        group = groups.get(block.words[2]) if len(block.words) > 2 else None
        for member in group.inside if group else []:
            services += _members(member, option, ipv6_mark)
    elif (service := _service(block.words[1:], option, ipv6_mark)) is not None:
        services = [service]
    usual = _number(block, "weight", 1, USUAL_WEIGHTS)
    servers: dict[str, RealServer] = {}
    for real in block.all("real_server"):
        server = _real_server(real, files, usual)
        servers.setdefault(server.address, server)  # keepalived drops the later ones
    return VirtualServer(
        tuple(services),
        tuple(servers.values()),
        _number(block, "quorum", 1, QUORUMS),
    )


def _below(block: Statement) -> Iterator[Statement]:
    for inside in block.inside:
        yield inside
        yield from _below(inside)


def _protocol(block: Statement) -> str:
    """A virtual server's protocol, as ipvsadm's option. Raises ConfigurationError."""
    protocols = list(block.all("protocol"))
    name = "".join(protocols[-1].words[1:2]) if protocols else PROTOCOL_IF_NONE_IS_SAID
    if name.upper() not in PROTOCOLS:
        raise ConfigurationError(
            f"{protocols[-1].where}: expected {', '.join(PROTOCOLS)} in `{' '.join(protocols[-1].words)[:80]}`"
        )
    return PROTOCOLS[name.upper()]


def _members(member: Statement, option: str, ipv6_mark: bool) -> list[Service]:
    """The services in a group's line. There are several for a range, as in `10.0.0.2-5 80` or `fd00::a-c 80`."""
    first, dash, last = member.words[0].partition("-")
    first_service = _service([first, *member.words[1:]], option, ipv6_mark)
    if first_service is not None and not dash:
        return [first_service]
    with contextlib.suppress(ValueError):
        low = ipaddress.ip_address(first)
        base, size = (10, 256) if low.version == 4 else (16, 65536)
        number, end = int(low) % size, int(last, base)
        if first_service is not None and number < end < size:
            addresses = [_address([str(low + more), *member.words[1:]]) for more in range(end - number + 1)]
            return [Service(option, address) for address in addresses if address is not None]
    raise ConfigurationError(
        f"{member.where}: expected an address, a range as 10.0.0.2-5, or `fwmark NUMBER` in the group, got"
        f" `{' '.join(member.words)[:80]}`"
    )


def _service(words: Sequence[str], option: str, ipv6_mark: bool) -> Service | None:
    if words[:1] == ["fwmark"]:
        return Service("-f", words[1], ipv6_mark) if len(words) > 1 else None
    address = _address(words)
    return None if address is None else Service(option, address)


def _address(words: Sequence[str]) -> str | None:
    """`10.0.0.1 80` as `10.0.0.1:80`; None for words that are no address."""
    try:
        host = ipaddress.ip_address(words[0])
    except (ValueError, IndexError):
        return None
    port = words[1] if len(words) > 1 else "0"
    if not (port.isascii() and port.isdigit()):
        return None
    return f"[{host}]:{int(port)}" if host.version == 6 else f"{host}:{int(port)}"


def _real_server(real: Statement, files: dict[str, TrackFile], usual_weight: int) -> RealServer:
    address = _address(real.words[1:])
    if address is None:
        raise ConfigurationError(
            f"{real.where}: expected `real_server ADDRESS PORT`, got `{' '.join(real.words)[:80]}`"
        )
    tracked: list[tuple[str, TrackFile | None]] = []
    for checker in real.all("FILE_CHECK"):
        name = checker.value("track_file") or ""
        file = files.get(name)
        own = list(checker.all("weight"))
        tracked.append((name, file and TrackFile(file.path, *_weight(own[-1] if own else None, file))))
    scripts = any(inner.words[0] == "misc_dynamic" for check in real.all("MISC_CHECK") for inner in check.inside)
    return RealServer(address, _number(real, "weight", usual_weight, REAL_WEIGHTS), tuple(tracked), scripts)


def _weight(statement: Statement | None, default: TrackFile, bounds: range = ANY_INTEGER) -> tuple[int, bool]:
    """The values of `weight N [reverse]`. A FILE_CHECK's weight of 0 means the file's own weight (keepalived 2.2)."""
    if statement is None:
        return default.weight, default.reverse
    return _number_of(statement, bounds) or default.weight, statement.words[2:3] == ["reverse"]


def _number(block: Statement, keyword: str, default: int, bounds: range) -> int:
    """The number in the last statement of a keyword, as keepalived takes it; without one the default.

    Raises ConfigurationError for a word that is no number, and for a number beyond keepalived's bounds. keepalived
    takes its default for such a number.
    """
    numbers = list(block.all(keyword))
    return _number_of(numbers[-1], bounds) if numbers else default


def _number_of(statement: Statement, bounds: range) -> int:
    text = statement.words[1] if len(statement.words) > 1 else ""
    position = f"in `{' '.join(statement.words)[:80]}`"
    if not re.fullmatch(r"[+-]?[0-9]{1,10}" if bounds.start < 0 else r"[+]?[0-9]{1,10}", text):
        raise ConfigurationError(f"{statement.where}: expected a number {position}")
    if int(text) not in bounds:
        raise ConfigurationError(f"{statement.where}: expected {bounds.start} to {bounds.stop - 1} {position}")
    return int(text)
