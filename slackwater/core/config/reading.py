"""Reads a controller's TOML file; what is wrong is refused with its line and the nearest known setting."""

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

from slackwater.core.config.balancers import (
    BALANCERS,
    controller_settings,
    kind_of,
    owners,
    patterns_in_words,
    quoted,
    use_defaults,
)
from slackwater.core.config.description import hints, struct_of
from slackwater.core.config.kinds import ConfigError, in_words
from slackwater.core.config.settings import ControllerSettings, PoolSettings
from slackwater.core.config.toml_lines import KeyPath, dotted, key_lines, line_of
from slackwater.core.files import bytes_of
from slackwater.core.messages.plain_text import plain_text

log = logging.getLogger("slackwater.config")

LEAST, MOST = 1e-6, 1e9
"""What numbers of the settings are within. A time without an end would switch off what ends at that time."""


def load(path: str | Path) -> ControllerSettings:
    """Reads a controller's TOML file. Raises ConfigError: `FILE:LINE: what is wrong (what was expected)`."""
    return parse(read(path), str(path))


def read(path: str | Path) -> str:
    """The text of a controller's file. Raises ConfigError."""
    path = Path(path)
    try:
        return bytes_of(path).decode("utf-8-sig")  # with a byte order mark, which some editors write, or without
    except FileNotFoundError as error:
        remedy = "beside HAProxy `slackwater init` writes it; --config names another file"
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; {remedy}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        fault = f"byte {error.object[error.start]:#04x} is not UTF-8, which TOML is written in; save the file as UTF-8"
        raise ConfigError(f"{path}:{line}: not TOML: {fault}") from None


def parse(text: str, where: str) -> ControllerSettings:
    """Does what `load` does, for a text; `where` is the file's name in messages."""
    try:
        return _parsed(text, where)
    except RecursionError:
        raise ConfigError(f"{where}:1: it is nested too deeply") from None
    except ConfigError as error:  # a file that came from elsewhere may have any characters in its names and values
        raise ConfigError(plain_text(str(error))) from None


def _parsed(text: str, where: str) -> ControllerSettings:
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", str(error), re.DOTALL)
        message, line = match.groups() if match else (str(error), None)
        raise ConfigError(f"{where}:{line or max(1, len(text.splitlines()))}: not TOML: {message}") from None
    except ValueError:  # Python's bound for the digits of a number
        raise ConfigError(f"{where}:1: not TOML: a number has too many digits") from None
    lines = key_lines(text)
    for path, value in _values(raw):
        if fault := _fault_of(value):
            raise ConfigError(f"{where}:{line_of(path, lines)}: {dotted(path)}: {fault}")
    for key in ("node", "pool"):
        if isinstance(raw.get(key), str):
            key_line = line_of((key,), lines)
            raise ConfigError(
                f"{where}:{key_line}: this is a node's file; check it with `slackwater-monitor config {where}`"
            )
    for _, table in _tables(raw, "pool"):
        use_defaults(table)
    try:
        settings = msgspec.convert(raw, controller_settings())
    except msgspec.ValidationError as error:
        raise ConfigError(_located(str(error), raw, where, lines)) from None
    for pair in (("user", "password_file"), ("control_user", "control_password_file")):
        if len(given := [key for key in pair if getattr(settings.bus, key)]) == 1:
            both = " and ".join(f"bus.{key}" for key in pair)
            raise ConfigError(f"{where}:{line_of(('bus', given[0]), lines)}: {both} must be set together")
    if problem := settings.governor_problem():
        key, text = problem
        raise ConfigError(f"{where}:{line_of(('governor', key), lines)}: {text}")
    taken: set[tuple[str, ...]] = set()
    for index, pool in enumerate(settings.pool):
        for key, text in [("name", f"pool `{pool.name}`"), *pool.unique]:
            if (key, text) in taken:
                raise ConfigError(f"{where}:{line_of(('pool', index, key), lines)}: {text} is there twice")
            taken.add((key, text))
    return settings


