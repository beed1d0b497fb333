"""The command `slackwater lab grid`."""

from __future__ import annotations

import time
from pathlib import Path

import click
from rich.table import Table

from lab.cluster.noise import NOISES
from lab.cluster.stress import STRESSORS
from lab.cluster.terminal import console
from lab.options import json_option, progress, write_json


@click.command(epilog="Example: slackwater lab grid --out grid --rounds 3")
@click.option("--out", "folder", type=click.Path(file_okay=False, path_type=Path), required=True, help="Its folder.")
@click.option("--workers", multiple=True, type=click.IntRange(1), help="MaxRequestWorkers; again for more.")
@click.option("--children", multiple=True, type=click.IntRange(1), help="pm.max_children; again for more.")
@click.option("--noise", type=click.Choice([*NOISES, *STRESSORS]), default="llcprobe", show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=1, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True, help="Of the order of the cells.")
@click.option("--minutes", type=click.FloatRange(0.1), help="Begin no cell that would end later; go on another time.")
@click.option("--replay", is_flag=True, help="Only tell again what the folder holds.")
@json_option
def grid(
    folder: Path,
    workers: tuple[int, ...],
    children: tuple[int, ...],
    noise: str,
    rounds: int,
    seed: int,
    minutes: float | None,
    replay: bool,
    json_file: str | None,
) -> None:
    """Measure MaxClients x pm.max_children, calm and beside a neighbour, on a real Apache with php-fpm.

    The same command goes on where it was interrupted. Needs root, except with --replay.
    """
    from lab.compare import grid as grids

    began = time.monotonic()
    if not replay:
        asked = grids.question(rounds, seed, workers or grids.WORKERS, children or grids.CHILDREN, noise)
        asked = grids.begin(folder, asked)
        grids.run(folder, asked, progress, began + 60.0 * minutes if minutes else float("inf"))
    found = grids.summary(folder)
    if json_file:
        write_json(found, json_file)
        if json_file == "-":
            return
    if not found["complete"]:
        click.echo(f"CUT SHORT: {found['cells_done']} of {found['cells_planned']} cells; what follows is of these only")
    told = grids.medians(grids.rows(folder), "mean_ms")
    asked = grids.load(folder)
    for phase in grids.PHASES:
        title = f"{phase}: mean response time, ms (p95 in brackets)"
        table = Table("MaxClients", *(f"{one} children" for one in asked.children), title=title, box=None)
        p95 = grids.medians(grids.rows(folder), "p95_ms")[phase]
        for one in asked.workers:
            cells = [(one, other) for other in asked.children]
            row = [f"{told[phase][cell]:.1f} ({p95[cell]:.0f})" if cell in told[phase] else "-" for cell in cells]
            table.add_row(str(one), *row)
        console().print(table)
