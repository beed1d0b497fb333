"""keepalived's configuration as far as weights go: which virtual servers it has, their real servers, the files that
steer their weights. Pure (keepalived.conf(5), sections "Track files" and "Virtual servers").

Not followed: `$PARAMETERS`, `@conditions`, `~SEQ` and address ranges of groups. A service that only these make is not
found, which is an error.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from lbengine.backends.ipvs.table import Service

DEEPEST_INCLUDE = 20
DEEPEST_BLOCK = 50
PROTOCOLS = {"TCP": "-t", "UDP": "-u", "SCTP": "--sctp-service"}


class ConfigurationError(ValueError):
    """A configuration that cannot be followed; the text names the place."""


@dataclass
class Statement:
    """A keyword with its words, and what stands in the braces behind it."""

    words: list[str]
    inside: list[Statement] = field(default_factory=list)

    def all(self, *keywords: str) -> Iterator[Statement]:
        return (one for one in self.inside if one.words[0] in keywords)

    def value(self, *keywords: str) -> str | None:
        """The first word after the last statement of these keywords, as keepalived takes it."""
        found = [one.words[1] for one in self.all(*keywords) if len(one.words) > 1]
        return found[-1] if found else None


@dataclass(frozen=True)
class TrackFile:
    """A file whose number, times `weight`, is added to a real server's weight."""

    path: str
    weight: int = 1
    reverse: bool = False


@dataclass(frozen=True)
class RealServer:
    """One real server of a virtual server."""

    address: str
    """As ipvsadm has it."""
    weight: int
    """As configured: the weight that it has while its file holds 0 or is not there."""
    files: tuple[tuple[str, TrackFile | None], ...]
    """Name of each track_file that its FILE_CHECKs name, and that file; None: there is none of that name."""
    dynamic_scripts: bool = False
    """A MISC_CHECK with `misc_dynamic` sets weights too."""


@dataclass(frozen=True)
class VirtualServer:
    """One virtual server."""

    services: tuple[Service, ...]
    """More than one for a group."""
    servers: tuple[RealServer, ...]
    quorum: int = 1
    """The sum of the live servers' weights below which the service counts as down."""


def statements(text: str, where: str) -> list[Statement]:
    """The text as a tree. Raises ConfigurationError for braces and quotes that don't match."""
    top = Statement([""])
    open_ones = [top]
    for number, line in enumerate(text.splitlines(), start=1):
        words: list[str] = []
        for word in [*_words(line, f"{where}:{number}"), "\n"]:
            if word in ("{", "}", "\n"):
                if words:
                    open_ones[-1].inside.append(Statement(words))
                words = []
            if word == "{":
                if not open_ones[-1].inside:
                    raise ConfigurationError(f"{where}:{number}: `{{` after nothing")
                if len(open_ones) > DEEPEST_BLOCK:
                    raise ConfigurationError(f"{where}:{number}: more than {DEEPEST_BLOCK} blocks within each other")
                open_ones.append(open_ones[-1].inside[-1])
            elif word == "}":
                if len(open_ones) == 1:
                    raise ConfigurationError(f"{where}:{number}: `}}` without `{{`")
                open_ones.pop()
            elif word != "\n":
                words.append(word)
    if len(open_ones) > 1:
        raise ConfigurationError(f"{where}: `{{` of `{' '.join(open_ones[-1].words)}` is never closed")
    return top.inside


def _words(line: str, where: str) -> Iterator[str]:
    """The words of a line without its comment; quoted ones come without their quotes."""
    rest = line.strip()
    while rest and rest[0] not in "#!":
        if rest[0] in "\"'":
            word, closed, rest = rest[1:].partition(rest[0])
            if not closed:
                raise ConfigurationError(f"{where}: a quote is never closed")
        else:
            found = re.match(r"[{}]|[^\s{}\"'#!]+", rest)
            assert found is not None
            word, rest = found[0], rest[found.end() :]
        yield word
        rest = rest.lstrip()


