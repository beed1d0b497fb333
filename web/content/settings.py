"""The settings in force, each with where it comes from: a line of the controller's file, or the default."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from slackwater import config
from slackwater.bus.bus import without_password
from slackwater.config import ConfigError, ControllerSettings
from slackwater.config.toml_lines import KeyPath, key_lines
from slackwater.supervise import state_dir


class ShownSetting(msgspec.Struct):
    """One line of the page."""

    name: str
    value: str
    source: str
    help: str


class Section(msgspec.Struct):
    """A table of the file."""

    title: str
    settings: list[ShownSetting]


class SettingsPage(msgspec.Struct):
    """The page."""

    file: str
    """Where they were read from; empty when that is not known."""
    changed: bool
    """The file says something else by now: a restart would take that up."""
    sections: list[Section]


def settings_page(settings: ControllerSettings) -> SettingsPage:
    """What is in force, with sources from the file that `serve` was started with."""
    path = str((state_dir.read_serve(Path(settings.state_dir)) or {}).get("config", ""))
    text = ""
    if path:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            path = ""
    changed = bool(text) and _parsed(text, path) != settings
    return SettingsPage(path, changed, list(_sections(settings, text, Path(path).name)))


def _parsed(text: str, path: str) -> ControllerSettings | None:
    try:
        return config.parse(text, path)
    except ConfigError:
        return None


def _sections(settings: ControllerSettings, text: str, file: str) -> Iterator[Section]:
    lines: dict[KeyPath, int] = {}
    raw: dict[str, Any] = {}
    try:
        raw, lines = tomllib.loads(text), key_lines(text)
        config.use_new_names(raw, lines, file)
    except (tomllib.TOMLDecodeError, ConfigError):
        pass
    helps = {name: help_text for name, _, help_text in config.describe()}

    def shown(struct: msgspec.Struct, at: tuple[str | int, ...], given: dict[str, Any]) -> list[ShownSetting]:
        rows = []
        for field in struct.__struct_fields__:
            value = getattr(struct, field)
            if isinstance(value, msgspec.Struct) or (value and isinstance(value, list) and _structs(value)):
                continue
            line = lines.get((*at, field))
            source = "default" if field not in given else f"{file}, line {line}" if line else file
            dotted = ".".join([*(str(part) for part in at if isinstance(part, str)), field])
            rows.append(ShownSetting(field, _value(value), source, helps.get(dotted, "")))
        return rows

    yield Section("At the top", shown(settings, (), raw))
    for index, pool in enumerate(settings.pool):
        given = (raw.get("pool") or [{}] * len(settings.pool))[index : index + 1] or [{}]
        yield Section(f"Pool {pool.name}", shown(pool, ("pool", index), given[0]))
    for name in settings.__struct_fields__:
        section = getattr(settings, name)
        if isinstance(section, msgspec.Struct):
            yield Section(f"[{name}]", shown(section, (name,), raw.get(name) or {}))


def _structs(values: list[Any]) -> bool:
    return isinstance(values[0], msgspec.Struct)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return without_password(value) or "(empty)"
    text = msgspec.json.encode(value).decode()
    return without_password(text) if text not in ("[]", "{}") else "(none)"
