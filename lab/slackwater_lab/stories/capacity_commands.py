"""`slackwater lab capacity`: estimated capacities against measured ones."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from slackwater.detector.classify import tree
from slackwater.detector.recordings.recording import RecordingError
from slackwater_lab.cluster.lab import Lab, LabSettings
from slackwater_lab.cluster.noise import NOISES
from slackwater_lab.cluster.stress import STRESSORS
from slackwater_lab.cluster.terminal import console
from slackwater_lab.options import cluster_options, json_option, progress, write_json
from slackwater_lab.stories import capacity as story
from slackwater_lab.stories import capacity_errors

LOADS = (0.2, 0.4, 0.6, 0.8)
TAKEN = (0.25, 0.5, 0.7, 0.85)


@click.command(epilog="Example: slackwater lab capacity --load 0.2 --load 0.6 --taken 0.5 --json capacity.json")
@cluster_options
@click.option(
    "--load",
    "loads",
    multiple=True,
    type=click.FloatRange(0.01, 0.95),
    help=f"Share of the pool's capacity; repeatable.  [{LOADS}]",
)
@click.option(
    "--taken",
    "taken",
    multiple=True,
    type=click.FloatRange(0, 0.95),
    help=f"Share of a host's CPU that a neighbour takes, 0 for none; repeatable.  [{TAKEN}]",
)
@click.option("--noise", type=click.Choice([*NOISES, *STRESSORS]), default="cpu", show_default=True)
@click.option(
    "--calm-seconds", type=click.FloatRange(5), default=20.0, show_default=True, help="Length of the calm at each load."
)
@click.option("--seconds", type=click.FloatRange(3), default=10.0, show_default=True, help="Length of each state.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for the Samples; the states go beside it as JSON.",
)
@click.option(
    "--from",
    "recordings",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Only replay this recording of --out; repeatable.",
)
@json_option
def capacity(
    settings: LabSettings,
    loads: tuple[float, ...],
    taken: tuple[float, ...],
    noise: str,
    calm_seconds: float,
    seconds: float,
    out: Path | None,
    recordings: tuple[Path, ...],
    json_file: str | None,
) -> None:
    """Compare the estimated capacity of a host with the rate at which it answers clients that ask it directly."""
    model = tree.load(tree.SHIPPED)
    rows: list[dict[str, Any]] = []
    if recordings:
        try:
            for path in recordings:
                compared = capacity_errors.compare(*capacity_errors.load_states(path), model)
                rows += [{"recording": path.stem, **row} for row in compared]
        except RecordingError as error:
            sys.exit(str(error))
        result: dict[str, Any] = {}
    else:
        test = story.CapacityTest(loads or LOADS, taken or TAKEN, noise, calm_seconds, seconds)
        with Lab(replace(settings, by_event=False), progress) as cluster:
            result, recording, states = story.run(cluster, test, out, progress)
        rows = capacity_errors.compare(recording, states, model)
    result |= {"compared": rows, "summary": capacity_errors.summary(rows)}
    if not write_json(result, json_file):
        return
    table = Table(*capacity_errors.COLUMNS, title="capacity in requests/s: measured, and estimated by the detector")
    for cells in capacity_errors.table_rows(rows):
        table.add_row(*cells)
    console().print(table)
    for name, value in result["summary"].items():
        click.echo(f"{name.replace('_', ' ')}: {value}")
