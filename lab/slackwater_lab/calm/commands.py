"""The command `slackwater lab calm`."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from slackwater_lab.cells import Pieces
from slackwater_lab.cluster.lab import Lab, LabSettings
from slackwater_lab.cluster.terminal import console
from slackwater_lab.disturb.timetable import DISTURBANCES
from slackwater_lab.options import FOLDER, cluster_options, json_option, pieces_options, progress, write_json

if TYPE_CHECKING:
    from slackwater_lab.calm.data import Minute, View

FEW = 10
"""More hosts than this form pools of this size, and have small web servers."""


@click.command(
    epilog="Example: slackwater lab calm --hosts 40 --quota 0.2 --period-ms 100 --minutes 150 --seed 7"
    " --disturbance all --data docs/results/calm.jsonl --page docs/results/calm.md"
)
@cluster_options
@click.option("--pools", type=click.IntRange(1), help=f"The hosts are so many pools.  [default: of {FEW} hosts each]")
@click.option(
    "--minutes", type=click.IntRange(1), default=10, show_default=True, help="Total, including the minutes in --data."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Same seed, same load and disturbances.")
@click.option(
    "--disturbance",
    "disturbances",
    multiple=True,
    type=click.Choice([*DISTURBANCES, "all"]),
    help="Disturbance that is no neighbour; repeatable.",
)
@click.option(
    "--per-hour",
    type=click.IntRange(1),
    default=12,
    show_default=True,
    help="Disturbances of each kind, somewhere in the fleet.",
)
@click.option(
    "--load",
    type=click.FloatRange(0.01, 1),
    default=0.4,
    show_default=True,
    help="Share of this machine's processors that full load takes, within the quotas.",
)
@pieces_options("minutes that are measured", timed=False)
@click.option(
    "--view",
    type=click.Choice(["monitors", "balancer"]),
    default="monitors",
    show_default=True,
    help="What the hosts are judged by: monitors, or what their balancer sees, without any.",
)
@click.option("--recordings", type=FOLDER, help="Folder for a recording of each pool, labelled with the disturbances.")
@json_option
def calm(
    settings: LabSettings,
    pools: int | None,
    minutes: int,
    seed: int,
    disturbances: tuple[str, ...],
    per_hour: int,
    load: float,
    view: View,
    pieces: Pieces,
    recordings: Path | None,
    json_file: str | None,
) -> None:
    """Count false episodes while nobody is loud; ends with status 1 when there were any in time that counts.

    The load swings, and deploys, restarts and other disturbances are done where they are asked for. With --data it can
    be stopped at any time, and the same command goes on. Time in which the machine was overloaded does not count.

    More than 10 hosts have small web servers: an Apache with one process and two php-fpm children.
    """
    from slackwater_lab.calm import data, page
    from slackwater_lab.calm.plan import CalmPlan
    from slackwater_lab.calm.run import Calm, series_of
    from slackwater_lab.calm.summary import of_one_state, summary

    # The balancer sees no clock of a web server.
    every = tuple(kind for kind in DISTURBANCES if view == "monitors" or kind != "clock_step")
    kinds = every if "all" in disturbances else tuple(dict.fromkeys(disturbances))
    plan = CalmPlan(seed, kinds, per_hour, load, view)
    settings = replace(settings, pools=pools or math.ceil(settings.hosts / FEW))
    if settings.hosts > FEW:
        settings = replace(settings, mpm="event-small", php_children=2)
    measured = data.read(pieces.data) if pieces.data else []

    def keep(minute: Minute) -> None:
        measured.append(minute)
        pieces.keep(minute)
        _tell(minute)

    left = [] if pieces.replay else data.left(measured, series_of(settings, plan), minutes)
    try:
        if left:
            if len(left) < minutes:
                progress(f"going on: {minutes - len(left)} of {minutes} minutes are measured")
            with Lab(settings, progress) as cluster:
                Calm(cluster, plan, progress, keep, recordings).run(left)
    finally:
        pieces.write_page(partial(page.page, measured))
    total = summary(of_one_state(measured))
    if write_json(total, json_file):
        _show(of_one_state(measured))
    if total["rates"][0]["episodes"]:
        sys.exit(1)


def _tell(minute: Minute) -> None:
    """A line for the minute, and one for each state that began in time that counts."""
    from slackwater_lab.calm.data import NOTHING

    progress(
        f"minute {minute.minute}: {sum(minute.node_s.values()) / 3600:.2f} node-hours count,"
        f" {minute.overloaded_node_s / 3600:.2f} do not (machine overloaded), busy {max(minute.busy_shares):.0%} and"
        f" wait {max(minute.waits_ms):.2f} ms at most; {minute.requests} requests, {minute.errors} errors;"
        f" {', '.join(minute.disturbances) or 'no disturbance'}"
    )
    for began in (began for began in minute.began if began.counts):
        beside = "nothing was done" if began.beside == NOTHING else f"beside {began.beside}"
        true = ", and it was slow by itself" if began.was_slow else ""
        progress(f"  {began.node} {began.state} after {began.after_s:.1f} s, {beside}{true}: {'; '.join(began.why)}")
    if left_out := sum(not began.counts for began in minute.began):
        progress(f"  {left_out} states began in time that does not count")


def _show(minutes: Sequence[Minute]) -> None:
    from slackwater_lab.calm.summary import reached, summary

    total = summary(minutes)
    table = Table("beside what", "times", "node-days", "episodes", "a node-day", "95% interval", box=None)
    for row in total["rates"]:
        low_high = "-" if row["interval"] is None else "{:g} to {:g}".format(*row["interval"])
        rate = "-" if row["per_node_day"] is None else f"{row['per_node_day']:g}"
        table.add_row(
            row["beside"], str(row["times"] or "-"), f"{row['node_days']:.3f}", str(row["episodes"]), rate, low_high
        )
    console().print(table)
    if total["slow_by_itself"]:
        click.echo(f"called slow, and slow by themselves: {total['slow_by_itself']}")
    low, high = total["rates"][0]["interval"] or (0.0, float("inf"))
    click.echo(
        f"false episodes: {total['rates'][0]['episodes']} in {24 * total['rates'][0]['node_days']:.2f} node-hours"
        f" (95%: {low / 24:.3f} to {high / 24:.3f} a node-hour)"
    )
    click.echo(
        f"{total['minutes']} minutes; {total['overloaded_node_days']:.3f} node-days do not count (machine overloaded;"
        f" {total['episodes_while_overloaded']} episodes in them), {total['unjudged_node_days']:.3f} had no Verdict;"
        f" {total['errors']} errors in {total['requests']} requests; goal: {reached(total['rates'][0])}"
    )
