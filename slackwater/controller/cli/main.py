"""The console command `slackwater`: one table of subcommands, each loaded only when it is called.

So `slackwater --help` and `slackwater pause` load neither numpy nor scikit-learn.
"""

from __future__ import annotations

import errno
import importlib
import importlib.util
import io
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import click

from slackwater import __version__
from slackwater.controller.cli.added import place_of
from slackwater.core.extras import installed_by

ADDED = ""
"""Stands in place of a command that another distribution adds (`added.py`)."""
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Try it": {
        "try": (
            "slackwater.controller.cli.try_command:try_recording",
            "Play a recorded cluster: what would have been done, and why.",
        ),
    },
    "Stop it": {
        "pause": (
            "slackwater.controller.cli.operator_commands:pause",
            "Set the baseline weights; change nothing until `resume`.",
        ),
        "restore": (
            "slackwater.controller.cli.commands:restore",
            "Set the baseline weights without a running controller.",
        ),
        "resume": ("slackwater.controller.cli.operator_commands:resume", "Balance again after `pause`."),
    },
    "Look": {
        "status": ("slackwater.controller.cli.status_commands:status", "Show each server's state, weight and load."),
        "log": ("slackwater.controller.cli.status_commands:log", "Show what was changed, and why."),
        "why": (
            "slackwater.controller.cli.status_commands:why",
            "Show a node's last episode and what was done about it.",
        ),
        "week": (
            "slackwater.controller.cli.status_commands:week",
            "Show what it did, or would have done, and the harm avoided.",
        ),
        "replace": (
            "slackwater.controller.cli.replace_command:replace",
            "Show which machines would be replaced, and why.",
        ),
        "support-bundle": (
            "slackwater.controller.cli.support_command:support_bundle",
            "Write one archive for a bug report, with secrets removed.",
        ),
    },
    "Override": {
        "mode": ("slackwater.controller.cli.operator_commands:mode", "Switch a pool to observe or act."),
        "pin": ("slackwater.controller.cli.operator_commands:pin", "Hold a server at a weight for a time."),
        "unpin": ("slackwater.controller.cli.operator_commands:unpin", "End a pin before its time."),
        "end-episode": (
            "slackwater.controller.cli.operator_commands:end_episode",
            "Treat a node as calm until its episode is over.",
        ),
        "mark-episode": (
            "slackwater.controller.cli.operator_commands:mark_episode",
            "Record what an episode was: a neighbour, a deploy, a false alarm.",
        ),
        "ask-samples": (
            "slackwater.controller.cli.operator_commands:ask_samples",
            "Have a node's monitor measure more often, for a time.",
        ),
        "ack": ("slackwater.controller.cli.operator_commands:acknowledge", "Acknowledge a node's episode in the log."),
    },
    "Run and configure": {
        "serve": (
            "slackwater.controller.cli.commands:serve",
            "Run the controller: detector, lbengine, journal and dashboard.",
        ),
        "init": (
            "slackwater.controller.haproxy_init.command:init",
            "Write the first configuration, beside a running HAProxy.",
        ),
        "monitors": (
            "slackwater.controller.haproxy_init.monitors:monitors",
            "Open the bus to monitors on the web servers: the second step.",
        ),
        "check": (
            "slackwater.controller.cli.check_command:check_controller",
            "Look for what is missing, and name the remedy.",
        ),
        "reload": (
            "slackwater.controller.cli.reload_command:reload",
            "Apply a changed configuration without a restart.",
        ),
        "config": ("slackwater.controller.cli.commands:config", "Check a controller's configuration."),
        "web": ("slackwater.controller.cli.web_commands:web", "Manage logins to the dashboard, and programs' tokens."),
        "bus": (
            "slackwater.controller.cli.bus_commands:bus",
            "Write the configuration of your own nats-server, with users.",
        ),
    },
    "A detector of your own": {
        "detector": (
            "slackwater.controller.cli.detector_commands:detector",
            "Show the detector's model as text, and its scores.",
        ),
        "calibrate": (
            "slackwater.controller.cli.calibrate_commands:calibrate",
            "Train a model on noise made on your own nodes.",
        ),
        "record": ("slackwater.controller.cli.record_commands:record", "Record a live pool's Samples, for `train`."),
        "mark": (
            "slackwater.controller.cli.record_commands:mark",
            "Label what is being done to a node, for recordings.",
        ),
        "train": (
            "slackwater.controller.cli.detector_commands:train",
            "Build the detector's model from labelled recordings.",
        ),
    },
    "Cores and clocks": {
        "governor": (
            "slackwater.controller.cli.governor_commands:governor",
            "What meets a response-time target with little energy: show it, or set it.",
        ),
    },
    "For developers": {
        "lab": (ADDED, "A small cluster on this machine, with noise: demo, experiments, recordings."),
    },
}
"""Heading of the overview -> command -> where it is, and its line."""
COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}
NEEDS: dict[str, tuple[str, ...]] = {
    "record": ("pyarrow",),
    "train": ("matplotlib", "pyarrow"),
    "calibrate": ("matplotlib", "pyarrow"),
    "lab": ("slackwater_lab", "matplotlib", "pyarrow"),
}
"""What these commands import beyond a production install: `slackwater-lab`, and packages that it brings."""
HIDDEN = {
    "run": ("slackwater.controller.cli.commands:run", "One child of `serve`."),
    "try-settings": ("slackwater.controller.cli.commands:try_settings", "Examine settings for `serve`'s reload."),
}
TRACEBACK = "SLACKWATER_TRACEBACK"
"""Environment: where it is set, an error that nobody expected shows its traceback."""
OUR_PACKAGES = {"slackwater", "slackwater_lab"}