def gather(path: str, read: Callable[[str], str | None], matching: Callable[[str], list[str]]) -> dict[str, str]:
    """The texts of a configuration and of all that it includes, by path. `matching` lists the files of a pattern.

    Raises ConfigurationError.
    """
    texts: dict[str, str] = {}

    def follow(one: str, depth: int) -> None:
        text = read(one)
        if text is None:
            raise ConfigurationError(f"{one}: cannot be read")
        if depth > DEEPEST_INCLUDE:
            raise ConfigurationError(f"{one}: included too deeply")
        texts[one] = text
        for statement in _included(statements(text, one)):
            for pattern in statement.words[1:2]:
                for other in matching(str(PurePosixPath(one).parent / pattern)):
                    if other not in texts:
                        follow(other, depth + 1)

    follow(path, 0)
    return texts


def _included(found: Sequence[Statement]) -> Iterator[Statement]:
    for statement in found:
        if statement.words[0].startswith("include"):
            yield statement
        yield from _included(statement.inside)


def virtual_servers(texts: dict[str, str]) -> list[VirtualServer]:
    """All virtual servers of a configuration (the texts of `gather`). Raises ConfigurationError."""
    found = [statement for path, text in texts.items() for statement in statements(text, path)]
    files = {}
    for one in found:
        if one.words[0] in ("track_file", "vrrp_track_file") and len(one.words) > 1 and (path := one.value("file")):
            weights = list(one.all("weight"))
            files[one.words[1]] = TrackFile(path, *_weight(weights[-1] if weights else None, TrackFile(path)))
    groups = {one.words[1]: one for one in found if one.words[0] == "virtual_server_group" and len(one.words) > 1}
    return [_virtual_server(one, files, groups) for one in found if one.words[0] == "virtual_server"]


def _virtual_server(one: Statement, files: dict[str, TrackFile], groups: dict[str, Statement]) -> VirtualServer:
    option = PROTOCOLS.get((one.value("protocol") or "TCP").upper(), "-t")
    ipv6_mark = one.value("ip_family") == "inet6"
    members = [one.words[1:]]
    if one.words[1:2] == ["group"]:
        members = (
            [member.words for member in groups[one.words[2]].inside]
            if one.words[2:3] and one.words[2] in groups
            else []
        )
    services = [service for words in members if (service := _service(words, option, ipv6_mark)) is not None]
    return VirtualServer(
        tuple(services),
        tuple(server for real in one.all("real_server") if (server := _real_server(real, files)) is not None),
        _number(one.value("quorum"), 1),
    )


def _service(words: Sequence[str], option: str, ipv6_mark: bool) -> Service | None:
    if words[:1] == ["fwmark"]:
        return Service("-f", words[1], ipv6_mark) if len(words) > 1 else None
    address = _address(words)
    return None if address is None else Service(option, address)


def _address(words: Sequence[str]) -> str | None:
    """`10.0.0.1 80` as `10.0.0.1:80`; None for what is no address."""
    try:
        host = ipaddress.ip_address(words[0])
    except (ValueError, IndexError):
        return None
    port = words[1] if len(words) > 1 and words[1].isdigit() else "0"
    return f"[{host}]:{port}" if host.version == 6 else f"{host}:{port}"


def _real_server(real: Statement, files: dict[str, TrackFile]) -> RealServer | None:
    address = _address(real.words[1:])
    if address is None:
        return None
    tracked: list[tuple[str, TrackFile | None]] = []
    for checker in real.all("FILE_CHECK"):
        name = checker.value("track_file") or ""
        file = files.get(name)
        own = list(checker.all("weight"))
        tracked.append((name, file and TrackFile(file.path, *_weight(own[-1] if own else None, file))))
    scripts = any(one.words[0] == "misc_dynamic" for check in real.all("MISC_CHECK") for one in check.inside)
    return RealServer(address, _number(real.value("weight"), 1), tuple(tracked), scripts)


def _weight(statement: Statement | None, default: TrackFile) -> tuple[int, bool]:
    """A `weight N [reverse]`; a FILE_CHECK's of 0 means the file's own (keepalived 2.2)."""
    words = [] if statement is None else statement.words
    weight = _number(words[1] if len(words) > 1 else None, default.weight)
    return (weight or default.weight, words[2:3] == ["reverse"] if words else default.reverse)


def _number(text: str | None, default: int) -> int:
    try:
        return default if text is None else int(text)
    except ValueError:
        return default
