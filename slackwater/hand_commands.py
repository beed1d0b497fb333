"""What a person may ask of a running lbengine besides pause and resume; the dashboard's controls ask the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from slackwater.commands import ask_lbengine, asks_lbengine, seconds_of


@click.command(epilog='Example: slackwater mode observe --pool web --why "looking first"')
@click.argument("mode", type=click.Choice(["observe", "act"]))
@asks_lbengine
def mode(mode: Any, config_path: Path, pool_name: str | None, why: str) -> None:
    """Have the pool observe (baseline weights, decisions are only recorded) or act, also over a restart.

    Lasts until it is said otherwise, or the configuration's `mode` changes.
    """
    ask_lbengine("mode", config_path, pool_name, why, mode=mode)


@click.command(epilog="Example: slackwater pin web1 20 --for 30m")
@click.argument("server")
@click.argument("weight", type=click.IntRange(0, 65535))
@click.option("--for", "for_s", callback=seconds_of, default="10m", show_default=True, metavar="TIME", help="How long.")
@asks_lbengine
def pin(server: str, weight: int, for_s: float, config_path: Path, pool_name: str | None, why: str) -> None:
    """Hold SERVER at WEIGHT, at most its baseline, for a time; the guard's bounds still hold."""
    ask_lbengine("pin", config_path, pool_name, why, target=server, weight=weight, for_s=for_s)


@click.command(epilog="Example: slackwater unpin web1")
@click.argument("server")
@asks_lbengine
def unpin(server: str, config_path: Path, pool_name: str | None, why: str) -> None:
    """End SERVER's pin before its time."""
    ask_lbengine("unpin", config_path, pool_name, why, target=server)


@click.command(name="end-episode", epilog='Example: slackwater end-episode web1 --why "it is our own backup"')
@click.argument("node")
@asks_lbengine
def end_episode(node: str, config_path: Path, pool_name: str | None, why: str) -> None:
    """Treat NODE as calm until its present episode is over; the next one counts again."""
    ask_lbengine("end_episode", config_path, pool_name, why, target=node)


@click.command(name="ack", epilog="Example: slackwater ack web1 --why 'looking into it'")
@click.argument("node")
@asks_lbengine
def acknowledge(node: str, config_path: Path, pool_name: str | None, why: str) -> None:
    """Say that you have seen NODE's episode; it changes nothing but the log."""
    ask_lbengine("acknowledge", config_path, pool_name, why, target=node)
