"""The core's subcommands; `slackwater/cli.py` has the table of all."""

from __future__ import annotations

import asyncio
import getpass
import importlib
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from slackwater.config import ControllerSettings, PoolSettings, load

if TYPE_CHECKING:
    from slackwater.control import Action
    from slackwater.journal import Journal
    from slackwater.messages import Change

DEFAULT_CONFIG = "/etc/slackwater/controller.toml"
SERVICES = {
    "journal": "slackwater.journal_service",
    "detector": "detector.service",
    "lbengine": "lbengine.service",
    "retune": "retune.service",
    "web": "web.service",
}
"""What `serve` runs; each module has `async def run(settings)`."""
LOOK_EVERY_S = 0.5


class RestoreError(Exception):
    """Pools could not be put back; the text says which and why."""


Command = TypeVar("Command", bound=Callable[..., Any])

config_option = click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
    envvar="SLACKWATER_CONFIG",
    default=DEFAULT_CONFIG,
    show_default=True,
    show_envvar=True,
    help="The controller's configuration.",
)


def pool_option(help_text: str) -> Callable[[Command], Command]:
    return click.option("--pool", "pool_name", metavar="NAME", help=help_text)


def why_option() -> Callable[[Command], Command]:
    return click.option("--why", default="", metavar="TEXT", help="The reason, for the log.")


def asks_lbengine(command: Command) -> Command:
    """The options of a command that asks something of a pool's lbengine: --config, --pool, --why."""
    return config_option(pool_option("The pool; needed when there are several.")(why_option()(command)))


# --- the controller


@click.command(epilog="Example: slackwater serve --config /etc/slackwater/controller.toml")
@config_option
def serve(config_path: Path) -> None:
    """Run the controller until SIGTERM or Ctrl-C; then set the baseline weights and end.

    Starts a private nats-server (unless bus.url names one), the journal, the detector, lbengine, the second stage
    (unless retune.mode is off) and the dashboard, and starts again what dies. Exit status 1 when it cannot start, or
    when the baseline weights could not be confirmed at the end.
    """
    from slackwater import serve as supervisor

    log_to_stderr()
    settings = load(config_path)
    sys.exit(supervisor.serve(settings, config_path))


@click.command(hidden=True, epilog="Example: slackwater run journal --config controller.toml")
@click.argument("name", type=click.Choice(list(SERVICES)))
@config_option
def run(name: str, config_path: Path) -> None:
    """Run one part in this process, as `serve` does."""
    log_to_stderr()
    settings = load(config_path)
    service = importlib.import_module(SERVICES[name])
    asyncio.run(_until_told_to_stop(service.run, settings))


async def _until_told_to_stop(service: Callable[[ControllerSettings], Any], settings: ControllerSettings) -> None:
    """SIGTERM cancels the service, unless it puts its own handler in place of this one."""
    task = asyncio.ensure_future(service(settings))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        if not task.cancelled():
            raise


class OneLine(logging.Formatter):
    """Time, level, name, text. What a name or a reason brings along cannot start a line of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return super().formatMessage(record).replace("\r", "\\r").replace("\n", "\\n")


class ForJournald(OneLine):
    """journald has the time, and takes the level from the number in front: sd-daemon(3)."""

    LEVELS = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))

    def formatMessage(self, record: logging.LogRecord) -> str:
        number = next((number for level, number in self.LEVELS if record.levelno >= level), 7)
        return f"<{number}>{super().formatMessage(record)}"


def goes_to_journald(descriptor: int = 2) -> bool:
    """Whether systemd connected this descriptor with its journal: systemd.exec(5), JOURNAL_STREAM."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def log_to_stderr() -> None:
    handler = logging.StreamHandler()
    if goes_to_journald():
        handler.setFormatter(ForJournald("%(name)s: %(message)s"))
    else:
        handler.setFormatter(
            OneLine("%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s", datefmt="%Y-%m-%d %H:%M:%S")
        )
    logging.basicConfig(level=logging.INFO, handlers=[handler])


