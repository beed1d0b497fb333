"""What the commands of `slackwater lab` share: options, progress, and where JSON goes."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from slackwater_lab.cells import Pieces, until
from slackwater_lab.cluster.applications import APPLICATIONS
from slackwater_lab.cluster.balancer import BALANCES
from slackwater_lab.cluster.cgroups import PERIOD_S
from slackwater_lab.cluster.hosts import MOST
from slackwater_lab.cluster.lab import LabSettings
from slackwater_lab.cluster.machines import HostKind


def progress(text: str) -> None:
    """Prints a line of progress to stderr."""
    click.echo(text, err=True)


def write_json(result: dict[str, Any], place: str | None) -> bool:
    """Writes the result to a file, or to stdout for `-`, if a place is named. Returns whether tables may be printed:
    not beside JSON on stdout."""
    if not place:
        return True
    text = json.dumps(result, indent=2) + "\n"
    if place == "-":
        click.echo(text, nl=False)
        return False
    Path(place).write_text(text)
    return True


class HostsParam(click.ParamType[tuple[HostKind, int]]):
    """How many hosts there are and of which kind: `5`, `uml`, `uml:2`, `cgroup:4`."""

    name = "[KIND:]NUMBER"
    kinds: tuple[HostKind, ...] = ("cgroup", "uml")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[HostKind, int]:
        if isinstance(value, tuple):
            return value
        first, _, second = value.partition(":")
        named = next((kind for kind in self.kinds if kind == first), None)
        number = (second or "3") if named else value
        if not (number.isdecimal() and 2 <= int(number) <= MOST):
            self.fail(f"`{value}`: expected 2 to {MOST}, or `uml`, or both as in `uml:2`", param, ctx)
        return named or "cgroup", int(number)


HAPROXIES = ("haproxy", "haproxy-2.8", "haproxy-3", "haproxy-3.2", "haproxy-3.4")
DEFAULT_QUOTA_CORES: dict[HostKind, float] = {"cgroup": 0.4, "uml": 0.45}


def hosts_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that choose the lab's hosts; the command gets them as `settings`."""

    @functools.wraps(command)
    def with_settings(
        *, hosts: tuple[HostKind, int], quota: float | None, period_ms: float, haproxy: str, **rest: Any
    ) -> Any:
        kind, number = hosts
        settings = LabSettings(
            number,
            quota or DEFAULT_QUOTA_CORES[kind],
            kind=kind,
            period_s=period_ms / 1000.0,
            haproxy=haproxy,
        )
        return command(settings=settings, **rest)

    wrapped: Callable[..., Any] = with_settings
    for option in (
        click.option(
            "--hosts",
            type=HostsParam(),
            default="3",
            show_default=True,
            help="Number of hosts; uml: three virtual machines of User Mode Linux, uml:2: two.",
        ),
        click.option(
            "--quota", type=click.FloatRange(0.05), help="Cores of each host  [default: 0.4; virtual machines: 0.45]"
        ),
        click.option(
            "--period-ms",
            type=click.FloatRange(1, 1000),
            default=PERIOD_S * 1000.0,
            show_default=True,
            help="Period of the hosts' CPU quota.",
        ),
        click.option(
            "--haproxy",
            type=click.Choice(HAPROXIES),
            default=HAPROXIES[0],
            show_default=True,
            help="HAProxy's version: `haproxy` is Debian 12's 2.6, `haproxy-3` Debian 13's 3.0.",
        ),
    ):
        wrapped = option(wrapped)
    return wrapped


def app_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Which application the hosts serve."""
    return click.option("--app", type=click.Choice(list(APPLICATIONS)), default="events", show_default=True)(command)


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that choose what the lab is made of; the command gets them as `settings`."""

    @functools.wraps(command)
    def with_settings(*, app: str, balance: str, settings: LabSettings, **rest: Any) -> Any:
        return command(settings=replace(settings, app=app, balance=balance), **rest)

    wrapped: Callable[..., Any] = hosts_options(with_settings)
    for option in (
        app_option,
        click.option("--balance", type=click.Choice(BALANCES), default="roundrobin", show_default=True),
    ):
        wrapped = option(wrapped)
    return wrapped


FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)


def pieces_options(lines: str, *, timed: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options of a measurement in pieces; the command gets them as `pieces`. `lines`: what a line of its data file
    is, in words. Without `timed` the command has a --minutes of its own."""

    def with_pieces(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def checked(*, data: Path | None, page: Path | None, replay: bool, **rest: Any) -> Any:
            if data is None and (replay or page):
                raise click.UsageError(f"--data is missing: the file with the {lines}")
            if replay and page is None:
                raise click.UsageError("--page is missing: the page to write")
            minutes = rest.pop("minutes") if timed else None
            return command(pieces=Pieces(data, page, replay, until(minutes)), **rest)

        wrapped: Callable[..., Any] = minutes_option(checked) if timed else checked
        for option in (
            click.option("--replay", is_flag=True, help="Only write the page again, from the data file alone."),
            click.option("--page", type=FILE, help="The page to write."),
            click.option("--data", type=FILE, help=f"The {lines}, a line each; what it has is not repeated."),
        ):
            wrapped = option(wrapped)
        return wrapped

    return with_pieces


minutes_option = click.option(
    "--minutes", type=click.FloatRange(0.1), help="Stop after this time; the same command goes on."
)
jobs_option = click.option("--jobs", type=click.IntRange(1), help="Processes at a time.  [default: all processors]")
out_option = click.option("--out", "folder", type=FOLDER, help="Folder of the data.")


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Where a command writes its result as JSON."""
    place = click.Path(dir_okay=False, allow_dash=True)
    return click.option("--json", "json_file", type=place, help="Write JSON to this file; - : stdout.")(command)
