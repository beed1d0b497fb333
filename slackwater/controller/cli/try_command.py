"""`slackwater try`: a recorded cluster through the real detector, lbengine and dashboard."""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from slackwater.core.options import Number

if TYPE_CHECKING:
    from slackwater.controller.playback.events import Event

SPEED = 1.0
INSTALL = "docs/operations/install.md"


class _Stopped(BaseException):
    """A signal that ends the command came."""


def _stop(*_: object) -> NoReturn:
    raise _Stopped


@click.command(name="try", epilog="Example: slackwater try --speed 10 --once")
@click.option(
    "--speed",
    type=Number(0.1, 1000.0),
    default=SPEED,
    show_default=True,
    metavar="TIMES",
    help="How many times faster than it happened; 1 is real time.",
)
@click.option("--once", is_flag=True, help="Not again and again; the page stays at the end of the recording.")
@click.option("--port", type=click.IntRange(1, 65535), help="The page's port.  [default: 8099, else a free one]")
@click.option("--no-page", is_flag=True, help="No page; play it once, and end.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each event, for programs.")
def try_recording(speed: float, once: bool, port: int | None, no_page: bool, as_json: bool) -> None:
    """Play a recorded cluster: what would have been done, and why.

    Needs no root, no cluster and no configuration, and changes nothing. The recording is 50 s of three web servers of
    a laboratory, with a noisy neighbour beside one of them five times. The detector, lbengine in observe mode, the
    journal and the dashboard are the real ones. It is played again and again, and the page stays, until Ctrl-C.
    """
    if no_page and port is not None:
        raise click.UsageError("--no-page and --port exclude each other.")
    heard = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN
    ]
    before = {number: signal.signal(number, _stop) for number in heard}
    try:
        with tempfile.TemporaryDirectory(prefix="slackwater-try-") as folder, ExitStack() as parts:
            try:
                _play(Path(folder), parts, speed, once or no_page, port, no_page, as_json)
            finally:
                for number in before:  # the folder is removed whole
                    signal.signal(number, signal.SIG_IGN)
    except _Stopped:
        if not as_json:
            click.echo("\nEnded; nothing is left behind.")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _play(
    folder: Path, parts: ExitStack, speed: float, once: bool, port: int | None, no_page: bool, as_json: bool
) -> None:
    """Plays until the recording is over, again and again unless `once`, and with a page until a signal."""
    import msgspec

    from slackwater.controller.playback.clock import Clock, Pace
    from slackwater.controller.playback.events import Again, End, Next, Page, Plays, lines
    from slackwater.controller.playback.pool import RecordedPool
    from slackwater.core.config import ControllerSettings
    from slackwater.detector.recordings import compact

    def tell(event: Event) -> None:
        for line in [msgspec.json.encode(event).decode()] if as_json else lines(event):
            click.echo(line)
        sys.stdout.flush()

    recording, kinds = compact.read(compact.SHIPPED)
    settings = ControllerSettings(pool=[RecordedPool(name=recording.samples[0].pool)], state_dir=str(folder))
    clock = Clock(recording.received_unix_s[0])
    plays = Plays(seconds=recording.seconds, speed=speed, again=not once, stays=not no_page)
    if not no_page:
        from slackwater.controller.playback import page
        from slackwater.core.journal.journal import Journal, journal_path

        Journal.open(journal_path(folder), clock=clock).close()
        tell(Page(url=parts.enter_context(page.serving(settings, page.free_port(port), clock, plays))))
    tell(plays)

    from slackwater.controller.playback.rounds import rounds  # takes a second: the page's address stands there by then

    pace = Pace(speed)
    for event in rounds(recording, kinds, settings, clock, pace.wait, again=not once):
        tell(event)
        if isinstance(event, Again):
            pace.begin_again()
        if isinstance(event, End):
            tell(Next(steps=_next_steps()))
    if not no_page:
        if not as_json:
            click.echo("\nThe page stays until Ctrl-C; its episodes and changes are those above.")
        threading.Event().wait()


def _next_steps() -> list[str]:
    from slackwater.controller.cli.main import COMMANDS

    first = [
        f"{command}    {purpose}"
        for name, command, purpose in (
            ("init", "slackwater init ", "beside your HAProxy: finds it, and writes a configuration in observe mode"),
            ("check", "slackwater check", "says what this machine lacks, and the remedy"),
        )
        if name in COMMANDS
    ]
    return [*first, f"{INSTALL}    install it beside your HAProxy; it begins in observe mode, as here"]
