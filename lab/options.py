"""What the commands of `slackwater lab` share: options, progress, and where JSON goes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from lab.cluster.applications import APPLICATIONS
from lab.cluster.balancer import BALANCES
from lab.cluster.noise import NOISES
from lab.cluster.stress import STRESSORS


def progress(text: str) -> None:
    """Prints a line of progress to stderr."""
    click.echo(text, err=True)


def write_json(result: dict[str, Any], place: str) -> None:
    """Writes the result to a file, or to stdout for `-`."""
    text = json.dumps(result, indent=2) + "\n"
    if place == "-":
        click.echo(text, nl=False)
    else:
        Path(place).write_text(text)


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that choose what the lab is made of."""
    for option in (
        click.option("--app", type=click.Choice(list(APPLICATIONS)), default="events", show_default=True),
        click.option("--balance", type=click.Choice(BALANCES), default="roundrobin", show_default=True),
        click.option("--hosts", type=click.IntRange(2, 50), default=3, show_default=True),
        click.option(
            "--quota", type=click.FloatRange(0.05), default=0.4, show_default=True, help="Cores of each host."
        ),
    ):
        command = option(command)
    return command


def noise_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--noise", type=click.Choice([*NOISES, *STRESSORS]), default="llcprobe", show_default=True),
        click.option(
            "--intensity",
            type=click.FloatRange(0, 1, min_open=True),
            default=1.0,
            show_default=True,
            help="Share of time in which each of the neighbour's threads works.",
        ),
    ):
        command = option(command)
    return command


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Where a command writes its result as JSON."""
    place = click.Path(dir_okay=False, allow_dash=True)
    return click.option("--json", "json_file", type=place, help="Write JSON to this file; - : stdout.")(command)
