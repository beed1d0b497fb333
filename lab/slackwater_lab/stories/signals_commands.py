"""The command `slackwater lab signals`."""

from __future__ import annotations

from dataclasses import replace

import click
from rich.table import Table

from slackwater_lab.cluster.lab import Lab, LabSettings
from slackwater_lab.cluster.noise import NOISES
from slackwater_lab.cluster.stress import STRESSORS
from slackwater_lab.cluster.terminal import console, shown
from slackwater_lab.options import cluster_options, json_option, progress, write_json
from slackwater_lab.stories import signals as story

CHANGED = 1.15
"""The printed table has the signals whose ratio is this far from 1; the JSON has all."""


@click.command(epilog="Example: slackwater lab signals --hosts uml --noise llcprobe --load 0.4 --json signals.json")
@cluster_options
@click.option(
    "--noise",
    "kinds",
    multiple=True,
    type=click.Choice([*NOISES, *STRESSORS]),
    help="Kind of neighbour; repeatable.  [default: llcprobe]",
)
@click.option(
    "--lost",
    type=click.FloatRange(0.1, 0.9),
    default=0.5,
    show_default=True,
    help="Share of the capacity that the neighbour takes.",
)
@click.option(
    "--load",
    "loads",
    multiple=True,
    type=click.FloatRange(0.01, 0.95),
    help="Share of the capacity; repeatable.  [default: 0.4]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(3),
    default=15.0,
    show_default=True,
    help="Length of the calm, and of the time beside it.",
)
@json_option
def signals(
    settings: LabSettings,
    kinds: tuple[str, ...],
    lost: float,
    loads: tuple[float, ...],
    seconds: float,
    json_file: str | None,
) -> None:
    """Show what a neighbour does to each signal of a host: medians, and the ratio to calm with its range."""
    test = story.SignalsTest(kinds or ("llcprobe",), lost, loads or (0.4,), seconds)
    with Lab(replace(settings, by_event=False), progress) as cluster:
        result = story.run(cluster, test, progress)
    if not write_json(result, json_file):
        return
    for state in result["states"]:
        taken = state["taken"]
        words = f"{taken['kind']} takes {taken['measured']:.0%}, load {state['load']:.0%}"
        title = f"{words}, {result['machine']['hypervisor']}"
        table = Table("signal", "calm", "beside", "times calm", "p10 to p90", title=title)
        for row in state["signals"]:
            ratio = row["ratio"]
            if (ratio is None and row["beside"]) or (ratio is not None and not 1 / CHANGED < ratio < CHANGED):
                span = "-" if ratio is None else f"{row['ratio_low']:.2f} to {row['ratio_high']:.2f}"
                table.add_row(row["signal"], f"{row['calm']:.4g}", f"{row['beside']:.4g}", shown(ratio, ".2f"), span)
        console().print(table)