def _values(value: object, path: KeyPath = ()) -> Iterator[tuple[KeyPath, object]]:
    """All keys and values of a file with their paths; a key counts as a value too."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if inside is None:
        yield path, value
        return
    for key, inner in inside:
        yield (*path, key), key
        yield from _values(inner, (*path, key))


def _fault_of(value: object) -> str:
    """What no setting may be, whichever it is; empty: nothing of that."""
    if isinstance(value, str) and "\0" in value:
        return "it has a zero byte, which no path and no name has"
    if isinstance(value, int | float) and value and not LEAST <= abs(value) <= MOST:
        return f"expected 0 or a number from {LEAST:f} to {MOST:.0f}, got {value!s:.30}"
    return ""


def _tables(raw: dict[str, Any], section: str) -> list[tuple[KeyPath, dict[str, Any]]]:
    """The tables of a section with their paths: several of `[[pool]]`, one of any other, the whole file of ""."""
    if not section:
        return [((), raw)]
    section_value = raw.get(section)
    tables = (
        [((section, index), table) for index, table in enumerate(section_value)]
        if isinstance(section_value, list)
        else []
    )
    return [(path, table) for path, table in [*tables, ((section,), section_value)] if isinstance(table, dict)]


def _located(message: str, raw: dict[str, Any], where: str, lines: dict[KeyPath, int]) -> str:
    """Turns msgspec's `... - at `$.pool[0].mode`` into `FILE:LINE: pool[0].mode: ...`."""
    fault, _, at_path = message.partition(" - at `")
    path: KeyPath = tuple(
        int(index) if index else key
        for index, key in re.findall(r"\[(\d+)\]|([A-Za-z_]\w*)", at_path.partition("$")[2])
    )
    name = f"{dotted(path)}: " if path else ""
    start = f"{where}:{line_of(path, lines)}: {name}"
    kind = _kind_at(path, raw)
    struct = struct_of(kind)
    word = struct.word() if struct is not None and issubclass(struct, PoolSettings) else ""
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", fault, re.DOTALL):
        key, place = unknown.group(1), dotted(path) or "the file's top level"
        assert struct is not None
        if word and (others := owners(key)):
            return (
                f'{start}`{key}` does not go with `balancer = "{word}"`, only with {quoted(others, " or ")}; remove one'
                " of them"
            )
        known = ["balancer", *struct.__struct_fields__] if word else struct.__struct_fields__
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
        homes = " or ".join(_homes(key))
        hint = f"there is one in {homes}" if homes else f"the nearest known one is `{near[0]}`"
        return f"{where}:{line_of((*path, key), lines)}: unknown setting `{key}` in {place}; {hint}"
    if missing := re.fullmatch(r"Object missing required field `(.*)`", fault):
        own = word and missing.group(1) not in PoolSettings.__struct_fields__
        return f"{start}`{missing.group(1)}` is missing" + (f', which `balancer = "{word}"` needs' if own else "")
    fault = in_words(fault, patterns_in_words())
    inner = typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
    if typing.get_origin(inner) is Literal:
        fault += f" (expected {quoted(typing.get_args(inner), ' or ')})"
        fault = fault.replace("Invalid value", "Invalid enum value")
    return f"{start}{fault[0].lower()}{fault[1:]}"


def _homes(key: str) -> list[str]:
    """The tables that have a setting of this name, in words."""
    sections = {name: struct_of(kind) for name, kind in hints(ControllerSettings).items() if name != "pool"}
    top = ["the file's top level"] if key in sections else []
    pool = ["`[[pool]]`"] if key == "balancer" or key in PoolSettings.__struct_fields__ or owners(key) else []
    named = [f"`[{name}]`" for name, struct in sections.items() if struct and key in struct.__struct_fields__]
    return [*top, *pool, *named]


def _kind_at(path: KeyPath, raw: dict[str, Any]) -> Any:
    """The annotation of the setting or table at a path."""
    kind: Any = ControllerSettings
    for key in path:
        struct = struct_of(kind)
        if struct is None:  # below a setting that is a table itself, such as `servers`
            return None
        if isinstance(key, int):
            kind = kind_of(raw["pool"][key]) if struct is PoolSettings and isinstance(raw["pool"][key], dict) else kind
        elif key == "balancer" and issubclass(struct, PoolSettings):
            return Literal[tuple(BALANCERS)]
        else:
            kind = hints(struct)[key]
    return kind
