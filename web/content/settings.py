"""The settings in force, each with where it comes from: a line of the controller's file, or the default."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from slackwater.core import config, state_dir
from slackwater.core.bus.bus import without_password
from slackwater.core.config import ConfigError, ControllerSettings
from slackwater.core.config.toml_lines import KeyPath, key_lines
from slackwater.core.files import bytes_of


class ShownSetting(msgspec.Struct):
    """One line of the page."""

    name: str
    value: str
    source: str
    help: str


class SettingsSection(msgspec.Struct):
    """A table of the file."""

    title: str
    settings: list[ShownSetting]


class SettingsPage(msgspec.Struct):
    """The page."""

    file: str
    """Where they were read from; empty when that is not known."""
    changed: bool
    """The file has changed since; a reload would apply it."""
    sections: list[SettingsSection]


def settings_page(settings: ControllerSettings) -> SettingsPage:
    """What is in force, with sources from the file that `serve` reads."""
    path = str((state_dir.read_serve(Path(settings.state_dir)) or {}).get("config", ""))
    text = ""
    if path:
        try:
            text = bytes_of(Path(path)).decode("utf-8-sig")
        except (OSError, UnicodeDecodeError):
            path = ""
    changed = bool(text) and _parsed(text, path) != settings
    return SettingsPage(path, changed, list(_sections(settings, text, Path(path).name)))


def _parsed(text: str, path: str) -> ControllerSettings | None:
    try:
        return config.parse(text, path)
    except ConfigError:
        return None


def _sections(settings: ControllerSettings, text: str, file: str) -> Iterator[SettingsSection]:
    lines = key_lines(text)
    described = [(*name.rpartition("."), help_text) for name, _, help_text in config.describe()]

    def section(title: str, table: str, path: KeyPath, struct: msgspec.Struct) -> SettingsSection:
        shown = []
        for prefix, _, name, help_text in described:
            if prefix == table and hasattr(struct, name):
                line = lines.get((*path, name))
                source = f"{file}, line {line}" if line else "default"
                shown.append(ShownSetting(name, _value(getattr(struct, name)), source, help_text))
        return SettingsSection(title, shown)

    yield section("At the top", "", (), settings)
    for index, pool in enumerate(settings.pool):
        yield section(f"Pool {pool.name}", "pool", ("pool", index), pool)
    for name in dict.fromkeys(prefix for prefix, *_ in described if prefix not in ("", "pool")):
        yield section(f"[{name}]", name, (name,), getattr(settings, name))


def _value(value: Any) -> str:
    if isinstance(value, str):
        return without_password(value) or "(empty)"
    text = msgspec.json.encode(value).decode()
    return without_password(text) if text not in ("[]", "{}") else "(none)"
