"""The command `slackwater lab compare`."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from lab.cluster.terminal import console
from lab.options import json_option, progress, write_json

DEFAULT_POLICIES = ("static", "leastconn", "slackwater", "slackwater-lc", "oracle")


@click.command(epilog="Example: slackwater lab compare --out one --scenario one --policy static --policy slackwater")
@click.option("--out", "folder", type=click.Path(file_okay=False, path_type=Path), help="Its folder.")
@click.option("--scenario", "scenarios", multiple=True, help="Again for more.  [default: one]")
@click.option("--policy", "policies", multiple=True, help=f"Again for more.  [default: {', '.join(DEFAULT_POLICIES)}]")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True, help="Of the order of the runs.")
@click.option("--minutes", type=click.FloatRange(0.1), help="Begin no run that would end later; go on another time.")
@click.option("--replay", is_flag=True, help="Only make the tables again from what the folder holds.")
@click.option("--list", "listed", is_flag=True, help="Show scenarios and policies, and end.")
@json_option
def compare(
    folder: Path | None,
    scenarios: tuple[str, ...],
    policies: tuple[str, ...],
    rounds: int,
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

    began = time.monotonic()
    if listed:
        _show_tables()
        return
    if folder is None:
        raise click.UsageError("--out is missing: the folder that the comparison is recorded in")
    if not replay:
        made = comparison.planned(scenarios or ("one",), policies or DEFAULT_POLICIES, rounds, seed)
        made = comparing.begin(folder, made)
        comparing.run(folder, made, progress, began + 60.0 * minutes if minutes else float("inf"))
    found = results.summary(folder)
    if json_file:
        write_json(found, json_file)
        if json_file == "-":
            return
    if short := results.cut_short(found):
        click.echo(short)
    for table in tables(found):
        console().print(table)
    page = shlex.join(["slackwater", "lab", "report", "--compare", str(folder), "--out", str(folder / "page")])
    click.echo(f"figures: {page}")


SHOWN = (
    ("second_means_median_ms", "median of means/s ms", ".1f"),
    ("p50_ms", "p50 ms", ".1f"),
    ("p95_ms", "p95 ms", ".1f"),
    ("p99_ms", "p99 ms", ".1f"),
    ("errors_share", "errors", ".2%"),
    ("answers_s", "answer s", ".2f"),
    ("detected_s", "detected s", ".2f"),
)


def tables(found: dict[str, Any]) -> list[Table]:
    """A table a scenario: medians over the rounds, with 95% intervals."""
    made = []
    for scenario in dict.fromkeys(cell["scenario"] for cell in found["cells"]):
        table = Table("policy", "rounds", *(title for _, title, _ in SHOWN), title=scenario, box=None)
        for cell in found["cells"]:
            if cell["scenario"] == scenario:
                table.add_row(cell["policy"], str(cell["rounds"]), *(told(cell[key], form) for key, _, form in SHOWN))
        made.append(table)
    return made


def told(estimate: dict[str, Any] | None, form: str) -> str:
    """`12.3 [10.1, 14.9]`; `-` where there is none."""
    if estimate is None:
        return "-"
    if estimate["low"] is None:
        return format(estimate["value"], form)
    return f"{estimate['value']:{form}} [{estimate['low']:{form}}, {estimate['high']:{form}}]"


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
