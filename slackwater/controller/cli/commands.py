"""The core's subcommands; `slackwater/controller/cli/main.py` has the table of all."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from slackwater.controller.cli.clients import login_name
from slackwater.controller.supervise.parts import read_settings
from slackwater.core import stopping
from slackwater.core.config import ConfigError, ControllerSettings, PoolSettings, load
from slackwater.core.last_settings import load_or_last
from slackwater.core.messages import Change, plain_text
from slackwater.core.options import all_pools_option, config_option, json_option, pool_option, tell, why_option

settings_fd_option = click.option(
    "--settings-fd", type=int, hidden=True, help="Descriptor of the settings in force, from `serve`."
)
SERVICES = {
    "journal": "slackwater.core.journal.service",
    "detector": "slackwater.detector.service",
    "lbengine": "slackwater.lbengine.service",
    "balancer_view": "slackwater.lbengine.view.service",
    "retune": "slackwater.retune.service",
    "governor": "slackwater.governor.service",
    "replace": "slackwater.replace.service",
    "web": "slackwater.web.service",
    "otlp": "slackwater.web.otlp.service",
}
"""What `serve` runs; each module has `async def run(settings)`."""


class RestoreError(Exception):
    """Pools could not be restored; the text has their names and the reasons."""


# --- the controller


@click.command(epilog="Example: slackwater serve --config /etc/slackwater/controller.toml")
@config_option
def serve(config_path: Path) -> None:
    """Run the controller until SIGTERM or Ctrl-C, then set the baseline weights.

    Starts a private nats-server (unless bus.url names one), the journal, the detector, lbengine, the second stage
    and the governor (unless their mode is off), what replaces machines (if replace.command names a program), the
    dashboard, and the sender to an OpenTelemetry collector (if otlp.endpoint names one), and restarts whatever dies.
    SIGHUP has it apply a changed configuration, as `slackwater reload` does. The exit status is 1 if it cannot start,
    or if the baseline weights could not be confirmed at the end.
    """
    from slackwater.controller.supervise import serve as supervisor

    log_to_stderr()
    keep_files_private()
    sys.exit(supervisor.serve(config_path))


@click.command(hidden=True, epilog="Example: slackwater run journal --config controller.toml")
@click.argument("name", type=click.Choice(list(SERVICES)))
@config_option
@settings_fd_option
def run(name: str, config_path: Path, settings_fd: int | None) -> None:
    """Run one part in this process, as `serve` does."""
    log_to_stderr()
    keep_files_private()
    settings = load(config_path) if settings_fd is None else read_settings(settings_fd, config_path)
    service = importlib.import_module(SERVICES[name])
    stopping.run(_until_stopped(service.run, settings))


@click.command(name="try-settings", hidden=True, epilog="Example: slackwater try-settings --part lbengine --pool web")
@config_option
@settings_fd_option
@click.option("--part", "parts", multiple=True, help="A part that is to run with the settings.")
@click.option("--pool", "pools", multiple=True, help="A pool whose balancer is examined.")
@click.option("--listen", default="", help="The dashboard's new address.")
def try_settings(
    config_path: Path, settings_fd: int | None, parts: tuple[str, ...], pools: tuple[str, ...], listen: str
) -> None:
    """Examine settings as far as that is possible without running them, for `serve`'s reload."""
    from slackwater.controller.supervise import trial

    log_to_stderr()
    settings = load(config_path) if settings_fd is None else read_settings(settings_fd, config_path)
    trial.try_settings(settings, parts, pools, listen)


