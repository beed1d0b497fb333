"""The command `slackwater lab compare`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from slackwater_lab.cells import until
from slackwater_lab.cluster.lab import LabSettings
from slackwater_lab.cluster.terminal import console
from slackwater_lab.compare.tables import REFERENCE, SHOWN, with_interval, worst
from slackwater_lab.options import hosts_options, json_option, minutes_option, out_option, progress, write_json

DEFAULT_POLICIES = ("static", "leastconn", "slackwater", "slackwater-lc", "oracle")
DATA = "runs.jsonl"


@click.command(epilog="Example: slackwater lab compare --out one --scenario one --policy static --policy slackwater")
@click.option(
    "--scenario", "scenarios", multiple=True, help="Such as two+cpu@30: two, by `cpu`, at 30% load. Repeatable."
)
@click.option("--policy", "policies", multiple=True, help=f"Repeatable.  [default: {', '.join(DEFAULT_POLICIES)}]")
@click.option("--random", "drawn", type=click.IntRange(1), help="Number of scenarios drawn from --seed.")
@click.option("--rounds", type=click.IntRange(1), help="[default: 5, with --random 1]")
@click.option("--list", "listed", is_flag=True, help="Show scenarios and policies, and end.")
@out_option
@click.option("--seed", type=int, default=1, show_default=True, help="Decides the order.")
@minutes_option
@click.option("--replay", is_flag=True, help="Only print the tables again, from the folder's data.")
@hosts_options
@json_option
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
    """Measure policies against each other: scenarios x policies x rounds, recorded in a folder.

    A block is one round of one scenario, its policies in random order. Each run is a line of FOLDER/runs.jsonl at once,
    and the same command goes on where it was interrupted. Needs root, except with --replay.
    """
    from slackwater_lab.compare import blocks, measured, results
    from slackwater_lab.experiment.drawn import names

    if listed:
        _show_tables()
        return
    if folder is None:
        raise click.UsageError("--out is missing: the folder that the comparison is recorded in")
    if drawn and scenarios:
        raise click.UsageError("--random draws the scenarios: expected no --scenario with it")
    data = folder / DATA
    all_runs = measured.read(data)
    asked = names(seed, drawn) if drawn else scenarios
    rounds = rounds or (1 if drawn else 5)
    if replay:  # without names: what the folder holds
        asked = asked or list(dict.fromkeys(run.scenario for run in all_runs))
        policies = policies or tuple(dict.fromkeys(run.variant for run in all_runs))
    question = blocks.Question(dict.fromkeys(asked or ("one",), policies or DEFAULT_POLICIES), rounds, seed)
    if not replay:
        blocks.refuse_other_hosts(all_runs, settings)
        pieces = blocks.left(all_runs, question, blocks.here(settings.kind))
        blocks.Blocks(folder, data, settings, progress).run(pieces, all_runs, until(minutes))
        all_runs = measured.read(data)
    runs = [run for run in all_runs if question.asks_for(run)]
    planned = rounds * sum(map(len, question.variants.values()))
    complete = len(runs) >= planned
    cells = results.cells(runs)
    facts = {"complete": complete, "runs": len(runs), "runs_planned": planned, "cells": cells}
    facts |= {key: list(dict.fromkeys(getattr(run, key) for run in runs)) for key in ("commit", "capacity_rps")}
    if not write_json(facts | {"machine": runs[0].machine if runs else None}, json_file):
        return
    if not complete:
        click.echo(f"CUT SHORT: {len(runs)} of {planned} runs; what follows is of these only")
    players = dict.fromkeys(cell["policy"] for cell in cells)
    shown = [worst(cells, name) for name in players if name != REFERENCE] if drawn else tables(cells)
    for table in shown:
        console().print(table)


def tables(cells: Sequence[dict[str, Any]]) -> list[Table]:
    """A table a scenario: medians over the rounds, with 95% intervals."""
    result = []
    for scenario in dict.fromkeys(cell["scenario"] for cell in cells):
        table = Table("policy", "rounds", *(title for _, title, _ in SHOWN), title=scenario, box=None)
        for cell in cells:
            if cell["scenario"] == scenario:
                table.add_row(
                    cell["policy"], str(cell["rounds"]), *(with_interval(cell[key], form) for key, _, form in SHOWN)
                )
        result.append(table)
    return result


def _show_tables() -> None:
    from slackwater_lab.experiment.policies import POLICIES
    from slackwater_lab.experiment.scenarios import ELSEWHERE, SCENARIOS

    table = Table("scenario", "what", box=None)
    for name, scenario in SCENARIOS.items():
        table.add_row(name, scenario.description)
    for name, why in ELSEWHERE.items():
        table.add_row(name, f"not run: {why}")
    console().print(table)
    table = Table("policy", "balance", "source", box=None)
    for name, policy in POLICIES.items():
        table.add_row(name, policy.balance, policy.source)
    console().print(table)
