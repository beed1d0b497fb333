"""What a person may ask of a running lbengine; the dashboard's controls ask the same."""

from __future__ import annotations

from typing import Any

import click

from slackwater.cli.remote import Site, reaches_a_site
from slackwater.options import Command, pool_option, seconds_of, why_option


def asks_lbengine(command: Command) -> Command:
    """The options of a command that asks something of a pool's lbengine."""
    return reaches_a_site(pool_option("The pool; needed when there are several.")(why_option()(command)))


@click.command(epilog='Example: slackwater pause --pool web --why "deploy of 14:00"')
@asks_lbengine
def pause(site: Site, pool_name: str | None, why: str) -> None:
    """Set the baseline weights and keep hands off the pool until `resume`, also over a restart."""
    click.echo(site.ask(pool_name, action="pause", why=why))


@click.command(epilog="Example: slackwater resume --pool web")
@asks_lbengine
def resume(site: Site, pool_name: str | None, why: str) -> None:
    """Take up the work again after `pause`."""
    click.echo(site.ask(pool_name, action="resume", why=why))


@click.command(epilog='Example: slackwater mode observe --pool web --why "looking first"')
@click.argument("mode", type=click.Choice(["observe", "act"]))
@asks_lbengine
def mode(mode: Any, site: Site, pool_name: str | None, why: str) -> None:
    """Have the pool observe (baseline weights, decisions are only recorded) or act, also over a restart.

    Lasts until it is said otherwise, or the configuration's `mode` changes.
    """
    click.echo(site.ask(pool_name, action="mode", why=why, mode=mode))


@click.command(epilog="Example: slackwater pin web1 20 --for 30m")
@click.argument("server")
@click.argument("weight", type=click.IntRange(0, 65535))
@click.option("--for", "for_s", callback=seconds_of, default="10m", show_default=True, metavar="TIME", help="How long.")
@asks_lbengine
def pin(server: str, weight: int, for_s: float, site: Site, pool_name: str | None, why: str) -> None:
    """Hold SERVER at WEIGHT, at most its baseline, for a time; the guard's bounds still hold."""
    click.echo(site.ask(pool_name, action="pin", why=why, target=server, weight=weight, for_s=for_s))


@click.command(epilog="Example: slackwater unpin web1")
@click.argument("server")
@asks_lbengine
def unpin(server: str, site: Site, pool_name: str | None, why: str) -> None:
    """End SERVER's pin before its time."""
    click.echo(site.ask(pool_name, action="unpin", why=why, target=server))


@click.command(name="end-episode", epilog='Example: slackwater end-episode web1 --why "it is our own backup"')
@click.argument("node")
@asks_lbengine
def end_episode(node: str, site: Site, pool_name: str | None, why: str) -> None:
    """Treat NODE as calm until its present episode is over; the next one counts again."""
    click.echo(site.ask(pool_name, action="end_episode", why=why, target=node))


@click.command(name="ack", epilog="Example: slackwater ack web1 --why 'looking into it'")
@click.argument("node")
@asks_lbengine
def acknowledge(node: str, site: Site, pool_name: str | None, why: str) -> None:
    """Say that you have seen NODE's episode; it changes nothing but the log."""
    click.echo(site.ask(pool_name, action="acknowledge", why=why, target=node))