async def _until_stopped(service: Callable[[ControllerSettings], Any], settings: ControllerSettings) -> None:
    """SIGTERM cancels the service, unless it puts its own handler in place of this one."""
    task = asyncio.ensure_future(service(settings))
    stopping.on_stop(task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        if not task.cancelled():
            raise


def keep_files_private() -> None:
    """From now on no other user may read what this process and its children make, as in the unit: a umask that keeps
    others out was chosen and stays; the usual 022 does not."""
    umask = os.umask(0o077)
    if umask & 0o007 == 0o007:
        os.umask(umask)


class OneLine(logging.Formatter):
    """Time, level, name, text. A line break within a name or a reason starts no new line."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return plain_text(super().formatMessage(record))


class ForJournald(OneLine):
    """journald has the time, and takes the level from the number in front: sd-daemon(3)."""

    LEVELS = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))

    def formatMessage(self, record: logging.LogRecord) -> str:
        number = next((number for level, number in self.LEVELS if record.levelno >= level), 7)
        return f"<{number}>{super().formatMessage(record)}"


def goes_to_journald(descriptor: int = 2) -> bool:
    """Whether systemd connected this descriptor with its journal: systemd.exec(5), JOURNAL_STREAM."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def log_to_stderr() -> None:
    handler = logging.StreamHandler()
    if goes_to_journald():
        handler.setFormatter(ForJournald("%(name)s: %(message)s"))
    else:
        handler.setFormatter(
            OneLine("%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s", datefmt="%Y-%m-%d %H:%M:%S")
        )
    logging.basicConfig(level=logging.INFO, handlers=[handler])


# --- restoring


@click.command(epilog='Example: slackwater restore --all --why "the controller is gone"')
@config_option
@pool_option("The pool; needed when there are several.")
@all_pools_option
@why_option()
@click.option(
    "--unless-driven",
    is_flag=True,
    help="Leave a pool alone that another host's controller drives, or takes over within 3 s. The unit does this.",
)
@click.option(
    "--state-dir",
    "folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="With --all: the controller's folder, if its file cannot be read and the folder is not the usual one.",
)
@json_option
def restore(
    config_path: Path,
    pool_name: str | None,
    every: bool,
    why: str,
    unless_driven: bool,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Set the baseline weights that are stored on disk, without a running controller.

    Stop `slackwater serve` first, or pause the pools: it would lower weights again. `--all` also finds pools that are
    not in the configuration any more, and needs none when it cannot be read.
    """
    from slackwater.controller.supervise.give_back import settings_for_restore
    from slackwater.core.service_user import become_owner_of
    from slackwater.core.state_dir import running_serve
    from slackwater.lbengine.restore import stored_elsewhere

    if every and pool_name:
        raise click.UsageError("--all and --pool exclude each other.")
    if folder and not every:
        raise click.UsageError("--state-dir needs --all.")
    keep_files_private()
    settings = settings_for_restore(config_path, folder) if every else load_or_last(config_path)
    elsewhere = stored_elsewhere(settings) if every else []
    pools = [*settings.pool, *elsewhere] if every else [settings.the_pool(pool_name)]
    serving = running_serve(settings.state_dir)
    if serving is not None and pools:
        which = f"--pool {pools[0].name}" if len(pools) == 1 else "--all"
        click.echo(
            f"warning: `slackwater serve` runs (pid {serving}) and may lower weights again where it is not paused;"
            f" `slackwater pause {which}` prevents that",
            err=True,
        )
    why = why or "`slackwater restore`"
    restored: list[Restored] = []
    for pool in pools:
        if pool in elsewhere:  # where it is says a file of the service's user
            become_owner_of(Path(settings.state_dir))
        restored.append(_restore_pool(settings, pool, why, unless_driven))
        if not as_json:
            _tell_restored(restored[-1])
    if as_json:
        click.echo(msgspec.json.encode({"pools": restored}).decode())
    if failed := [f"{result.pool}: {result.error}" for result in restored if result.error]:
        raise RestoreError("; ".join(failed))


class Restored(msgspec.Struct):
    """What was set back in a pool; `error`: why that is not all."""

    pool: str
    changes: list[Change]
    error: str = ""
    kept: list[str] = []
    """Servers that keep a weight which somebody else has set, in words."""


def _restore_pool(settings: ControllerSettings, pool: PoolSettings, why: str, unless_driven: bool) -> Restored:
    from slackwater.lbengine.balancer import BalancerError
    from slackwater.lbengine.baseline import BaselineError
    from slackwater.lbengine.leadership.another import left_to_another
    from slackwater.lbengine.restore import LeftOutError, has_stored
    from slackwater.lbengine.restore import restore as set_baseline

    kept: list[str] = []
    if unless_driven and has_stored(settings, pool) and (who := left_to_another(settings, pool)):
        return Restored(pool.name, [], "", [f"its weights are left as they are: {who}"])
    try:
        return Restored(pool.name, set_baseline(settings, pool, login_name(), why, kept.append), "", kept)
    except LeftOutError as error:
        return Restored(pool.name, error.changes, str(error), kept)
    except (BalancerError, BaselineError) as error:
        return Restored(pool.name, [], str(error), kept)


def _tell_restored(restored: Restored) -> None:
    """Prints what was restored for people; an error is told at the end."""
    for change in restored.changes:
        click.echo(f"{restored.pool}: {change.target} {change.before} -> {change.after}")
    for text in restored.kept:
        click.echo(f"{restored.pool}: {text}")
    if not restored.changes and not restored.error:
        click.echo(f"{restored.pool}: nothing to put back")


# --- configuration


@click.group(epilog="Example: slackwater config check /etc/slackwater/controller.toml")
def config() -> None:
    """Check a controller's configuration."""


@config.command(epilog="Example: slackwater config check /etc/slackwater/controller.toml")
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def check(file: Path, as_json: bool) -> None:
    """Check FILE: print OK, or FILE:LINE and the error (exit status 1).

    The balancer is not contacted; `slackwater serve` does that when it starts, and `slackwater check` at any time. The
    latter also says which balance algorithm works best with Slackwater.
    """
    try:
        load(file)
    except ConfigError as error:
        if as_json:
            click.echo(msgspec.json.encode({"ok": False, "error": str(error)}).decode())
            sys.exit(1)
        raise
    tell({"ok": True}, "OK", as_json)
