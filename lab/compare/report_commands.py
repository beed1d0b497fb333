"""The command `slackwater lab report`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from lab.cluster.terminal import console
from lab.options import progress

FILE = click.Path(exists=True, path_type=Path)


@click.command(epilog="Example: slackwater lab report --compare compared --simulated simulated.json --out report")
@click.option("--evaluation", type=FILE, help="Folder of `slackwater lab evaluate`: all its parts.")
@click.option("--compare", "comparisons", multiple=True, type=FILE, help="Folder of `slackwater lab compare`; again.")
@click.option(
    "--simulated", multiple=True, type=FILE, help="Again for more: what `slackwater lab simulate --json` wrote."
)
@click.option("--grid", type=FILE, help="Folder of `slackwater lab grid`.")
@click.option("--streaming", type=FILE, help="What tests/lab/test_compare_streaming.py wrote to $STREAMING_JSON.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder for the page.")
@click.option("--json", "as_json", is_flag=True, help="Print the report's data as JSON.")
def report(
    evaluation: Path | None,
    comparisons: tuple[Path, ...],
    simulated: tuple[Path, ...],
    grid: Path | None,
    streaming: Path | None,
    out: Path,
    as_json: bool,
) -> None:
    """Write the evaluation's page and figures, and print its goals: reached or not, in one table."""
    from detector.service import choose_model
    from lab.compare import report as reports
    from lab.compare import whole
    from lab.compare.parts import Parts
    from slackwater.config import DetectorSettings

    if evaluation is not None and (comparisons or grid or streaming):
        raise click.UsageError("--evaluation has comparisons, grid and streaming service of its own")
    if evaluation is not None:
        parts = whole.parts(evaluation, simulated)
    elif comparisons or simulated or grid or streaming:
        parts = Parts(comparisons, simulated, grid, streaming)
    else:
        raise click.UsageError("nothing to report on: give --evaluation, --compare, --grid, --streaming or --simulated")
    found = reports.write(parts, out, choose_model(DetectorSettings()), progress)
    if as_json:
        click.echo((out / reports.DATA).read_text(), nl=False)
        return
    show(found)
    click.echo(f"{out / reports.PAGE}")


def show(found: dict[str, Any]) -> None:
    """The goals on the terminal, and first of all what is missing."""
    if found["cut_short"]:
        click.echo(found["cut_short"])
    table = Table("what", "goal", "found", "", "the oracle", box=None, title=found["cut_short"].split(";")[0] or None)
    for goal in found["goals"]:
        table.add_row(*(goal[key] for key in ("what", "goal", "found", "state", "oracle")))
    console().print(table)