class Failure(click.ClickException):
    """Ends the command with one line on stderr and status 1."""

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"error: {self.format_message()}", file=file or sys.stderr)


def is_expected(error: Exception) -> bool:
    """Errors whose text is enough for the user: our own, and the system's about files and sockets."""
    ours = type(error).__module__.partition(".")[0] in OUR_PACKAGES
    return ours or (isinstance(error, OSError) and error.errno != errno.EPIPE)


def in_words(error: Exception) -> str:
    """An expected error's text. The system's are of a file: the one that was to be made, for two."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{os.fsdecode(error.filename2 or error.filename)}: {error.strerror}"
    return str(error) or type(error).__name__


def unexpected(error: Exception) -> str:
    """A fault of ours in a sentence, with the place in our code."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if OUR_PACKAGES & set(Path(frame.filename).parts)
    ]
    place = f" at {'/'.join(Path(frames[-1].filename).parts[-2:])}:{frames[-1].lineno}" if frames else ""
    return (
        f"this is a fault of Slackwater's own: {type(error).__name__}{place}: {error}; for a bug report run it again"
        f" with {TRACEBACK}=1, which prints where it comes from"
    )


def incomplete(name: str, missing: Sequence[str]) -> click.Command:
    """A command in place of one whose packages are not installed: it names them, and how to install them."""
    problem = f"`slackwater {name}` needs {', '.join(missing)}: {installed_by('lab')}"

    def fail(words: tuple[str, ...]) -> None:  # noqa: ARG001
        raise Failure(problem)

    words = click.Argument(["words"], nargs=-1, type=click.UNPROCESSED)
    reference = "Its options and an example: `man slackwater`, or docs/reference/command-line.md in the source."
    return click.Command(
        name,
        callback=fail,
        params=[words],
        help=problem,
        epilog=None if COMMANDS[name][0] == ADDED else reference,
        context_settings={"ignore_unknown_options": True},
    )


def is_listed(name: str) -> bool:
    """The overview names a command of another distribution only where that is installed."""
    return COMMANDS[name][0] != ADDED or place_of(name) is not None


class LazyGroup(click.Group):
    """A group that imports a command when it is called; expected errors become one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return [name for name in COMMANDS if is_listed(name)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        entry = COMMANDS.get(cmd_name) or HIDDEN.get(cmd_name)
        if entry is None:
            return None
        if missing := [module for module in NEEDS.get(cmd_name, ()) if importlib.util.find_spec(module) is None]:
            return incomplete(cmd_name, missing)
        importlib.import_module(
            "slackwater.lbengine.backends.table"
        )  # declares the balancers that a configuration can name
        place = place_of(cmd_name) if entry[0] == ADDED else entry[0]
        if place is None:
            return incomplete(cmd_name, ["slackwater-lab"])
        module, _, attribute = place.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for heading, group in GROUPS.items():
            if rows := [(name, line) for name, (_, line) in group.items() if is_listed(name)]:
                with formatter.section(heading):
                    formatter.write_dl(rows, col_max=14)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in NEEDS["lab"]:
                raise
            raise Failure(f"this needs {package}: {installed_by('lab')}") from error
        except Exception as error:
            if is_expected(error):
                raise Failure(in_words(error)) from error
            # A part of `serve` writes its traceback to the log; a pipe that was closed is no fault.
            if ctx.invoked_subcommand in HIDDEN or isinstance(error, BrokenPipeError) or os.environ.get(TRACEBACK):
                raise
            raise Failure(unexpected(error)) from error


@click.group(
    cls=LazyGroup,
    context_settings={"max_content_width": 100},  # where the terminal is as wide
    epilog="Example: slackwater status --config /etc/slackwater/controller.toml",
)
@click.version_option(__version__, prog_name="slackwater")
def cli() -> None:
    """Find web servers with a noisy neighbour, and move their load to the others."""


def main() -> None:
    """The entry point of the console command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what the terminal's encoding lacks is written as \\x.., not refused
            stream.reconfigure(errors="backslashreplace")
    cli(prog_name="slackwater")


if __name__ == "__main__":
    main()
