"""The commands of `slackwater governor` on simulated machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click
from rich.table import Table

from governor.power import CURVES, DEFAULT
from lab.cluster.terminal import console
from lab.governor import core_switch, estimators, heimdall_table, hurry_up, neighbours, pareto
from lab.governor.figures import COLUMNS, Figure, cells
from lab.options import json_option, progress, write_json

Compare = Callable[[Sequence[int], str, Callable[[str], None]], list[Figure]]
TABLES: dict[str, Compare] = {
    "core-switch": core_switch.compare,
    "estimators": estimators.compare,
    "heimdall": heimdall_table.compare,
    "hurry-up": hurry_up.compare,
    "neighbours": neighbours.compare,
    "pareto": pareto.compare,
}
"""Name -> its figures for some seeds and a power model."""
SEEDS = 5


@click.command(epilog="Example: slackwater governor compare --table pareto --seeds 5 --json pareto.json")
@click.option("--table", "name", type=click.Choice(list(TABLES)), required=True, help="Which paper's.")
@click.option("--seeds", type=click.IntRange(1), default=SEEDS, show_default=True, help="Runs of each policy.")
@click.option(
    "--curve", type=click.Choice(list(CURVES)), default=DEFAULT, show_default=True, help="Of the power model."
)
@json_option
def compare(name: str, seeds: int, curve: str, json_file: str | None) -> None:
    """Simulate a paper's table: medians over the seeds, beside its numbers and what they may differ by."""
    figures = TABLES[name](range(1, seeds + 1), curve, progress)
    if json_file:
        write_json(
            {"table": name, "seeds": seeds, "curve": curve, "figures": [one.as_json() for one in figures]}, json_file
        )
        if json_file == "-":
            return
    table = Table(*COLUMNS, title=f"{name}: {seeds} seeds, power model {curve}")
    for figure in figures:
        table.add_row(*cells(figure))
    console().print(table)
    claimed = [one.reached() for one in figures if one.reached() is not None]
    click.echo(f"{sum(map(bool, claimed))} of {len(claimed)} claims reached")
