"""The command `slackwater lab cost`."""

from __future__ import annotations

from dataclasses import replace

import click
from rich.table import Table

from slackwater_lab.cluster.lab import Lab, LabSettings
from slackwater_lab.cluster.terminal import console
from slackwater_lab.options import app_option, hosts_options, json_option, progress, write_json
from slackwater_lab.stories import own_cost as story


@click.command(epilog="Example: slackwater lab cost --load 0.8 --rounds 5 --off canary --off traffic --json cost.json")
@hosts_options
@app_option
@click.option(
    "--load",
    type=click.FloatRange(0.01, 0.95),
    default=0.8,
    show_default=True,
    help="Share of their CPU that the hosts use without monitors.",
)
@click.option("--seconds", type=click.FloatRange(3), default=15.0, show_default=True, help="Length of each run.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--off", multiple=True, metavar="NAME", help="Also with monitors without this collector; repeatable.")
@click.option("--capture", is_flag=True, help="Also with monitors that capture, and with `tcpdump` alone.")
@click.option("--seed", type=int, default=1, show_default=True, help="Decides the order in each round.")
@json_option
def cost(
    settings: LabSettings,
    app: str,
    load: float,
    seconds: float,
    rounds: int,
    off: tuple[str, ...],
    capture: bool,
    seed: int,
    json_file: str | None,
) -> None:
    """Show what monitors cost the web servers: stock leastconn with them and without, round by round."""
    test = story.OwnCostTest(load, seconds, rounds, off, capture, seed)
    with Lab(replace(settings, app=app, balance="leastconn"), progress) as cluster:
        result = story.run(cluster, test, progress)
    if not write_json(result, json_file):
        return
    title = f"{app}, {load:.0%} load, {result['rate_rps']:g} requests/s, {rounds} rounds"
    table = Table("", *story.COLUMNS, title=title)
    for row in result["rows"]:
        table.add_row(*story.cells(row))
    console().print(table)
