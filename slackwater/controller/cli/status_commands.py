"""Commands that show the state of pools: `status`, `log`, `why`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from slackwater.controller.cli.clients import ClientError, ControllerClient, client_options, pool_with
from slackwater.core.options import at_option, pool_option, seconds_of

if TYPE_CHECKING:
    from slackwater.core.messages import Change

GOVERNOR_LOOK_BACK_S, GOVERNOR_LOOKS_AT, GOVERNOR_SHOWS = 3600.0, 1000, 6
MOST_REPLACE, REPLACE_SHOWS, WARM_UP_SHOWS = 1000, 6, 6
"""For the governor's part of `why`: how far back it looks, at how many Changes at most, and how many decisions it
shows."""
REFRESH_EVERY_S = 0.5
MOST_AT_ONCE = 10_000


@click.command(epilog="Example: slackwater status --pool web --watch")
@client_options
@pool_option("Only this pool.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
@click.option("--watch", is_flag=True, help="Refresh twice a second until Ctrl-C.")
def status(client: ControllerClient, pool_name: str | None, as_json: bool, watch: bool) -> None:
    """Show each server's state, weight and load, and why.

    Old data is marked STALE; the exit status is 0 all the same. It is 1 if there is no journal.
    """
    from slackwater.controller.cli import tables

    if as_json and watch:
        raise click.UsageError("--json and --watch exclude each other.")

    def read() -> list[tables.PoolStatus]:
        return client.views(pool_name)

    if as_json:
        click.echo(tables.as_json(read(), client.now_unix_s()))
    elif watch:
        tables.watch(read, client.now_unix_s, REFRESH_EVERY_S)
    else:
        tables.show(read(), client.now_unix_s())


@click.command(name="log", epilog="Example: slackwater log --since 10m --follow")
@client_options
@pool_option("Only this pool.")
@click.option("--since", "since_s", callback=seconds_of, metavar="AGO", help="Nothing older: 30s, 10m, 2h, 1d.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=100, show_default=True, metavar="N", help="Only the newest N."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for programs.")
@click.option("--follow", is_flag=True, help="Wait for more until Ctrl-C.")
def log(
    client: ControllerClient, pool_name: str | None, since_s: float | None, limit: int, as_json: bool, follow: bool
) -> None:
    """Show every change with its reason, the oldest first.

    A line with `would` is from observe mode: it was decided but not done.
    """
    from slackwater.controller.cli import tables

    since_unix_s = None if since_s is None else client.now_unix_s() - since_s
    write = tables.change_as_json if as_json else tables.change_as_line

    shown: list[Change] = list(reversed(client.changes(pool_name, limit, since_unix_s)))
    for change in shown:
        click.echo(write(change))
    if not shown and not as_json:
        click.echo("no change yet" if since_s is None else "no change in this time", err=True)
    if not follow:
        return
    # Changes of several writers may come a little out of order: look back some seconds, leave out what was shown.
    seen = {change.id: change.time_unix_s for change in shown}
    newest_unix_s = shown[-1].time_unix_s if shown else since_unix_s or client.now_unix_s()
    try:
        while True:
            time.sleep(REFRESH_EVERY_S)
            for change in reversed(client.changes(pool_name, MOST_AT_ONCE, newest_unix_s - 10.0)):
                if change.id not in seen:
                    click.echo(write(change))
                    seen[change.id] = change.time_unix_s
                    newest_unix_s = max(newest_unix_s, change.time_unix_s)
            seen = {key: unix_s for key, unix_s in seen.items() if unix_s >= newest_unix_s - 10.0}
    except KeyboardInterrupt:
        return


def no_episode(node: str, pool: str, at_unix_s: float | None) -> str:
    """The sentence for a node that had no episode then."""
    return f"{node} ({pool}): no episode {'within a week' if at_unix_s is None else 'then, or within a minute'}"


def refuse_unknown(client: ControllerClient, pool: str, node: str) -> None:
    """Raises ClientError where the pool's servers are known, and none of them has this name."""
    from slackwater.views.row import listed

    rows = [row for view in client.views(pool) for row in view.rows]
    if rows and not any(node in (row.node, row.server) for row in rows):
        raise ClientError(
            f"{pool} has no server `{node}` and no episode of one; it has: {listed([row.node for row in rows], 8)}"
        )


@click.command(epilog="Example: slackwater why web1")
@click.argument("node")
@client_options
@pool_option("The pool; needed when several have a server of this name.")
@at_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
def why(node: str, client: ControllerClient, pool_name: str | None, at_unix_s: float | None, as_json: bool) -> None:
    """Show NODE's last episode: why it began, what was done about it, and the outcome.

    Where its weight in calm is not its baseline (`balance_capacity`) the reason follows. So do the last restarts.
    Where the governor gives Orders, or records what it would set, its last decisions follow. So do the last
    replacements of the node's machine.
    """
    import msgspec

    from slackwater.controller.cli import tables
    from slackwater.core.messages import GOVERNOR
    from slackwater.views import why as stories

    pool, episode = client.episode(pool_name or pool_with(client, node), node, at_unix_s)
    if episode is None:
        refuse_unknown(client, pool, node)
    if as_json:
        click.echo(msgspec.json.encode(episode).decode())
    elif episode is None:
        click.echo(no_episode(node, pool, at_unix_s))
    else:
        click.echo(stories.as_text(episode))
    if not as_json:
        rows = [row for view in client.views(pool) for row in view.rows if node in (row.node, row.server)]
        for row in rows:
            if row.full_weight != row.baseline:
                calm = f"its weight in calm is {row.full_weight} of {row.baseline}"
                click.echo(f"{node} ({pool}): {calm}; now: {row.summary}")
        recent = client.changes(pool, GOVERNOR_LOOKS_AT, client.now_unix_s() - GOVERNOR_LOOK_BACK_S)
        servers = {node, *(row.server for row in rows)}
        came_up = [change for change in recent if change.cause in ("away", "warm_up") and change.target in servers]
        if came_up:
            click.echo(f"{node} ({pool}): the last times it went away or came up")
        for change in reversed(came_up[:WARM_UP_SHOWS]):
            click.echo(f"  {tables.change_as_line(change)}")
        of_governor = [change for change in recent if (change.by, change.target) == (GOVERNOR, node)][:GOVERNOR_SHOWS]
        if of_governor:
            click.echo(f"{node} ({pool}): the governor's last decisions")
        for change in reversed(of_governor):
            click.echo(f"  {tables.change_as_line(change)}")
        of_machine = [change for change in client.changes(pool, MOST_REPLACE, None, "replace") if change.target == node]
        if of_machine:
            click.echo(f"{node} ({pool}): the last replacements of its machine")
        for change in reversed(of_machine[:REPLACE_SHOWS]):
            click.echo(f"  {tables.change_as_line(change)}")


@click.command(epilog="Example: slackwater week --days 30 --pool web")
@client_options
@pool_option("Only this pool.")
@click.option(
    "--days", type=click.IntRange(1, 90), default=7, show_default=True, metavar="N", help="So many days until now."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
def week(client: ControllerClient, pool_name: str | None, days: int, as_json: bool) -> None:
    """Show what it would have done in a week: episodes, harm avoided, false alarms, and what acting would change.

    Harm is the time in which the p95 over all requests is above `target_p95_ms`, or above twice the p95 of the calm
    before. What would have been avoided comes from the predictions that lbengine recorded.
    """
    import msgspec

    from slackwater.controller.cli import week_text

    report = client.week(pool_name, days)
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    else:
        week_text.show(report)
