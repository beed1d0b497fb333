"""The controller's settings: declared once here, read from one TOML file, refused with line and nearest known key.

The node's settings are declared in Rust, in `monitor/src/config.rs`.
"""

from __future__ import annotations

import difflib
import logging
import re
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from slackwater import renamed
from slackwater.messages import NAME_PATTERN, Mode, Name
from slackwater.toml_lines import KeyPath, dotted, key_lines, line_of

log = logging.getLogger("slackwater.config")


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
WEB_URL_PATTERN = r"^$(?!\n)|^https?://[^\s?#]+$(?!\n)"
HEADER_PATTERN = r"^[A-Za-z0-9-]*$(?!\n)"
SERVICE_PATTERN = r"^(-t|-u|--sctp-service) (\[[0-9A-Fa-f:.]+\]|[0-9.]+):[0-9]{1,5}$(?!\n)|^-f [1-9][0-9]*( -6)?$(?!\n)"
Service = Annotated[str, Meta(pattern=SERVICE_PATTERN)]
_IN_WORDS = {
    NAME_PATTERN: "a name of letters, digits, `_`, `-`, `:` and `.` (no space, no `;`)",
    ADDRESS_PATTERN: "HOST:PORT",
    OPTIONAL_ADDRESS_PATTERN: 'HOST:PORT or ""',
    SOCKET_PATTERN: "a path, or tcp://HOST:PORT",
    SERVICE_PATTERN: "a service as for ipvsadm: `-t IP:PORT`, `-u IP:PORT`, `--sctp-service IP:PORT`, `-f MARK [-6]`",
    HEADER_PATTERN: "the name of an HTTP header",
    WEB_URL_PATTERN: 'http://HOST/PATH, https://HOST/PATH or ""',
    URL_PATTERN: 'nats://HOST:PORT, tls://HOST:PORT or ""',
}
"""What the patterns ask for, for people."""
Law = Literal["optimal", "tail", "ice", "equalise"]
BALANCERS = {"haproxy": "HAProxy", "lvs": "IPVS", "keepalived": "keepalived"}
"""How the balancers are called in texts."""


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
    balancer: Annotated[
        Literal["haproxy", "lvs", "keepalived"],
        Meta(
            description="what balances: haproxy (needs `backend` and `socket`), lvs (IPVS set up with ipvsadm; needs"
            " `service`) or keepalived (which owns the IPVS table; needs `service`)"
        ),
    ] = "haproxy"
    backend: Annotated[Name, Meta(description="HAProxy's name of the backend; required with HAProxy")] = ""
    socket: Annotated[
        Socket,
        Meta(
            description="HAProxy's admin socket (`stats socket PATH level admin`), required with HAProxy: a path;"
            " tcp://HOST:PORT needs `allow_tcp_socket`"
        ),
    ] = ""
    service: Annotated[
        Service,
        Meta(
            description="virtual service of IPVS as for ipvsadm, required with lvs and keepalived: `-t 10.0.0.1:80`,"
            " `-u [fd00::1]:53`, `-f 7`, `-f 7 -6`"
        ),
    ] = ""
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
    weight_delivery: Annotated[
        Literal["socket", "agent-check"],
        Meta(
            description="how HAProxy gets its weights: by the admin socket, or by agent-check from the nodes' monitors"
            " (`agent.listen` there), so that the socket is only read and `level operator` is enough"
        ),
    ] = "socket"
    mode: Annotated[Mode, Meta(description="observe: decide and record, touch nothing; act: set the weights")] = (
        "observe"
    )
    law: Annotated[
        Law,
        Meta(
            description="optimal: least mean response time; tail: least p99; ice: keep predicted CPU below u_threshold;"
            " equalise: the same predicted utilisation everywhere"
        ),
    ] = "optimal"
    u_threshold: Annotated[float, Meta(gt=0, le=1, description="CPU share that the law keeps each server below")] = 0.8
    max_mitigated: Annotated[
        float, Meta(gt=0, le=1, description="at most this share of the pool is reduced at a time (blast radius)")
    ] = 0.5
    target_p95_ms: Annotated[
        float, Meta(ge=0, description="the p95 of response time that users shall have, for the dashboard; 0: none")
    ] = 0.0
    target_p99_ms: Annotated[float, Meta(ge=0, description="the same for p99; 0: none")] = 0.0
    servers: Annotated[
        dict[Name, Name],
        Meta(
            description="server name in the balancer -> node name, where the two differ; with IPVS a server's name is"
            " its address (`10.0.0.11:80`)"
        ),
    ] = {}

    def __post_init__(self) -> None:
        if self.balancer == "haproxy":
            missing, foreign = [key for key in ("backend", "socket") if not getattr(self, key)], ["service"]
        else:
            missing = [] if self.service else ["service"]
            foreign = ["backend", "socket", "sockets", "allow_tcp_socket"] + ["weight_delivery"] * (
                self.weight_delivery != "socket"
            )
        if missing:
            raise ValueError(f'`{missing[0]}` is missing, which `balancer = "{self.balancer}"` needs')
        if given := [key for key in foreign if getattr(self, key)]:
            others = '"lvs" or "keepalived"' if self.balancer == "haproxy" else '"haproxy"'
            raise ValueError(
                f'`{given[0]}` does not go with `balancer = "{self.balancer}"`, only with {others}; remove one of them'
            )
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
        return [self.socket, *self.sockets] if self.socket else []

    @property
    def balancer_name(self) -> str:
        """The balancer as it is called in texts."""
        return BALANCERS[self.balancer]

    @property
    def place(self) -> str:
        """What is driven, in words."""
        return place_in_words(self.balancer, self.service, self.backend, ", ".join(self.all_sockets))


