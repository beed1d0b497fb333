"""Options that several commands share."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from slackwater.core.config.kinds import ADDRESS_PATTERN

Command = TypeVar("Command", bound=Callable[..., Any])


class Number(click.FloatRange):
    """A finite number within a range. Nothing is beyond a limit of `nan`, and nothing ends after `inf`."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"expected a finite number, got {value}", param, ctx)
        return number


DEFAULT_CONFIG = "/etc/slackwater/controller.toml"
config_option = click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
    envvar="SLACKWATER_CONFIG",
    default=DEFAULT_CONFIG,
    show_default=True,
    show_envvar=True,
    help="The controller's configuration.",
)
all_pools_option = click.option(
    "--all", "every", is_flag=True, help="All pools; one that fails does not stop the others."
)

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")


def tell(answer: Mapping[str, Any] | msgspec.Struct, lines: str, as_json: bool) -> None:
    """Prints what a command found or did: as JSON for programs, or as lines for people."""
    text = msgspec.json.encode(answer).decode() if as_json else lines
    if text:
        click.echo(text)


def pool_option(help_text: str) -> Callable[[Command], Command]:
    return click.option("--pool", "pool_name", metavar="NAME", help=help_text)


def why_option() -> Callable[[Command], Command]:
    return click.option("--why", default="", metavar="TEXT", help="The reason, for the log.")


def an_address(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """A click callback: HOST:PORT."""
    if value is not None and not re.search(ADDRESS_PATTERN, value):
        raise click.BadParameter(f"expected HOST:PORT, as in 10.0.0.5:14222 or [2001:db8::5]:14222, got {value!r}")
    return value


def unix_time_of(_: click.Context, __: click.Parameter, value: datetime | None) -> float | None:
    """A click callback: a time of this machine's zone as Unix time."""
    return None if value is None else value.timestamp()


at_option = click.option(
    "--at",
    "at_unix_s",
    type=click.DateTime(["%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S"]),
    callback=unix_time_of,
    metavar="'YYYY-MM-DD HH:MM'",
    help="The episode of then, or that began within a minute, by this machine's clock; default: the last of a week.",
)


def seconds_of(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """`30s`, `10m`, `2h`, `1d`, in seconds."""
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text)
    if match is None:
        expected = "expected a number and s, m, h or d, such as 30s, 10m, 2h, 1d"
        raise click.BadParameter(f"{text!r} is no duration; {expected}", context, parameter)
    return float(match.group(1)) * {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}[match.group(2)]
