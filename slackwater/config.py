"""The controller's settings: declared once here, read from one TOML file, refused with line and nearest known key.

The node's settings are declared in Rust, in `monitor/src/config.rs`.
"""

from __future__ import annotations

import difflib
import re
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from slackwater.messages import NAME_PATTERN, Mode, Name

KeyPath = tuple[str | int, ...]
"""Where a setting stands: `("pool", 0, "name")`."""


class ConfigError(Exception):
    """A configuration that cannot be used; the text says where, what is wrong and what was expected."""


class Settings(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Base of all sections: an unknown key is an error."""


Positive = Annotated[float, Meta(gt=0)]
_PORT = r"([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
ADDRESS_PATTERN = rf"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):{_PORT}$(?!\n)"
Address = Annotated[str, Meta(pattern=ADDRESS_PATTERN)]
OPTIONAL_ADDRESS_PATTERN = rf"^$(?!\n)|{ADDRESS_PATTERN}"
OptionalAddress = Annotated[str, Meta(pattern=OPTIONAL_ADDRESS_PATTERN)]
URL_PATTERN = r"^$(?!\n)|^(nats|tls)://[^\s/]+$(?!\n)"
TCP = "tcp://"
"""How an admin socket on a TCP address begins."""
SOCKET_PATTERN = rf"^(?!tcp:)[^\x00-\x1f]+$(?!\n)|^{TCP}{ADDRESS_PATTERN.removeprefix('^')}"
Socket = Annotated[str, Meta(min_length=1, pattern=SOCKET_PATTERN)]
FilePath = Annotated[str, Meta(min_length=1)]
_IN_WORDS = {
    NAME_PATTERN: "a name of letters, digits, `_`, `-`, `:` and `.` (no space, no `;`)",
    ADDRESS_PATTERN: "HOST:PORT",
    OPTIONAL_ADDRESS_PATTERN: 'HOST:PORT or ""',
    SOCKET_PATTERN: "a path, or tcp://HOST:PORT",
    URL_PATTERN: 'nats://HOST:PORT, tls://HOST:PORT or ""',
}
"""What the patterns ask for, for people."""


class BusSettings(Settings, frozen=True):
    """NATS. Without `url`, `slackwater serve` starts a private nats-server on `listen`."""

    url: Annotated[
        str, Meta(pattern=URL_PATTERN, description="URL of the site's own NATS, nats://HOST:PORT; empty: a private one")
    ] = ""
    listen: Annotated[Address, Meta(description="HOST:PORT on which the private nats-server listens")] = (
        "127.0.0.1:14222"
    )
    user: Annotated[str, Meta(description="user name at `url`, with password_file; empty: none")] = ""
    password_file: Annotated[str, Meta(description="file with the user's password, closed to others")] = ""
    tls_ca: Annotated[
        str, Meta(description="certificate authority (PEM) that a tls:// server must be of; empty: the machine's")
    ] = ""

    @property
    def address(self) -> str:
        """The URL that clients connect to."""
        return self.url or f"nats://{self.listen}"


class PoolSettings(Settings, frozen=True):
    """One backend of one balancer."""

    name: Annotated[Name, Meta(description="the pool's name, as the nodes give it in their Samples")]
    backend: Annotated[Name, Meta(description="HAProxy's name of the backend")]
    socket: Annotated[
        Socket,
        Meta(
            description="HAProxy's admin socket (`stats socket PATH level admin`): a path; tcp://HOST:PORT needs"
            " `allow_tcp_socket`"
        ),
    ]
    sockets: Annotated[
        list[Socket],
        Meta(description="admin sockets of further HAProxy processes or hosts with this backend; they get the same"),
    ] = []
    allow_tcp_socket: Annotated[
        bool,
        Meta(
            description="take admin sockets on TCP addresses, which have no login: whoever reaches one can do anything"
        ),
    ] = False
    mode: Annotated[Mode, Meta(description="observe: decide and record, touch nothing; act: set the weights")] = (
        "observe"
    )
    law: Annotated[
        Literal["optimal", "tail", "ice", "equalise"],
        Meta(
            description="optimal: least mean response time; tail: least p99; ice: keep predicted CPU below u_threshold;"
            " equalise: the same predicted utilisation everywhere"
        ),
    ] = "optimal"
    u_threshold: Annotated[float, Meta(gt=0, le=1, description="CPU share that the law keeps each server below")] = 0.8
    max_mitigated: Annotated[
        float, Meta(gt=0, le=1, description="at most this share of the pool is reduced at a time (blast radius)")
    ] = 0.5
    servers: Annotated[
        dict[Name, Name], Meta(description="server name in HAProxy -> node name, where the two differ")
    ] = {}

    def __post_init__(self) -> None:
        if len(set(self.all_sockets)) < len(self.all_sockets):
            raise ValueError(f"`socket` and `sockets` name one twice: {', '.join(self.all_sockets)}")
        if any(socket.startswith(TCP) for socket in self.all_sockets) and not self.allow_tcp_socket:
            raise ValueError(
                "an admin socket on a TCP address has no login, so whoever reaches it can do anything with HAProxy;"
                " keep it in a closed network and say `allow_tcp_socket = true`, or use a path"
            )

    @property
    def all_sockets(self) -> list[str]:
        """Of every HAProxy that this pool is behind, the first one first."""
        return [self.socket, *self.sockets]


class DetectorSettings(Settings, frozen=True):
    """How Samples become Verdicts."""

    model: Annotated[str, Meta(description="model file (.skops); empty: the shipped one; `thresholds`: none")] = ""
    tick_s: Annotated[Positive, Meta(description="how often new Samples are judged")] = 0.05
    stale_after_s: Annotated[Positive, Meta(description="a node without Samples for this long is `unknown`")] = 1.0
    calm_dwell_s: Annotated[Positive, Meta(description="how long a node must look calm for its episode to end")] = 2.0


class LbengineSettings(Settings, frozen=True):
    """How Verdicts become weights."""

    cycle_s: Annotated[Positive, Meta(description="how often the balancer is read and reconciled")] = 0.2
    lease_s: Annotated[Positive, Meta(description="without Verdicts for this long: back to the baseline weights")] = 3.0
    ramp_s: Annotated[Positive, Meta(description="time for a server to come back from 0 to its baseline weight")] = 3.0
    min_change: Annotated[
        float, Meta(ge=0, le=1, description="changes smaller than this share of the baseline are not sent")
    ] = 0.05
    socket_timeout_s: Annotated[Positive, Meta(description="how long HAProxy may take to answer")] = 1.0
    hooks: Annotated[
        list[FilePath],
        Meta(description="programs called with JSON on stdin when an episode begins or ends and after each change"),
    ] = []
    hook_timeout_s: Annotated[Positive, Meta(description="a hook that runs longer is killed")] = 5.0


class WebSettings(Settings, frozen=True):
    """The dashboard."""

    listen: Annotated[OptionalAddress, Meta(description="HOST:PORT; empty: no dashboard")] = "127.0.0.1:8099"


class JournalSettings(Settings, frozen=True):
    """What is kept, in `state_dir/journal.sqlite`."""

    keep_samples_h: Annotated[Positive, Meta(description="hours for which Samples and Verdicts are kept")] = 24.0


class ControllerSettings(Settings, frozen=True):
    """The controller's file."""

    pool: Annotated[list[PoolSettings], Meta(min_length=1, description="the pools, one [[pool]] table each")]
    state_dir: Annotated[FilePath, Meta(description="folder for baselines, the journal and locks")] = (
        "/var/lib/slackwater"
    )
    bus: BusSettings = BusSettings()
    detector: DetectorSettings = DetectorSettings()
    lbengine: LbengineSettings = LbengineSettings()
    web: WebSettings = WebSettings()
    journal: JournalSettings = JournalSettings()

    def the_pool(self, name: str | None) -> PoolSettings:
        """The pool of this name; without a name the only one. Raises ConfigError."""
        known = ", ".join(pool.name for pool in self.pool)
        if name is None:
            if len(self.pool) > 1:
                raise ConfigError(f"there are several pools, name one of them: {known}")
            return self.pool[0]
        for pool in self.pool:
            if pool.name == name:
                return pool
        raise ConfigError(f"no pool `{name}`; the configuration has: {known}")


def host_and_port(address: str) -> tuple[str, int]:
    """Splits an `Address` that was accepted in the settings; an IPv6 host loses its brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def load(path: str | Path) -> ControllerSettings:
    """Reads a controller's TOML file. Raises ConfigError: `FILE:LINE: what is wrong (what was expected)`."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not TOML: not UTF-8 at byte {error.start}") from None
    return parse(text, str(path))


def parse(text: str, where: str) -> ControllerSettings:
    """As `load`, from a text; `where` is the file's name in messages."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", str(error), re.DOTALL)
        what, line = found.groups() if found else (str(error), None)
        raise ConfigError(f"{where}:{line or max(1, len(text.splitlines()))}: not TOML: {what}") from None
    lines = key_lines(text)
    for key in ("node", "pool"):
        if isinstance(raw.get(key), str):
            at = _line_of((key,), lines)
            raise ConfigError(f"{where}:{at}: this is a node's file; check it with `slackwater-monitor config {where}`")
    for key_path, known in _unknown_keys(raw, ControllerSettings, ()):
        near = difflib.get_close_matches(str(key_path[-1]), known, n=1, cutoff=0.0)
        place = _dotted(key_path[:-1]) or "the file's top level"
        raise ConfigError(
            f"{where}:{_line_of(key_path, lines)}: unknown setting `{key_path[-1]}` in {place};"
            f" the nearest known one is `{near[0]}`"
        )
    try:
        settings = msgspec.convert(raw, ControllerSettings)
    except msgspec.ValidationError as error:
        raise ConfigError(_located(str(error), where, lines)) from None
    if bool(settings.bus.user) != bool(settings.bus.password_file):
        given = "user" if settings.bus.user else "password_file"
        raise ConfigError(
            f"{where}:{_line_of(('bus', given), lines)}: bus.user and bus.password_file must be set together"
        )
    taken: set[tuple[str, ...]] = set()
    for index, pool in enumerate(settings.pool):
        names = [("name", f"pool `{pool.name}`")]
        for key, text in (*names, *(("backend", f"backend `{pool.backend}` of {one}") for one in pool.all_sockets)):
            if (key, text) in taken:
                raise ConfigError(f"{where}:{_line_of(('pool', index, key), lines)}: {text} is there twice")
            taken.add((key, text))
    return settings


def key_lines(text: str) -> dict[KeyPath, int]:
    """Line number of each key and table of a TOML text, by its path; tables of an array carry their index.

    Keys inside an inline table have no line of their own here: take the line of the key that holds it.
    """
    lines: dict[KeyPath, int] = {}
    table: KeyPath = ()
    counts: dict[KeyPath, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if head := re.match(r"\s*(\[\[?)\s*([^\]]+?)\s*\]", line):
            table = ()
            for part in _key_parts(head.group(2)):
                table = (*table, part)
                if table in counts:
                    table = (*table, counts[table])
            if head.group(1) == "[[":
                if isinstance(table[-1], int):
                    table = table[:-1]
                counts[table] = counts.get(table, -1) + 1
                table = (*table, counts[table])
            lines.setdefault(table, number)
        elif pair := re.match(r"\s*([A-Za-z0-9_.\"'-]+?)\s*=", line):
            lines.setdefault((*table, *_key_parts(pair.group(1))), number)
    return lines


def _key_parts(key: str) -> list[str]:
    return [part.strip().strip("\"'") for part in key.split(".")]


def _line_of(path: KeyPath, lines: dict[KeyPath, int]) -> int:
    """The line of a key, or of the nearest table around it that has one."""
    return next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), 1)


def _dotted(path: KeyPath) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def _struct_of(kind: Any) -> type[Settings] | None:
    """The Settings struct that an annotation means, alone or as the items of a list."""
    if typing.get_origin(kind) in (Annotated, list):
        return _struct_of(typing.get_args(kind)[0])
    return kind if isinstance(kind, type) and issubclass(kind, Settings) else None


def _hints(struct: type[Settings]) -> dict[str, Any]:
    return typing.get_type_hints(struct, include_extras=True)


def _unknown_keys(raw: dict[str, Any], struct: type[Settings], at: KeyPath) -> Iterator[tuple[KeyPath, list[str]]]:
    """Path of each unknown key and the keys that are known there."""
    hints = _hints(struct)
    for key, value in raw.items():
        if key not in hints:
            yield (*at, key), list(hints)
        elif inner := _struct_of(hints[key]):
            items = [((*at, key), value)]
            if isinstance(value, list):
                items = [((*at, key, index), item) for index, item in enumerate(value)]
            for place, item in items:
                if isinstance(item, dict):
                    yield from _unknown_keys(item, inner, place)


def _located(message: str, where: str, lines: dict[KeyPath, int]) -> str:
    """Turns msgspec's `... - at `$.pool[0].mode`` into `FILE:LINE: pool[0].mode: ...`."""
    what, _, at = message.partition(" - at `")
    path: KeyPath = tuple(
        int(index) if index else key for index, key in re.findall(r"\[(\d+)\]|([A-Za-z_]+)", at.partition("$")[2])
    )
    if missing := re.fullmatch(r"Object missing required field `(.*)`", what):
        what = f"`{missing.group(1)}` is missing"
    for pattern, words in _IN_WORDS.items():
        what = what.replace(f"`str` matching regex {pattern!r}", words)
    if choices := _choices(path):
        what += f" (expected {choices})"
    name = f"{_dotted(path)}: " if path else ""
    return f"{where}:{_line_of(path, lines)}: {name}{what[0].lower()}{what[1:]}"


def _choices(path: KeyPath) -> str:
    """The allowed words of the setting at a path, if it is a choice."""
    struct: type[Settings] | None = ControllerSettings
    kind: Any = None
    for key in (part for part in path if isinstance(part, str)):
        if struct is None:
            return ""
        kind = _hints(struct)[key]
        struct = _struct_of(kind)
    inner = typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
    return " or ".join(f'"{word}"' for word in typing.get_args(inner)) if typing.get_origin(inner) is Literal else ""


def describe() -> list[tuple[str, str, str]]:
    """Every setting as (dotted name, default as TOML, help): the source of docs/settings.md."""
    rows: list[tuple[str, str, str]] = []

    def walk(struct: type[Settings], prefix: str) -> None:
        hints = _hints(struct)
        for field in msgspec.structs.fields(struct):
            inner = _struct_of(hints[field.name])
            name = f"{prefix}{field.name}"
            if inner is not None:
                walk(inner, f"{name}.")
                continue
            made = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
            default = "(required)" if field.required else _toml(made)
            rows.append((name, default, _help(hints[field.name])))

    walk(ControllerSettings, "")
    return rows


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _help(kind: Any) -> str:
    """The description, and the allowed words of a choice."""
    texts = [meta.description for meta in getattr(kind, "__metadata__", ()) if getattr(meta, "description", None)]
    inner = typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
    if typing.get_origin(inner) is Literal:
        texts.append("one of " + ", ".join(f'"{word}"' for word in typing.get_args(inner)))
    return "; ".join(texts)
