"""The command `slackwater lab compare`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from slackwater_lab.cells import Pieces
from slackwater_lab.cluster.lab import LabSettings
from slackwater_lab.cluster.terminal import console
from slackwater_lab.compare.defaults import DEFAULT_POLICIES, DEFAULT_ROUNDS, DEFAULT_SCENARIOS, usual_first
from slackwater_lab.compare.tables import REFERENCE, SHOWN, with_interval, worst
from slackwater_lab.options import FILE, FOLDER, hosts_options, json_option, pieces_options, progress, write_json

if TYPE_CHECKING:
    from slackwater_lab.compare.blocks import Piece, Question
    from slackwater_lab.compare.measured import Measured


@click.command(
    epilog="Example: slackwater lab compare --haproxy haproxy-3.4 --data docs/results/evaluation.jsonl --page"
    " docs/results/evaluation.md --minutes 40"
)
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    help=f"Such as two+cpu@30: two, by `cpu`, at 30% load. Repeatable.  [default: {', '.join(DEFAULT_SCENARIOS)}]",
)
@click.option("--policy", "policies", multiple=True, help=f"Repeatable.  [default: {', '.join(DEFAULT_POLICIES)}]")
@click.option("--random", "drawn", type=click.IntRange(1), help="Number of scenarios drawn from --seed.")
@click.option(
    "--rounds",
    type=click.IntRange(1),
    help=f"Number of blocks of each scenario.  [default: {DEFAULT_ROUNDS}, with --random 1]",
)
@click.option("--list", "listed", is_flag=True, help="Show scenarios and policies, and end.")
@click.option("--plan", "planned", is_flag=True, help="Show the runs that are left and their expected time, and end.")
@pieces_options("runs that are measured")
@click.option("--out", type=FOLDER, help="Folder for each run's recording: requests, weights, Samples, Verdicts.")
@click.option(
    "--also",
    multiple=True,
    type=FILE,
    help="Data file of runs on another HAProxy, which get a section of the page. Repeatable.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Decides the order.")
@hosts_options
@json_option
def compare(
    settings: LabSettings,
    pieces: Pieces,
    out: Path | None,
    scenarios: tuple[str, ...],
    policies: tuple[str, ...],
    drawn: int | None,
    also: tuple[Path, ...],
    rounds: int | None,
    seed: int,
    listed: bool,
    planned: bool,
    json_file: str | None,
) -> None:
    """Measure policies against each other in one lab that stays up, and write the page of it.

    In a round each policy has its turn, in random order, in which it plays all scenarios. Each run is a line of the
    data file at once, and the same command goes on where it was interrupted. Needs root and a quiet machine, except
    with --plan and --replay.
    """
    from slackwater_lab.compare import blocks, comparison_page, measured
    from slackwater_lab.experiment.drawn import names

    if listed:
        _show_tables()
        return
    if pieces.data is None:
        raise click.UsageError("--data is missing: the file that the comparison is recorded in")
    if drawn and scenarios:
        raise click.UsageError("--random draws the scenarios: expected no --scenario with it")
    all_runs, _ = measured.parted(measured.read(pieces.data))
    asked = tuple(names(seed, drawn)) if drawn else scenarios
    rounds = rounds or (1 if drawn else DEFAULT_ROUNDS)
    if pieces.replay:  # without names: what the file holds
        asked = asked or usual_first((run.scenario for run in all_runs), DEFAULT_SCENARIOS)
        policies = policies or usual_first((run.variant for run in all_runs), DEFAULT_POLICIES)
    question = blocks.Question(asked or DEFAULT_SCENARIOS, policies or DEFAULT_POLICIES, rounds, seed)
    left = blocks.left(all_runs, question, blocks.here(settings.kind))
    if planned:
        _show_plan(left, all_runs)
        return
    try:
        if not pieces.replay:
            blocks.refuse_other_hosts(all_runs, settings)
            count = blocks.Blocks(out, pieces.data, settings, progress).run(left, all_runs, pieces.until_mono_s)
            progress(f"{count} runs are left; the same command goes on" if count else "everything is measured")
    finally:
        carried, overloaded = measured.parted(filter(question.asks_for, measured.read(pieces.data)))
        runs = sorted(carried, key=question.place)
        others = {str(path): measured.parted(measured.read(path))[0] for path in also}
        pieces.write_page(partial(comparison_page.page, runs, overloaded=overloaded, others=others))
    _show(runs, question, json_file, drawn=bool(drawn))


def _show(runs: Sequence[Measured], question: Question, json_file: str | None, *, drawn: bool) -> None:
    from slackwater_lab.compare import results

    complete = len(runs) >= question.runs
    cells = results.cells(runs)
    facts = {"complete": complete, "runs": len(runs), "runs_planned": question.runs, "cells": cells}
    facts |= {key: list(dict.fromkeys(getattr(run, key) for run in runs)) for key in ("commit", "capacity_rps")}
    if not write_json(facts | {"machine": runs[0].machine if runs else None}, json_file):
        return
    if not complete:
        click.echo(f"CUT SHORT: {len(runs)} of {question.runs} runs; what follows is of these only")
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


def _show_plan(pieces: Sequence[Piece], measured: Sequence[Measured]) -> None:
    from slackwater_lab.compare.blocks import left_s

    table = Table("scenario", "blocks", "runs", "about min", title="left", box=None)
    for name in dict.fromkeys(piece.block.scenario for piece in pieces):
        of_scenario = [piece for piece in pieces if piece.block.scenario == name]
        runs = sum(len(piece.left) for piece in of_scenario)
        table.add_row(name, str(len(of_scenario)), str(runs), f"{left_s(measured, of_scenario) / 60:.0f}")
    console().print(table)
    runs = sum(len(piece.left) for piece in pieces)
    click.echo(
        f"together {runs} runs, about {left_s(measured, pieces) / 60:.0f} min; {len(measured)} runs are measured"
    )


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
