"""The command `slackwater lab governor-policies`."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Column, Table

from slackwater_lab.cluster.lab import Lab
from slackwater_lab.cluster.terminal import console
from slackwater_lab.governor.live import story
from slackwater_lab.governor.live.policies import LIVE
from slackwater_lab.governor.live.services import SERVICES
from slackwater_lab.governor.live.story import MEASURES, LiveTest
from slackwater_lab.options import json_option, progress, write_json


@click.command(
    "governor-policies",
    epilog="Example: slackwater lab governor-policies --service memcached-open --rounds 3 --json memcached.json",
)
@click.option("--service", type=click.Choice(list(SERVICES)), required=True, help="The service.")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Choice(list(LIVE)),
    help="Policy; repeatable.  [default: all that fit the service]",
)
@click.option("--rounds", type=click.IntRange(1, 50), default=3, show_default=True, help="Rounds of each policy.")
@click.option(
    "--step-seconds",
    type=click.FloatRange(2, 600),
    default=5.0,
    show_default=True,
    help="Length of each of the steps: low load, high load, low load.",
)
@json_option
def governor_policies(
    service: str,
    policies: tuple[str, ...],
    rounds: int,
    step_seconds: float,
    json_file: str | None,
) -> None:
    """Compare the governor's policies on a real service with a batch job beside it.

    A quota of CPU time stands in for a clock, so nothing of it is energy. Each policy drives the service's cores and
    quota itself, without Orders, and sees the load generator's answers.
    """
    can = SERVICES[service].policies
    if cannot := [policy for policy in policies if policy not in can]:
        raise click.BadParameter(
            f"{service} does not tell of its hot function, which {', '.join(cannot)} needs; expected {', '.join(can)}",
            param_hint="--policy",
        )
    test = LiveTest(service, policies or can, rounds, step_seconds)
    with Lab(story.settings(test), progress) as cluster:
        result = story.run(cluster, test, progress)
    if not write_json(result, json_file):
        return
    show(result)


def show(result: dict[str, Any]) -> None:
    """The medians and ranges over the rounds, as a table."""
    heads = ("p95 ms", "p99 ms", "seconds in target %", "requests/s", "allowed", "used", "cores", "batch")
    title = f"{result['service']}: median (range); allowed, used and batch are CPU time in cores"
    table = Table(Column("policy", no_wrap=True), *heads, "errors", title=title)
    for row in result["summary"]:
        table.add_row(
            row["policy"], *(cell(row[measure]) for measure in MEASURES), f"{row['errors']}/{row['requests']}"
        )
    console().print(table)


def cell(spread: list[float] | None) -> str:
    """Median, and least to most where they differ."""
    if spread is None:
        return "-"
    middle, least, most = (f"{value:.3g}" for value in spread)
    return middle if least == most else f"{middle} ({least} to {most})"
