"""The settings that a `serve` accepted last, in its folder: for commands whose file is wrong when they are needed.

A file that was changed and refused must not keep anybody from `slackwater pause` or `slackwater restore`.
"""

from __future__ import annotations

import logging
import re
import tomllib
from pathlib import Path

import msgspec

from slackwater.core.config import ConfigError, ControllerSettings, load, parse
from slackwater.core.files import PRIVATE, bytes_of, write_whole
from slackwater.core.service_user import become_owner_of

log = logging.getLogger("slackwater.config")

NAME = "settings-in-force.json"
DEFAULT_STATE_DIR = next(
    str(field.default) for field in msgspec.structs.fields(ControllerSettings) if field.name == "state_dir"
)


class _Kept(msgspec.Struct):
    """The file's content."""

    config: str
    """The controller's file."""
    text: str
    """What stood in it."""


def keep(folder: Path, config: Path, text: str) -> None:
    """Writes it; a full disk is no reason to stop, so an error is only logged."""
    try:
        write_whole(folder / NAME, msgspec.json.encode(_Kept(str(config.absolute()), text)), PRIVATE)
    except OSError as error:
        log.error("%s/%s cannot be written: %s", folder, NAME, error.strerror)


def load_or_last(config: Path, state_dir: Path | None = None) -> ControllerSettings:
    """The settings in the file; where it is wrong or gone those that `serve` accepted last from it, with a warning.
    `state_dir`: its folder, where the file does not name it and it is not the usual one.

    The service's user may have written anything there: so root goes on with that user's rights. Raises ConfigError.
    """
    try:
        return load(config)
    except ConfigError as error:
        for folder in state_dirs_of(config, state_dir):
            try:
                kept = msgspec.json.decode(bytes_of(folder / NAME), type=_Kept)
            except (OSError, msgspec.DecodeError, UnicodeDecodeError):
                continue
            if kept.config == str(config.absolute()):
                owner = become_owner_of(folder / NAME)
                as_whom = f", as their owner {owner}" if owner else ""
                log.warning("%s; using the settings that the controller accepted last%s", error, as_whom)
                return parse(kept.text, f"{folder / NAME}")
        raise


def state_dirs_of(config: Path, state_dir: Path | None = None) -> list[Path]:
    """Where the state of a controller with this file may be, also if the file cannot be accepted: what it names, and
    the usual folder. `state_dir`: a person has said where."""
    if state_dir:
        return [state_dir]
    named: object = None
    try:
        text = bytes_of(config).decode("utf-8-sig")
        named = tomllib.loads(text).get("state_dir")
    except tomllib.TOMLDecodeError:
        line = re.search(r'^state_dir\s*=\s*"([^"\\]+)"', text, re.MULTILINE)
        named = line.group(1) if line else None
    except (OSError, ValueError, RecursionError):  # nested too deeply; `load` says so
        pass
    folders = [Path(named)] if isinstance(named, str) and named and "\0" not in named else []
    return list(dict.fromkeys([*folders, Path(DEFAULT_STATE_DIR)]))
