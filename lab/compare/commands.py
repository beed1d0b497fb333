"""The command `slackwater lab compare`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from lab.cluster.lab import LabSettings
from lab.cluster.terminal import console
from lab.compare.tables import REFERENCE, SHOWN, with_interval, worst
from lab.options import hosts_options, json_option, progress, write_json

DEFAULT_POLICIES = ("static", "leastconn", "slackwater", "slackwater-lc", "oracle")
FILE = click.Path(exists=True, path_type=Path)


def resumable_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of what is measured in pieces."""
    folder = click.Path(file_okay=False, path_type=Path)
    for option in (
        json_option,
        click.option("--replay", is_flag=True, help="Only make the tables again from what the folder holds."),
        click.option(
            "--minutes", type=click.FloatRange(0.1), help="Begin nothing that would end later; go on another time."
        ),
        click.option("--seed", type=int, default=1, show_default=True, help="Of the order."),
        click.option("--out", "folder", type=folder, help="Its folder."),
    ):
        command = option(command)
    return command


def until(minutes: float | None) -> float:
    """The instant after which nothing is begun (monotonic)."""
    return time.monotonic() + 60.0 * minutes if minutes else float("inf")


@click.command(epilog="Example: slackwater lab compare --out one --scenario one --policy static --policy slackwater")
@click.option("--scenario", "scenarios", multiple=True, help="two@30: two at 30% load. Again for more.  [default: one]")
@click.option("--policy", "policies", multiple=True, help=f"Again for more.  [default: {', '.join(DEFAULT_POLICIES)}]")
@click.option("--random", "drawn", type=click.IntRange(1), help="So many scenarios drawn from --seed.")
@click.option("--rounds", type=click.IntRange(1), help="[default: 5, with --random 1]")
@click.option("--list", "listed", is_flag=True, help="Show scenarios and policies, and end.")
@hosts_options
@resumable_options
def compare(
    settings: LabSettings,
    folder: Path | None,
    scenarios: tuple[str, ...],
    policies: tuple[str, ...],
    drawn: int | None,
    rounds: int | None,
    seed: int,
    minutes: float | None,
    replay: bool,
    listed: bool,
    json_file: str | None,
) -> None:
    """Measure policies against each other: scenarios x policies x rounds in random order, recorded in a folder.

    The same command goes on where it was interrupted. Needs root, except with --replay.
    """
    from lab.compare import compare as comparing
    from lab.compare import comparison, results
    from lab.experiment.drawn import names

    if listed:
        _show_tables()
        return
    if folder is None:
        raise click.UsageError("--out is missing: the folder that the comparison is recorded in")
    if drawn and scenarios:
        raise click.UsageError("--random draws the scenarios: expected no --scenario with it")
    if not replay:
        asked = names(seed, drawn) if drawn else scenarios or ("one",)
        made = comparison.planned(asked, policies or DEFAULT_POLICIES, rounds or (1 if drawn else 5), seed, settings)
        made = comparing.begin(folder, made)
        comparing.run(folder, made, progress, until(minutes))
    found = results.summary(folder)
    if json_file:
        write_json(found, json_file)
        if json_file == "-":
            return
    if short := results.cut_short(found):
        click.echo(short)
    players = dict.fromkeys(cell["policy"] for cell in found["cells"])
    shown = [worst(found, name) for name in players if name != REFERENCE] if drawn else tables(found)
    for table in shown:
        console().print(table)


def tables(found: dict[str, Any]) -> list[Table]:
    """A table a scenario: medians over the rounds, with 95% intervals."""
    made = []
    for scenario in dict.fromkeys(cell["scenario"] for cell in found["cells"]):
        table = Table("policy", "rounds", *(title for _, title, _ in SHOWN), title=scenario, box=None)
        for cell in found["cells"]:
            if cell["scenario"] == scenario:
                table.add_row(
                    cell["policy"], str(cell["rounds"]), *(with_interval(cell[key], form) for key, _, form in SHOWN)
                )
        made.append(table)
    return made


def _show_tables() -> None:
    from lab.experiment.policies import POLICIES
    from lab.experiment.scenarios import ELSEWHERE, SCENARIOS

    table = Table("scenario", "what", box=None)
    for name, scenario in SCENARIOS.items():
        table.add_row(name, scenario.what)
    for name, why in ELSEWHERE.items():
        table.add_row(name, f"not run: {why}")
    console().print(table)
    table = Table("policy", "balance", "source", box=None)
    for name, policy in POLICIES.items():
        table.add_row(name, policy.balance, policy.source)
    console().print(table)