# --- looking


@contextmanager
def _journal(settings: ControllerSettings) -> Iterator[Journal]:
    from slackwater.journal import Journal, journal_path

    with Journal.open(journal_path(settings.state_dir), read_only=True) as journal:
        yield journal


@click.command(epilog="Example: slackwater status --pool web --watch")
@config_option
@pool_option("Only this pool.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
@click.option("--watch", is_flag=True, help="Show it again twice a second until Ctrl-C.")
def status(config_path: Path, pool_name: str | None, as_json: bool, watch: bool) -> None:
    """Show each server's state, weight and load, and why.

    Old data is said to be old; the exit status is 0 all the same. It is 1 when there is no journal.
    """
    from slackwater import tables
    from slackwater.view import pool_view

    if as_json and watch:
        raise click.UsageError("--json and --watch exclude each other.")
    settings = load(config_path)
    pools = [settings.the_pool(pool_name)] if pool_name else settings.pool
    with _journal(settings) as journal:

        def look() -> list[tables.PoolView]:
            return [pool_view(journal, pool.name, time.time(), pool.servers) for pool in pools]

        if as_json:
            click.echo(tables.as_json(look(), time.time()))
        elif watch:
            tables.watch(look, LOOK_EVERY_S)
        else:
            tables.show(look(), time.time())


def seconds_of(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """`30s`, `10m`, `2h`, `1d`, in seconds."""
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text)
    if found is None:
        expected = "expected a number and s, m, h or d, such as 30s, 10m, 2h, 1d"
        raise click.BadParameter(f"{text!r} is no duration; {expected}", context, parameter)
    return float(found.group(1)) * {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}[found.group(2)]


@click.command(name="log", epilog="Example: slackwater log --since 10m --follow")
@config_option
@pool_option("Only this pool.")
@click.option("--since", "since_s", callback=seconds_of, metavar="AGO", help="Not older than this: 30s, 10m, 2h, 1d.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=100, show_default=True, metavar="N", help="The newest N only."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for programs.")
@click.option("--follow", is_flag=True, help="Then wait for more, until Ctrl-C.")
def log(
    config_path: Path, pool_name: str | None, since_s: float | None, limit: int, as_json: bool, follow: bool
) -> None:
    """Show every change with its reason, the oldest first.

    A line with `would` is of observe mode: it was decided and not done.
    """
    from slackwater import tables

    settings = load(config_path)
    pool = settings.the_pool(pool_name).name if pool_name else None
    since_unix_s = None if since_s is None else time.time() - since_s
    write = tables.change_as_json if as_json else tables.change_as_line

    with _journal(settings) as journal:
        shown: list[Change] = list(reversed(journal.changes(pool, limit, since_unix_s)))
        for change in shown:
            click.echo(write(change))
        if not follow:
            return
        # Changes of several writers may come a little out of order: look back some seconds, leave out what was shown.
        seen = {change.id: change.time_unix_s for change in shown}
        newest_unix_s = shown[-1].time_unix_s if shown else since_unix_s or time.time()
        try:
            while True:
                time.sleep(LOOK_EVERY_S)
                for change in reversed(journal.changes(pool, 10_000, newest_unix_s - 10.0)):
                    if change.id not in seen:
                        click.echo(write(change))
                        seen[change.id] = change.time_unix_s
                        newest_unix_s = max(newest_unix_s, change.time_unix_s)
                seen = {key: at for key, at in seen.items() if at >= newest_unix_s - 10.0}
        except KeyboardInterrupt:
            return


@click.command(epilog="Example: slackwater why web1")
@click.argument("node")
@config_option
@pool_option("The pool; needed when there are several.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
def why(node: str, config_path: Path, pool_name: str | None, as_json: bool) -> None:
    """Tell the story of NODE's last episode: why it began, what was done about it, and what came of that."""
    import msgspec

    from slackwater import why as stories

    settings = load(config_path)
    pool = settings.the_pool(pool_name)
    with _journal(settings) as journal:
        told = stories.story(journal, pool.name, pool.servers.get(node, node), pool.servers, time.time())
    if as_json:
        click.echo(msgspec.json.encode(told).decode())
    elif told is None:
        click.echo(f"{node} ({pool.name}): no episode within a week")
    else:
        click.echo(stories.as_text(told))


# --- taking part


@click.command(epilog='Example: slackwater pause --pool web --why "deploy of 14:00"')
@asks_lbengine
def pause(config_path: Path, pool_name: str | None, why: str) -> None:
    """Set the baseline weights and keep hands off the pool until `resume`, also over a restart."""
    ask_lbengine("pause", config_path, pool_name, why)


@click.command(epilog="Example: slackwater resume --pool web")
@asks_lbengine
def resume(config_path: Path, pool_name: str | None, why: str) -> None:
    """Take up the work again after `pause`."""
    ask_lbengine("resume", config_path, pool_name, why)


def ask_lbengine(action: Action, config_path: Path, pool_name: str | None, why: str, **more: Any) -> None:
    from slackwater.control import Request, ask_once

    settings = load(config_path)
    pool = settings.the_pool(pool_name)
    click.echo(ask_once(settings.bus, pool.name, Request(action=action, by=login_name(), why=why, **more)))


def login_name() -> str:
    """Who asks: behind sudo the person, not root."""
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in some containers
        return f"uid {os.getuid()}"


@click.command(epilog='Example: slackwater restore --pool web --why "the controller is gone"')
@config_option
@pool_option("The pool; needed when there are several.")
@click.option("--all", "every", is_flag=True, help="All pools, each whatever became of the others.")
@why_option()
def restore(config_path: Path, pool_name: str | None, every: bool, why: str) -> None:
    """Set the baseline weights by hand, as they are on disk; needs no running controller."""
    from slackwater.state_dir import running_serve

    if every and pool_name:
        raise click.UsageError("--all and --pool exclude each other.")
    settings = load(config_path)
    pools = settings.pool if every else [settings.the_pool(pool_name)]
    serving = running_serve(settings.state_dir)
    if serving is not None:
        click.echo(
            f"warning: `slackwater serve` runs (pid {serving}) and may lower weights again;"
            f" `slackwater pause --pool {pools[0].name}` keeps it from that",
            err=True,
        )
    failed = [f"{pool.name}: {text}" for pool in pools if (text := _restore_pool(settings, pool, why or "by hand"))]
    if failed:
        raise RestoreError("; ".join(failed))


def _restore_pool(settings: ControllerSettings, pool: PoolSettings, why: str) -> str:
    """Sets and prints; returns why it could not, or an empty text."""
    from lbengine.baseline import BaselineError
    from lbengine.restore import restore as set_baseline
    from lbengine.snapshot import BalancerError

    try:
        changes = set_baseline(settings, pool, login_name(), why)
    except (BalancerError, BaselineError) as error:
        return str(error)
    for change in changes:
        click.echo(f"{pool.name}: {change.target} {change.before} -> {change.after}")
    if not changes:
        click.echo(f"{pool.name}: nothing to put back")
    return ""


# --- configuration


@click.group(epilog="Example: slackwater config check /etc/slackwater/controller.toml")
def config() -> None:
    """Check a controller's configuration."""


@config.command(epilog="Example: slackwater config check /etc/slackwater/controller.toml")
@click.argument("file", type=click.Path(path_type=Path))
def check(file: Path) -> None:
    """Read FILE and print OK, or FILE:LINE and what is wrong there (exit status 1).

    The balancer is not asked; `slackwater serve` does that at its start.
    """
    load(file)
    click.echo("OK")
