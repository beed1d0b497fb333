"""The command `slackwater lab report`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Table

from lab.terminal import console

FILE = click.Path(exists=True, path_type=Path)


@click.command(epilog="Example: slackwater lab report --compare compared --simulated simulated.json --out report")
@click.option("--compare", "comparisons", multiple=True, type=FILE, help="Folder of `slackwater lab compare`; again.")
@click.option(
    "--simulated", multiple=True, type=FILE, help="Again for more: what `slackwater lab simulate --json` wrote."
)
@click.option("--grid", type=FILE, help="Folder of `slackwater lab grid`.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder for the page.")
@click.option("--json", "as_json", is_flag=True, help="Print the report's data as JSON.")
def report(
    comparisons: tuple[Path, ...], simulated: tuple[Path, ...], grid: Path | None, out: Path, as_json: bool
) -> None:
    """Write the evaluation's page and figures, and print its goals: reached or not, in one table."""
    from detector.service import choose_model
    from evaluation import report as reports
    from lab.commands import say
    from slackwater.config import DetectorSettings

    if not comparisons and not simulated and grid is None:
        raise click.UsageError("nothing to report on: give --compare, --grid or --simulated")
    parts = reports.Parts(comparisons, simulated, grid)
    found = reports.write(parts, out, choose_model(DetectorSettings()), say)
    if as_json:
        click.echo((out / reports.DATA).read_text(), nl=False)
        return
    table = Table("what", "goal", "found", "", box=None)
    for goal in found["goals"]:
        table.add_row(*(goal[key] for key in ("what", "goal", "found", "state")))
    console().print(table)
    click.echo(f"{out / reports.PAGE}")