def place_in_words(balancer: str, service: str, backend: str, sockets: str) -> str:
    """What is driven: IPVS's service, or a backend behind HAProxy's sockets."""
    if service:
        return f"{BALANCERS.get(balancer, balancer)}'s service `{service}`"
    return f"backend `{backend}` behind {sockets}"


class DetectorSettings(Settings, frozen=True):
    """How Samples become Verdicts."""

    model: Annotated[str, Meta(description="model file (.skops); empty: the shipped one; `thresholds`: none")] = ""
    tick_s: Annotated[Positive, Meta(description="how often new Samples are judged")] = 0.05
    stale_after_s: Annotated[Positive, Meta(description="a node without Samples for this long is `unknown`")] = 1.0
    calm_dwell_s: Annotated[Positive, Meta(description="how long a node must look calm for its episode to end")] = 1.2


class LbengineSettings(Settings, frozen=True):
    """How Verdicts become weights."""

    cycle_s: Annotated[Positive, Meta(description="how often the balancer is read and reconciled")] = 0.2
    lease_s: Annotated[Positive, Meta(description="without Verdicts for this long: back to the baseline weights")] = 3.0
    ramp_s: Annotated[Positive, Meta(description="time for a server to come back from 0 to its baseline weight")] = 1.5
    min_change: Annotated[
        float, Meta(ge=0, le=1, description="changes smaller than this share of the baseline are not sent")
    ] = 0.05
    max_falls_per_min: Annotated[
        int,
        Meta(
            ge=1,
            description="so often a minute Verdicts may turn a server's weight downwards; beyond that the lower weight"
            " is held until the minute allows",
        ),
    ] = 6
    socket_timeout_s: Annotated[Positive, Meta(description="how long the balancer may take to answer")] = 1.0
    hooks: Annotated[
        list[FilePath],
        Meta(description="programs called with JSON on stdin when an episode begins or ends and after each change"),
    ] = []
    hook_timeout_s: Annotated[Positive, Meta(description="a hook that runs longer is killed")] = 5.0


