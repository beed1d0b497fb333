"""The controller's settings: declared once here, read from one TOML file, refused with line and nearest known key.

The node's settings are declared in Rust, in `monitor/src/config.rs`.
"""

from __future__ import annotations

import difflib
import re
import tomllib
import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from slackwater.messages import Mode, Name


class ConfigError(Exception):
    """A configuration that cannot be used; the text says where, what is wrong and what was expected."""


class Settings(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Base of all sections: an unknown key is an error."""


Positive = Annotated[float, Meta(gt=0)]


class BusSettings(Settings):
    """NATS. Without `url`, `slackwater serve` starts a private nats-server on `listen`."""

    url: Annotated[str, Meta(description="URL of the site's own NATS, nats://HOST:PORT; empty: a private one")] = ""
    listen: Annotated[str, Meta(description="HOST:PORT on which the private nats-server listens")] = "127.0.0.1:14222"

    @property
    def address(self) -> str:
        """The URL that clients connect to."""
        return self.url or f"nats://{self.listen}"


class PoolSettings(Settings):
    """One backend of one balancer."""

    name: Annotated[Name, Meta(description="the pool's name, as the nodes give it in their Samples")]
    backend: Annotated[Name, Meta(description="HAProxy's name of the backend")]
    socket: Annotated[str, Meta(description="path of HAProxy's admin socket (`stats socket PATH level admin`)")]
    mode: Annotated[Mode, Meta(description="observe: decide and record, touch nothing; act: set the weights")] = (
        "observe"
    )
    law: Annotated[
        Literal["optimal", "ice"],
        Meta(description="optimal: least mean response time; ice: keep predicted CPU below u_threshold"),
    ] = "optimal"
    u_threshold: Annotated[float, Meta(gt=0, le=1, description="CPU share that the law keeps each server below")] = 0.8
    max_mitigated: Annotated[
        float, Meta(gt=0, le=1, description="at most this share of the pool is reduced at a time (blast radius)")
    ] = 0.5
    servers: Annotated[
        dict[str, str], Meta(description="server name in HAProxy -> node name, where the two differ")
    ] = {}


class DetectorSettings(Settings):
    """How Samples become Verdicts."""

    model: Annotated[str, Meta(description="model file (.skops); empty: the shipped one; `thresholds`: none")] = ""
    tick_s: Annotated[Positive, Meta(description="how often new Samples are judged")] = 0.05
    stale_after_s: Annotated[Positive, Meta(description="a node without Samples for this long is `unknown`")] = 1.0
    calm_dwell_s: Annotated[Positive, Meta(description="how long a node must look calm for its episode to end")] = 2.0


class LbengineSettings(Settings):
    """How Verdicts become weights."""

    cycle_s: Annotated[Positive, Meta(description="how often the balancer is read and reconciled")] = 0.2
    lease_s: Annotated[Positive, Meta(description="without Verdicts for this long: back to the baseline weights")] = 3.0
    ramp_s: Annotated[Positive, Meta(description="time for a server to come back from 0 to its baseline weight")] = 4.0
    min_change: Annotated[
        float, Meta(ge=0, le=1, description="changes smaller than this share of the baseline are not sent")
    ] = 0.05
    socket_timeout_s: Annotated[Positive, Meta(description="how long HAProxy may take to answer")] = 1.0


class WebSettings(Settings):
    """The dashboard."""

    listen: Annotated[str, Meta(description="HOST:PORT; empty: no dashboard")] = "127.0.0.1:8099"


class JournalSettings(Settings):
    """What is kept, in `state_dir/journal.sqlite`."""

    keep_samples_h: Annotated[Positive, Meta(description="hours for which Samples and Verdicts are kept")] = 24.0


class ControllerSettings(Settings):
    """The controller's file."""

    pool: Annotated[list[PoolSettings], Meta(min_length=1, description="the pools, one [[pool]] table each")]
    state_dir: Annotated[str, Meta(description="folder for baselines, the journal and locks")] = "/var/lib/slackwater"
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


def load(path: str | Path) -> ControllerSettings:
    """Reads a controller's TOML file. Raises ConfigError: `FILE:LINE: what is wrong (what was expected)`."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    return parse(text, str(path))


def parse(text: str, where: str) -> ControllerSettings:
    """As `load`, from a text; `where` is the file's name in messages."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"\(at line (\d+)", str(error))
        at = line.group(1) if line else str(text.count("\n") + 1)
        raise ConfigError(f"{where}:{at}: not TOML: {error}") from None
    if "node" in raw and "pool" in raw and isinstance(raw["pool"], str):
        raise ConfigError(f"{where}:1: this is a node's file; check it with `slackwater-monitor config FILE`")
    lines = key_lines(text)
    for key_path, key, known in _unknown_keys(raw, ControllerSettings, ()):
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
        line_no = lines.get((*key_path, key), 1)
        place = ".".join(str(part) for part in key_path) or "the file's top level"
        raise ConfigError(f"{where}:{line_no}: unknown setting `{key}` in {place}; did you mean `{near[0]}`?")
    try:
        settings = msgspec.convert(raw, ControllerSettings)
    except msgspec.ValidationError as error:
        raise ConfigError(_located(str(error), where, lines)) from None
    names = [pool.name for pool in settings.pool]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{where}:{lines.get(('pool', 1, 'name'), 1)}: pool `{name}` is there twice")
    return settings


Path_ = tuple[str | int, ...]


def key_lines(text: str) -> dict[Path_, int]:
    """Line number of each key and table of a TOML text, by its path; tables of an array carry their index."""
    lines: dict[Path_, int] = {}
    table: Path_ = ()
    counts: dict[Path_, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if head := re.match(r"\s*(\[\[?)\s*([^\]]+?)\s*\]", line):
            table = ()
            for part in (piece.strip().strip("\"'") for piece in head.group(2).split(".")):
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
            keys = tuple(piece.strip().strip("\"'") for piece in pair.group(1).split("."))
            lines.setdefault((*table, *keys), number)
    return lines


def _struct_of(kind: Any) -> tuple[type[Settings] | None, bool]:
    """The Settings struct that an annotation means, and whether it is a list of them."""
    origin = typing.get_origin(kind)
    if origin is Annotated:
        return _struct_of(typing.get_args(kind)[0])
    if origin is list:
        return _struct_of(typing.get_args(kind)[0])[0], True
    if isinstance(kind, type) and not isinstance(kind, types.GenericAlias) and issubclass(kind, Settings):
        return kind, False
    return None, False


def _unknown_keys(raw: dict[str, Any], struct: type[Settings], at: Path_) -> list[tuple[Path_, str, list[str]]]:
    hints = typing.get_type_hints(struct, include_extras=True)
    known = list(struct.__struct_fields__)
    found: list[tuple[Path_, str, list[str]]] = []
    for key, value in raw.items():
        if key not in known:
            found.append((at, key, known))
            continue
        inner, many = _struct_of(hints[key])
        if inner is None:
            continue
        if many and isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, dict):
                    found += _unknown_keys(item, inner, (*at, key, index))
        elif isinstance(value, dict):
            found += _unknown_keys(value, inner, (*at, key))
    return found


def _located(message: str, where: str, lines: dict[Path_, int]) -> str:
    """Turns msgspec's `... - at `$.pool[0].mode`` into `FILE:LINE: pool.0.mode: ...`."""
    match = re.fullmatch(r"(.*) - at `\$\.?(.*)`", message, re.DOTALL)
    if match is None:
        return f"{where}:1: {message[0].lower()}{message[1:]}"
    what, dotted = match.groups()
    path: Path_ = tuple(
        int(part) if part.isdigit() else part for part in re.sub(r"\[(\d+|\.\.\.)\]", r".\1", dotted).split(".") if part
    )
    line = next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), 1)
    name = ".".join(str(part) for part in path)
    return f"{where}:{line}: {name + ': ' if name else ''}{what[0].lower()}{what[1:]}"


def describe() -> list[tuple[str, str, str]]:
    """Every setting as (dotted name, default as TOML, help): the source of docs/settings.md."""
    rows: list[tuple[str, str, str]] = []

    def walk(struct: type[Settings], prefix: str) -> None:
        hints = typing.get_type_hints(struct, include_extras=True)
        for field in msgspec.structs.fields(struct):
            inner, _ = _struct_of(hints[field.name])
            name = f"{prefix}{field.name}"
            if inner is not None:
                walk(inner, f"{name}.")
                continue
            default = "(required)" if field.required else _toml(field.default)
            rows.append((name, default, _help(hints[field.name])))

    walk(ControllerSettings, "")
    return rows


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if value is msgspec.NODEFAULT or isinstance(value, dict):
        return "{}"
    return str(value)


def _help(kind: Any) -> str:
    """The outermost description, and the allowed words of a choice."""
    texts = [meta.description for meta in getattr(kind, "__metadata__", ()) if getattr(meta, "description", None)]
    inner = typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
    if typing.get_origin(inner) is Literal:
        texts.append("one of " + ", ".join(f'"{word}"' for word in typing.get_args(inner)))
    return "; ".join(texts)
