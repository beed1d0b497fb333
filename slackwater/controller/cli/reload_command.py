"""`slackwater reload`: has a running `serve` apply a changed file, and waits for what becomes of it."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import click
import msgspec

from slackwater.controller.supervise.reload import ReloadOutcome
from slackwater.core.last_settings import state_dirs_of
from slackwater.core.messages import plain_text
from slackwater.core.options import config_option
from slackwater.core.state_dir import is_alive, read_serve, running_serve, send_signal

ANSWERS_WITHIN_S = 300.0
LOOK_EVERY_S = 0.1


class ReloadError(Exception):
    """Nothing was reloaded; the text has the reason."""


@click.command(epilog="Example: slackwater reload")
@config_option
@click.option(
    "--state-dir", type=click.Path(path_type=Path), help="The controller's folder, if the file does not name it."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for programs.")
def reload(config_path: Path, state_dir: Path | None, as_json: bool) -> None:
    """Have the running controller apply its changed configuration, and print what changed.

    All or nothing: if anything is wrong with the file, or a part does not work with it, the previous settings stay in
    force and the exit status is 1. Parts that the changes do not concern run on. A change of state_dir or of the bus
    needs a restart, and is refused. Run it as root or as the controller's user.
    """
    folder, pid = _running(config_path, state_dir)
    outcome = _ask(folder, pid)
    if as_json:
        click.echo(msgspec.json.encode(outcome, order="sorted").decode())
        sys.exit(1 if outcome.error else 0)
    if outcome.error:
        raise ReloadError(f"refused, the previous settings stay in force: {_plain(outcome.error)}")
    for difference in outcome.changed:
        click.echo(_plain(str(difference)))
    if not outcome.changed:
        click.echo("nothing differs from the settings in force")
    else:
        click.echo(f"started anew: {', '.join(outcome.restarted) or 'nothing'}")


def _plain(text: str) -> str:
    """The words of another user's file, line by line, for root's terminal."""
    return "\n".join(map(plain_text, text.splitlines()))


def _running(config_path: Path, state_dir: Path | None) -> tuple[Path, int]:
    """The folder and the pid of the `serve` that runs with this file. Raises ReloadError."""
    folders = state_dirs_of(config_path, state_dir)
    for folder in folders:
        described = read_serve(folder) or {}
        pid = running_serve(str(folder))
        if pid is not None and described.get("pid") == pid and described.get("config") == str(config_path.absolute()):
            return folder, pid
    where = " or ".join(map(str, folders))
    file = config_path.absolute()
    raise ReloadError(f"no `slackwater serve` runs with {file} and its state in {where}; see --state-dir")


def _ask(folder: Path, pid: int) -> ReloadOutcome:
    """Sends SIGHUP and waits for the outcome of a reload that began afterwards. Raises ReloadError."""
    asked_s = time.monotonic()
    try:
        send_signal(folder, pid, signal.SIGHUP)
    except PermissionError:
        raise ReloadError(f"process {pid} is another user's: run it as root or as the controller's user") from None
    while time.monotonic() < asked_s + ANSWERS_WITHIN_S:
        last = (read_serve(folder) or {}).get("reloads", {}).get("last")
        outcome = msgspec.convert(last, ReloadOutcome) if last else None
        if outcome is not None and outcome.began_s >= asked_s:
            return outcome
        if not is_alive(pid):
            raise ReloadError("`slackwater serve` ended meanwhile")
        time.sleep(LOOK_EVERY_S)
    raise ReloadError(f"`slackwater serve` (pid {pid}) did not answer within {ANSWERS_WITHIN_S:g} s; see its log")
