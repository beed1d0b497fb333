"""The command `slackwater lab evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from slackwater_lab.cells import until
from slackwater_lab.cluster.lab import LabSettings
from slackwater_lab.cluster.machines import HostKind
from slackwater_lab.cluster.terminal import console
from slackwater_lab.options import DEFAULT_QUOTA_CORES, HostsParam, progress

if TYPE_CHECKING:
    from slackwater_lab.compare.blocks import Piece
    from slackwater_lab.compare.measured import Measured

FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(
    epilog="Example: slackwater lab evaluate --out evaluation-run --data docs/results/evaluation.jsonl --page"
    " docs/results/evaluation.md --minutes 50"
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Folder of the runs' recordings.")
@click.option("--data", type=FILE, required=True, help="Each finished run is a line here; what it has is not repeated.")
@click.option("--page", type=FILE, help="The page to write.")
@click.option("--minutes", type=click.FloatRange(0.1), help="Begin no run that would end later; go on another time.")
@click.option("--scenario", "scenarios", multiple=True, help="Only this one; again for more.  [default: all]")
@click.option("--variant", "variants", multiple=True, help="Only this one; again for more.  [default: all]")
@click.option("--hosts", type=click.Choice(HostsParam.kinds), default="cgroup", show_default=True, help="Their kind.")
@click.option("--plan", "planned", is_flag=True, help="Only print what is left, and about how long it takes.")
@click.option("--replay", is_flag=True, help="Only write the page again, from the data file alone.")
def evaluate(
    out: Path | None,
    data: Path,
    page: Path | None,
    minutes: float | None,
    scenarios: tuple[str, ...],
    variants: tuple[str, ...],
    hosts: HostKind,
    planned: bool,
    replay: bool,
) -> None:
    """Measure what the evaluation's data file lacks, on any day and machine, and write its page.

    A block is one round of one scenario with all its variants in random order. The same command goes on where it was;
    with other variants it goes on in the same blocks. Needs root and a quiet machine, except with --plan and --replay.
    """
    from slackwater_lab.compare import blocks, evaluation, evaluation_page, measured

    if page is None and not planned:
        raise click.UsageError("--page is missing: the page to write")
    if out is None and not planned and not replay:
        raise click.UsageError("--out is missing: the folder of the runs' recordings")
    found = measured.read(data)
    whole = evaluation.question()
    pieces = blocks.left(found, whole, blocks.here(hosts), whole.only(scenarios, variants))
    if planned:
        _show(pieces, found)
        return
    assert page is not None
    try:
        if out is not None and not replay:
            settings = LabSettings(quota_cores=DEFAULT_QUOTA_CORES[hosts], kind=hosts)
            left = blocks.Blocks(out, data, settings, progress).run(pieces, found, until(minutes))
            click.echo(f"{left} runs are left; the same command goes on" if left else "everything is measured")
    finally:
        evaluation_page.write(measured.read(data), data, page)


def _show(pieces: Sequence[Piece], found: Sequence[Measured]) -> None:
    from slackwater_lab.compare.blocks import about_s

    table = Table("scenario", "rounds", "runs", "about min", title="left", box=None)
    whole_s = 0.0
    for name in dict.fromkeys(piece.block.scenario for piece in pieces):
        mine = [piece for piece in pieces if piece.block.scenario == name]
        runs = sum(len(piece.left) for piece in mine)
        took_s = runs * about_s(found, mine[0].block)
        whole_s += took_s
        table.add_row(name, str(len(mine)), str(runs), f"{took_s / 60:.0f}")
    console().print(table)
    runs = sum(len(piece.left) for piece in pieces)
    click.echo(f"together {runs} runs, about {whole_s / 3600:.1f} hours; {len(found)} runs are measured")
