"""The command `slackwater lab balancer-view`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from slackwater_lab.balancer_view import measure
from slackwater_lab.balancer_view.front import SHAPES
from slackwater_lab.cluster.lab import Lab, LabSettings
from slackwater_lab.cluster.paths import BIN
from slackwater_lab.cluster.terminal import shown
from slackwater_lab.options import app_option, hosts_options, json_option, progress, write_json


@click.command("balancer-view", epilog="Example: slackwater lab balancer-view --json view.json")
@hosts_options
@app_option
@click.option("--sniffer", default=str(BIN / "slackwater-sniffer"), help="Path of the command.")
@click.option("--seconds", type=click.FloatRange(2), default=6.0, show_default=True, help="Length of each run.")
@click.option("--rounds", type=click.IntRange(1), default=2, show_default=True, help="Of the cost.")
@click.option("--episodes", type=click.IntRange(1), default=6, show_default=True, help="Neighbours at each rate.")
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    type=click.Choice([shape.name for shape in SHAPES]),
    help="Exactness in this shape; again for more  [default: all]",
)
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(measure.PARTS),
    help="Only this part; again for more  [default: all]",
)
@json_option
def balancer_view(
    settings: LabSettings,
    app: str,
    sniffer: str,
    seconds: float,
    rounds: int,
    episodes: int,
    shapes: tuple[str, ...],
    parts: tuple[str, ...],
    json_file: str | None,
) -> None:
    """Compare three ways to know servers from the balancer: its counters, packets, and a table in HAProxy.

    Prints how exact each is beside the load generator, what it costs, and how soon it shows a neighbour, as tables in
    Markdown.
    """
    names = shapes or tuple(shape.name for shape in SHAPES)
    test = measure.ViewTest(
        sniffer, seconds=seconds, rounds=rounds, episodes=episodes, shapes=names, parts=parts or measure.PARTS
    )
    with Lab(replace(settings, app=app), progress) as cluster:
        result = measure.run(cluster, test, progress)
    if not write_json(result, json_file):
        return
    for part, as_table in (("exactness", exactness), ("cost", cost), ("onset", onset), ("size", sizes)):
        if part in result:
            click.echo(as_table(result[part]))


def _table(head: tuple[str, ...], rows: list[list[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def exactness(runs: list[dict[str, Any]]) -> str:
    """p50, p95 and p99 of each way, and its count beside the generator's."""
    head = ("shape", "requests", "mean ms", "p50 ms", "p95 ms", "p99 ms", "packets", "table", "counters")
    ways = (measure.PACKETS, measure.TABLE, measure.COUNTERS)
    rows = []
    for run in runs:
        truth, cells = run["truth"], [run["shape"], str(run["requests"])]
        for key in ("mean", "p50", "p95", "p99"):
            values = [run.get(way, {}).get(key) for way in ways]
            cells.append(f"{truth[key]:.2f}: " + ", ".join(shown(value, ".2f") for value in values))
        counts = [run.get(way, {}).get("requests") for way in ways]
        cells += [shown(None if count is None else count / run["requests"], ".3f") for count in counts]
        rows.append(cells)
    return _table(head, rows)


def cost(rows: list[dict[str, Any]]) -> str:
    head = ("requests/s", "way", "HAProxy, us a request", "the way itself", "both, over nothing", "hosts, us a request")
    nothing = {row["rate_rps"]: row["haproxy_us"] for row in rows if row["variant"] == measure.VARIANTS[0]}
    return _table(
        head,
        [
            [
                f"{row['rate_rps']:g}",
                row["variant"],
                f"{row['haproxy_us']:.1f}",
                f"{row['own_us']:.1f}",
                f"{row['haproxy_us'] + row['own_us'] - nothing[row['rate_rps']]:+.1f}",
                f"{row['hosts_us']:.0f}",
            ]
            for row in rows
            if "haproxy_us" in row
        ],
    )


def onset(rows: list[dict[str, Any]]) -> str:
    head = ("requests/s a server", "way", "median s", "worst s", "missed", "false in calm")
    return _table(
        head,
        [
            [
                f"{row['server_rps']:g}",
                row["way"],
                shown(row["median_s"], ".2f"),
                shown(row["worst_s"], ".2f"),
                f"{row['missed']} of {len(row['delays_s'])}",
                f"{row['false_in_calm']} in {row['calm_s']:.0f} s",
            ]
            for row in rows
        ],
    )


def sizes(rows: list[dict[str, Any]]) -> str:
    head = ("servers", "what", "ms of HAProxy", "ms of the reader", "of a core at 5 looks a second")
    return _table(
        head,
        [
            [
                str(row["servers"]),
                row["what"],
                f"{row['haproxy_ms']:.1f}",
                f"{row['own_ms']:.1f}",
                f"{(row['haproxy_ms'] + row['own_ms']) * 5 / 1000:.1%}",
            ]
            for row in rows
        ],
    )
