"""The output of `ipvsadm` as values: pure functions (ipvsadm 1.31, numeric, `LC_ALL=C`).

`-Sn` has the services, forwarding methods, tunnels and weights, but not the thresholds: `-Ln --thresholds` has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

SERVICE_OPTIONS = {"-t": "TCP", "-u": "UDP", "--sctp-service": "SCTP", "-f": "FWM"}
"""A service's option in commands -> its word in lists."""
TAKE_A_VALUE = {*SERVICE_OPTIONS, "-s", "-p", "-M", "-b", "--pe", "-r", "-w", "-x", "-y", "--tun-type", "--tun-port"}


class TableError(ValueError):
    """Output is not ipvsadm's, or of an unknown version. The text has the line."""


@dataclass(frozen=True)
class Service:
    """A virtual service's name, parsed as ipvsadm does: `-t 10.0.0.1:80`, `-u [fd00::1]:53`, `-f 7`, `-f 7 -6`."""

    option: str
    address: str
    """`10.0.0.1:80`, `[fd00::1]:80`, or the mark."""
    ipv6_mark: bool = False

    @staticmethod
    def parse(text: str) -> Service:
        """The service with this name. Raises TableError."""
        words = text.split()
        marked = words[2:] == ["-6"] and words[0] == "-f"
        if len(words) != 2 + marked or words[0] not in SERVICE_OPTIONS:
            raise TableError(
                f"{text!r} is no virtual service; expected it as for ipvsadm: `-t ADDRESS:PORT`, `-u ADDRESS:PORT`,"
                " `--sctp-service ADDRESS:PORT`, `-f MARK` or `-f MARK -6`"
            )
        return Service(words[0], words[1], marked)

    @property
    def words(self) -> list[str]:
        """The service as arguments of ipvsadm."""
        return [self.option, self.address, *(["-6"] if self.ipv6_mark else [])]

    def __str__(self) -> str:
        return " ".join(self.words)


@dataclass(frozen=True)
class Destination:
    """A real server of a service in the output of `-Sn`."""

    address: str
    weight: int
    options: tuple[str, ...] = ()
    """All other words of its line in order: forwarding method, tunnel, options of later versions."""


@dataclass(frozen=True)
class Entry:
    """A service with its scheduler and its real servers."""

    service: Service
    scheduler: str
    flags: frozenset[str] = frozenset()
    """`sh-port`, `mh-fallback`, ..."""
    persistent_s: int | None = None
    destinations: tuple[Destination, ...] = ()


@dataclass(frozen=True)
class Thresholds:
    """A real server's thresholds and connections."""

    upper: int
    """Above this number of connections it gets no new ones; 0: none."""
    lower: int
    """Below this number it gets new ones again; 0: none."""
    active: int
    """Established connections."""
    inactive: int


@dataclass(frozen=True)
class _Line:
    values: dict[str, str] = field(default_factory=dict)
    switches: list[str] = field(default_factory=list)
    rest: list[str] = field(default_factory=list)
    """Words other than the service, `-r`, `-w`, `-x`, `-y` and their values."""

    def service(self, text: str) -> Service:
        for option in SERVICE_OPTIONS:
            if option in self.values:
                return Service(option, self.values[option], "-6" in self.switches)
        raise TableError(f"expected a service in {text!r}")


def parse_save(text: str) -> list[Entry]:
    """The output of `ipvsadm -Sn`. Raises TableError."""
    entries: dict[Service, tuple[_Line, list[Destination]]] = {}
    for line in text.splitlines():
        words = line.split()
        if not words:
            continue
        if words[0] not in ("-A", "-a"):
            raise TableError(f"expected ipvsadm's `-A` or `-a` line, got {line[:120]!r}")
        parsed = _words(words[1:], line)
        service = parsed.service(line)
        if words[0] == "-A":
            entries[service] = (parsed, [])
            continue
        if service not in entries or "-r" not in parsed.values:
            raise TableError(f"expected a real server of a service listed before, got {line[:120]!r}")
        weight = _number(parsed.values.get("-w", "1"), line)
        entries[service][1].append(Destination(parsed.values["-r"], weight, tuple(parsed.rest)))
    return [
        Entry(
            service,
            line.values.get("-s", "wlc"),
            frozenset(filter(None, line.values.get("-b", "").split(","))),
            _number(line.values["-p"], str(service)) if "-p" in line.values else None,
            tuple(destinations),
        )
        for service, (line, destinations) in entries.items()
    ]


def _words(words: Sequence[str], text: str) -> _Line:
    line = _Line()
    left = iter(words)
    for word in left:
        if word in TAKE_A_VALUE:
            value = next(left, None)
            if value is None:
                raise TableError(f"expected a value after {word} in {text[:120]!r}")
            line.values[word] = value
            if word not in SERVICE_OPTIONS and word not in ("-r", "-w", "-x", "-y"):
                line.rest.extend((word, value))
        else:
            line.switches.append(word)
            if word != "-6":
                line.rest.append(word)
    return line


def _number(text: str, line: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise TableError(f"expected a number, got {text!r} in {line[:120]!r}") from None


def _rows(text: str, service: Service, numbers: int) -> Iterator[tuple[str, list[str]]]:
    """(address, last `numbers` words) of each row of `service` in a list (`-Ln ...`): its own row, then its servers."""
    wanted = [SERVICE_OPTIONS[service.option], service.address]
    if text.strip() and "\n  -> RemoteAddress:Port" not in text:
        raise TableError(f"expected a list of `ipvsadm -Ln`, got {text[:120]!r}")
    in_service = False
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["->"]:
            if in_service and len(words) < 2 + numbers:
                raise TableError(f"expected {numbers} numbers in {line[:120]!r}")
        else:
            in_service = words[:2] == wanted and (words[2:3] == ["IPv6"]) == service.ipv6_mark
        if in_service:
            yield words[1], words[-numbers:]


def _servers(text: str, service: Service, numbers: int) -> dict[str, list[int]]:
    rows = list(_rows(text, service, numbers))[1:]
    return {address: [_number(word, address) for word in words] for address, words in rows}


def parse_thresholds(text: str, service: Service) -> dict[str, Thresholds]:
    """Thresholds and connections by real server, from `ipvsadm -Ln --thresholds`. Raises TableError."""
    return {address: Thresholds(*numbers) for address, numbers in _servers(text, service, 4).items()}


def parse_connections(text: str, service: Service) -> dict[str, int]:
    """Connections scheduled so far by real server, from `ipvsadm -Ln --stats --exact`. Raises TableError.

    The kernel brings these counters up to date every 2 s. They survive when a real server is removed and added again
    while it still has connections; the service's own (`parse_service_connections`) doesn't.
    """
    return {address: numbers[0] for address, numbers in _servers(text, service, 5).items()}


def parse_service_connections(text: str, service: Service) -> int:
    """Connections that the service has scheduled since it was made, from `ipvsadm -Ln --stats --exact`.

    0 when there is no such service. Raises TableError.
    """
    return next((_number(words[0], address) for address, words in _rows(text, service, 5)), 0)


def edit_line(service: Service, destination: Destination, thresholds: Thresholds, weight: int) -> str:
    """A line for `ipvsadm -R` that changes the weight and repeats all other options, which `-e` would reset."""
    limits = ["-x", str(thresholds.upper), "-y", str(thresholds.lower)]
    words = ["-e", *service.words, "-r", destination.address, *destination.options, "-w", str(weight), *limits]
    return " ".join(words)
