"""The command `slackwater lab evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from slackwater_lab.cells import Pieces
from slackwater_lab.cluster.lab import LabSettings
from slackwater_lab.cluster.machines import HostKind
from slackwater_lab.cluster.terminal import console
from slackwater_lab.options import DEFAULT_QUOTA_CORES, FOLDER, HostsParam, pieces_options, progress

if TYPE_CHECKING:
    from slackwater_lab.compare.blocks import Piece
    from slackwater_lab.compare.measured import Measured


@click.command(
    epilog="Example: slackwater lab evaluate --out evaluation-run --data docs/results/evaluation.jsonl --page"
    " docs/results/evaluation.md --minutes 50"
)
@click.option("--out", type=FOLDER, help="Folder of the runs' recordings.")
@pieces_options("runs that are measured")
@click.option("--scenario", "scenarios", multiple=True, help="Measure only these; repeatable.  [default: all]")
@click.option("--variant", "variants", multiple=True, help="Measure only these; repeatable.  [default: all]")
@click.option(
    "--hosts", type=click.Choice(HostsParam.kinds), default="cgroup", show_default=True, help="Kind of the hosts."
)
@click.option("--plan", "planned", is_flag=True, help="Only print the runs that are left, and their expected time.")
def evaluate(
    out: Path | None,
    pieces: Pieces,
    scenarios: tuple[str, ...],
    variants: tuple[str, ...],
    hosts: HostKind,
    planned: bool,
) -> None:
    """Measure what the evaluation's data file lacks, on any day and machine, and write its page.

    A block is one round of one scenario with all its variants in random order. The same command goes on where it was;
    with other variants it goes on in the same blocks. Needs root and a quiet machine, except with --plan and --replay.
    """
    from slackwater_lab.compare import blocks, evaluation, evaluation_page, measured

    if pieces.data is None or (pieces.page is None and not planned):
        raise click.UsageError(f"--{'page' if pieces.data else 'data'} is missing: expected --data and --page")
    if out is None and not planned and not pieces.replay:
        raise click.UsageError("--out is missing: the folder of the runs' recordings")
    all_runs = measured.read(pieces.data)
    question = evaluation.question()
    left = blocks.left(all_runs, question, blocks.here(hosts), question.only(scenarios, variants))
    if planned:
        _show(left, all_runs)
        return
    try:
        if out is not None and not pieces.replay:
            settings = LabSettings(quota_cores=DEFAULT_QUOTA_CORES[hosts], kind=hosts)
            count = blocks.Blocks(out, pieces.data, settings, progress).run(left, all_runs, pieces.until_mono_s)
            click.echo(f"{count} runs are left; the same command goes on" if count else "everything is measured")
    finally:
        pieces.write_page(partial(evaluation_page.page, measured.read(pieces.data)))


def _show(pieces: Sequence[Piece], measured: Sequence[Measured]) -> None:
    from slackwater_lab.compare.blocks import about_s

    table = Table("scenario", "rounds", "runs", "about min", title="left", box=None)
    whole_s = 0.0
    for name in dict.fromkeys(piece.block.scenario for piece in pieces):
        of_scenario = [piece for piece in pieces if piece.block.scenario == name]
        runs = sum(len(piece.left) for piece in of_scenario)
        took_s = runs * about_s(measured, of_scenario[0].block)
        whole_s += took_s
        table.add_row(name, str(len(of_scenario)), str(runs), f"{took_s / 60:.0f}")
    console().print(table)
    runs = sum(len(piece.left) for piece in pieces)
    click.echo(f"together {runs} runs, about {whole_s / 3600:.1f} hours; {len(measured)} runs are measured")
