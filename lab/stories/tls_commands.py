"""`slackwater lab tls`: how far the sniffer's figures of encrypted connections can be trusted."""

from __future__ import annotations

from dataclasses import replace

import click
from rich.table import Table

from lab.cluster.lab import Lab, LabSettings
from lab.cluster.terminal import console
from lab.options import cluster_options, json_option, noise_options, progress, write_json
from lab.stories import tls as story


@click.command(epilog="Example: slackwater lab tls --load 0.3 --load 0.6 --seconds 10 --json tls.json")
@cluster_options
@noise_options
@click.option(
    "--load",
    "shares",
    multiple=True,
    type=click.FloatRange(0.01, 1),
    default=(0.3, 0.6),
    show_default=True,
    help="Of the capacity over kept connections; again for more.",
)
@click.option("--seconds", type=click.FloatRange(1), default=10.0, show_default=True, help="Length of each phase.")
@json_option
def tls(
    settings: LabSettings,
    noise: str,
    intensity: float,
    shares: tuple[float, ...],
    seconds: float,
    json_file: str | None,
) -> None:
    """Compare the sniffer's response times with HAProxy's and the load generator's, with TLS to the web servers."""
    with Lab(replace(settings, tls=True), progress) as cluster:
        result = story.run(cluster, story.TlsTest(shares, seconds, noise, intensity), progress)
    if json_file:
        write_json(result, json_file)
        if json_file == "-":
            return
    table = Table("phase", *story.COLUMNS, title=f"TLS from HAProxy to Apache: {settings.app}")
    for phase in result["phases"]:
        table.add_row(*story.row(phase))
    console().print(table)