class RetuneSettings(Settings, frozen=True):
    """The second stage: in episodes that last, the web servers themselves are retuned through their wsengines."""

    mode: Annotated[
        Literal["off", "observe", "act"],
        Meta(
            description="off: no second stage; observe: record what it would do; act: give Orders to the nodes of pools"
            " that act too"
        ),
    ] = "off"
    order_key: Annotated[
        str, Meta(description="the private key (Ed25519, PEM, mode 0600) that signs Orders; required to act")
    ] = ""
    policy: Annotated[
        Literal["knowledge", "search"],
        Meta(description="knowledge: values by the knowledge base; search: by trying, and measuring response times"),
    ] = "knowledge"
    knowledge: Annotated[
        str, Meta(description="the knowledge base: a TOML file, severity -> factor or value for each knob; empty: ours")
    ] = ""
    long_after_s: Annotated[Positive, Meta(description="an episode that lasts longer enters the second stage")] = 30.0
    no_room_after_s: Annotated[
        Positive, Meta(description="the same when the rest of the pool cannot carry the load")
    ] = 5.0
    leave_after_s: Annotated[
        Positive, Meta(description="a node that looks well for so long leaves it, and gets its own values back")
    ] = 10.0
    lease_s: Annotated[
        float, Meta(ge=3, le=600, description="an Order that is not renewed undoes itself after this time")
    ] = 60.0
    drain_s: Annotated[
        float, Meta(gt=0, le=20, description="how long requests in flight may take to end before a reload")
    ] = 10.0
    reload_min_interval_s: Annotated[float, Meta(ge=0, description="shortest time between two reloads of one node")] = (
        10.0
    )
    search_measure_s: Annotated[Positive, Meta(description="how long a search measures each try")] = 20.0
    calm_frequency: Annotated[
        str,
        Meta(
            description="what `cpu.frequency` is turned to on nodes that are calm with latency to spare: a governor, or"
            " kHz; empty: it is left alone"
        ),
    ] = ""
    calm_below_p95_ms: Annotated[
        float, Meta(ge=0, description="latency to spare: the node's p95 has been below this for a minute")
    ] = 0.0

    def __post_init__(self) -> None:
        if self.mode == "act" and not self.order_key:
            raise ValueError('`order_key` is missing, which `mode = "act"` needs')


class WebSettings(Settings, frozen=True):
    """The dashboard. Who may log in is said with `slackwater web user`."""

    listen: Annotated[OptionalAddress, Meta(description="HOST:PORT; empty: no dashboard")] = "127.0.0.1:8099"
    read_without_login: Annotated[
        Literal["loopback", "always", "never"],
        Meta(
            description="who may look without a login: `loopback`: whoever reaches it, if it listens on loopback and"
            " `hosts` is empty. Controls always need an operator's login"
        ),
    ] = "loopback"
    hosts: Annotated[
        list[str], Meta(description="names under which a TLS proxy in front of it is reached; others are refused")
    ] = []
    proxy_user_header: Annotated[
        str,
        Meta(
            pattern=HEADER_PATTERN,
            description="header in which a proxy of `proxies` names the logged-in person, such as X-Remote-User;"
            " empty: no header is believed",
        ),
    ] = ""
    proxies: Annotated[
        list[str], Meta(description="addresses of proxies whose header is believed; loopback always is")
    ] = []
    proxy_operators: Annotated[
        list[str], Meta(description="people named by the proxy who are operators; the others are viewers")
    ] = []
    grafana_url: Annotated[
        str,
        Meta(
            pattern=WEB_URL_PATTERN,
            description="URL of the Grafana dashboard; episodes then link to their time there. Empty: none",
        ),
    ] = ""
    session_h: Annotated[Positive, Meta(description="hours after which one has to log in again")] = 12.0


class JournalSettings(Settings, frozen=True):
    """What is kept, in `state_dir/journal.sqlite`."""

    keep_samples_h: Annotated[Positive, Meta(description="hours for which Samples are kept as they came")] = 24.0
    keep_minutes_d: Annotated[
        Positive, Meta(description="days for which their means of minutes and hours are kept, and episodes")
    ] = 90.0
    max_mb: Annotated[
        float,
        Meta(ge=10, description="megabytes that the journal stays under: the oldest Samples go first, Changes never"),
    ] = 20_000.0
    min_free_mb: Annotated[
        float, Meta(ge=0, description="megabytes of the disk that the journal leaves free, by the same order")
    ] = 1000.0


class ControllerSettings(Settings, frozen=True):
    """The controller's file."""

    pool: Annotated[list[PoolSettings], Meta(min_length=1, description="the pools, one [[pool]] table each")]
    state_dir: Annotated[FilePath, Meta(description="folder for baselines, the journal and locks")] = (
        "/var/lib/slackwater"
    )
    bus: BusSettings = BusSettings()
    detector: DetectorSettings = DetectorSettings()
    lbengine: LbengineSettings = LbengineSettings()
    retune: RetuneSettings = RetuneSettings()
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
            at = line_of((key,), lines)
            raise ConfigError(f"{where}:{at}: this is a node's file; check it with `slackwater-monitor config {where}`")
    raw, warnings = with_new_names(raw, lines, where)
    for text in warnings:
        log.warning("%s", text)
    for key_path, known in _unknown_keys(raw, ControllerSettings, ()):
        near = difflib.get_close_matches(str(key_path[-1]), known, n=1, cutoff=0.0)
        place = dotted(key_path[:-1]) or "the file's top level"
        raise ConfigError(
            f"{where}:{line_of(key_path, lines)}: unknown setting `{key_path[-1]}` in {place};"
            f" the nearest known one is `{near[0]}`"
        )
    try:
        settings = msgspec.convert(raw, ControllerSettings)
    except msgspec.ValidationError as error:
        raise ConfigError(_located(str(error), where, lines)) from None
    if bool(settings.bus.user) != bool(settings.bus.password_file):
        given = "user" if settings.bus.user else "password_file"
        raise ConfigError(
            f"{where}:{line_of(('bus', given), lines)}: bus.user and bus.password_file must be set together"
        )
    taken: set[tuple[str, ...]] = set()
    for index, pool in enumerate(settings.pool):
        names = [("name", f"pool `{pool.name}`")]
        names += [("backend", f"backend `{pool.backend}` of {one}") for one in pool.all_sockets]
        names += [("service", f"service `{pool.service}`")] if pool.service else []
        for key, text in names:
            if (key, text) in taken:
                raise ConfigError(f"{where}:{line_of(('pool', index, key), lines)}: {text} is there twice")
            taken.add((key, text))
    return settings


def with_new_names(raw: dict[str, Any], lines: dict[KeyPath, int], where: str) -> tuple[dict[str, Any], list[str]]:
    """A file's values under today's names, and a warning for each old one; `lines` gets the new names too.

    Raises ConfigError where the old and the new name are both given.
    """
    warnings: list[str] = []

    def table(given: dict[str, Any], at: KeyPath, section: str) -> dict[str, Any]:
        prefix = f"{section}." if section else ""
        names = {
            old.removeprefix(prefix): new.removeprefix(prefix)
            for old, new in renamed.SETTINGS.items()
            if old.rpartition(".")[0] == section
        }
        try:
            given, found = renamed.with_new_names(given, names)
        except renamed.BothGiven as error:
            raise ConfigError(f"{where}:{line_of((*at, error.old), lines)}: {error}") from None
        for old in found:
            line = line_of((*at, old), lines)
            warnings.append(f"{where}:{line}: {renamed.warning(old, names[old])}")
            lines[(*at, names[old])] = line
        for key, value in given.items():
            if isinstance(value, dict):
                given[key] = table(value, (*at, key), f"{prefix}{key}")
            elif isinstance(value, list):
                given[key] = [
                    table(item, (*at, key, index), f"{prefix}{key}") if isinstance(item, dict) else item
                    for index, item in enumerate(value)
                ]
        return given

    return table(raw, (), ""), warnings


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
    name = f"{dotted(path)}: " if path else ""
    return f"{where}:{line_of(path, lines)}: {name}{what[0].lower()}{what[1:]}"


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
    """Every setting as (dotted name, default as TOML, help): the source of docs/reference/settings.md."""
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
