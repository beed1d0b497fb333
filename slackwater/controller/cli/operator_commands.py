"""Operators' commands to a running lbengine; the dashboard's controls send the same."""

from __future__ import annotations

from typing import Any, get_args

import click
import msgspec

from slackwater.controller.cli.clients import ClientError, ControllerClient, client_options, pool_with
from slackwater.controller.cli.status_commands import no_episode
from slackwater.core.messages import EpisodeMark
from slackwater.core.options import (
    Command,
    all_pools_option,
    at_option,
    json_option,
    pool_option,
    seconds_of,
    tell,
    why_option,
)


class PoolAnswer(msgspec.Struct, omit_defaults=True):
    """What became of a command in one pool: lbengine's answer, or why there is none."""

    pool: str
    sentence: str = ""
    error: str = ""


class PoolAnswers(msgspec.Struct):
    """The answers as `--json` has them."""

    answers: list[PoolAnswer]


def command_options(command: Command) -> Command:
    """The options of a command to a pool's lbengine."""
    return client_options(pool_option("The pool, where several could be meant.")(why_option()(json_option(command))))


def send_to_one(client: ControllerClient, pool_name: str | None, as_json: bool, **fields: Any) -> None:
    """Sends a command to one pool, without a name to the one that has the server, and prints the answer."""
    target = fields.get("target")
    pool = client.the_pool(pool_name or (pool_with(client, target) if target else None))
    sentence = client.send(pool, **fields)
    tell(PoolAnswers([PoolAnswer(pool, sentence)]), sentence, as_json)
    client.settle([pool])


def send_to(client: ControllerClient, pool_name: str | None, every: bool, as_json: bool, **fields: Any) -> None:
    """Sends a command to one pool or to all; exits with status 1 when one of all failed."""
    if not every:
        if pool_name is None and len(pools := client.pools()) > 1:
            raise ClientError(f"there are several pools; name one with --pool, or all with --all: {', '.join(pools)}")
        send_to_one(client, pool_name, as_json, **fields)
        return
    if pool_name is not None:
        raise click.UsageError("--all and --pool exclude each other.")
    answers = PoolAnswers([])
    for name in client.pools():
        try:
            answers.answers.append(PoolAnswer(name, sentence=client.send(name, **fields)))
        except Exception as error:  # whatever it is, the other pools have their turn
            answers.answers.append(PoolAnswer(name, error=str(error) or repr(error)))
        if not as_json:
            _say(answers.answers[-1])
    if as_json:
        tell(answers, "", as_json)
    client.settle(answer.pool for answer in answers.answers if not answer.error)
    if any(answer.error for answer in answers.answers):
        raise SystemExit(1)


def _say(answer: PoolAnswer) -> None:
    """Prints the answer at once: it says what was done even if the next pool takes long."""
    click.echo(f"error: {answer.pool}: {answer.error}" if answer.error else answer.sentence, err=bool(answer.error))


@click.command(epilog='Example: slackwater pause --all --why "deploy of 14:00"')
@all_pools_option
@command_options
def pause(client: ControllerClient, pool_name: str | None, every: bool, why: str, as_json: bool) -> None:
    """Set the baseline weights and change nothing in the pool until `resume`, even after a restart.

    Without a running controller use `slackwater restore --all`.
    """
    send_to(client, pool_name, every, as_json, action="pause", why=why)


@click.command(epilog="Example: slackwater resume --pool web")
@all_pools_option
@command_options
def resume(client: ControllerClient, pool_name: str | None, every: bool, why: str, as_json: bool) -> None:
    """Balance again after `pause`.

    The configured weights are the baseline. A server that was given another weight by hand keeps it, and is left alone
    until it has its configured weight again. IPVS has no configured weights: those of now are the baseline there.
    """
    send_to(client, pool_name, every, as_json, action="resume", why=why)


@click.command(epilog='Example: slackwater mode observe --pool web --why "looking first"')
@click.argument("mode", type=click.Choice(["observe", "act"]))
@all_pools_option
@command_options
def mode(mode: Any, client: ControllerClient, pool_name: str | None, every: bool, why: str, as_json: bool) -> None:
    """Switch the pool to observe (baseline weights, decisions are only recorded) or act.

    It holds over restarts, until the next `mode` command or a new `mode` in the configuration.
    """
    send_to(client, pool_name, every, as_json, action="mode", why=why, mode=mode)


@click.command(epilog="Example: slackwater pin web1 20 --for 30m")
@click.argument("server")
@click.argument("weight", type=click.IntRange(0, 65535))
@click.option("--for", "for_s", callback=seconds_of, default="10m", show_default=True, metavar="TIME", help="How long.")
@command_options
def pin(
    server: str, weight: int, for_s: float, client: ControllerClient, pool_name: str | None, why: str, as_json: bool
) -> None:
    """Hold SERVER at WEIGHT, at most its baseline, for a time.

    Its weight stays higher where too many servers would be drained otherwise (`max_mitigated`), or the last one.
    """
    send_to_one(client, pool_name, as_json, action="pin", why=why, target=server, weight=weight, for_s=for_s)


@click.command(epilog="Example: slackwater unpin web1")
@click.argument("server")
@command_options
def unpin(server: str, client: ControllerClient, pool_name: str | None, why: str, as_json: bool) -> None:
    """End SERVER's pin before its time."""
    send_to_one(client, pool_name, as_json, action="unpin", why=why, target=server)


@click.command(name="end-episode", epilog='Example: slackwater end-episode web1 --why "it is our own backup"')
@click.argument("node")
@command_options
def end_episode(node: str, client: ControllerClient, pool_name: str | None, why: str, as_json: bool) -> None:
    """Treat NODE as calm until its present episode is over; the next one counts again."""
    send_to_one(client, pool_name, as_json, action="end_episode", why=why, target=node)


@click.command(name="ask-samples", epilog="Example: slackwater ask-samples web1 --for 30s")
@click.argument("node")
@click.option("--for", "for_s", callback=seconds_of, default="30s", show_default=True, metavar="TIME", help="How long.")
@command_options
def ask_samples(
    node: str, for_s: float, client: ControllerClient, pool_name: str | None, why: str, as_json: bool
) -> None:
    """Have NODE's monitor measure, and tell, as often as in an episode, for at most 60 s. No weight changes by that.

    The monitor's own settings say how often that is (`pace.event_s`). It goes back to its own pace by itself.
    """
    send_to_one(client, pool_name, as_json, action="ask_samples", why=why, target=node, for_s=for_s)


@click.command(name="ack", epilog="Example: slackwater ack web1 --why 'looking into it'")
@click.argument("node")
@command_options
def acknowledge(node: str, client: ControllerClient, pool_name: str | None, why: str, as_json: bool) -> None:
    """Acknowledge NODE's episode: your name goes into the log, nothing else changes."""
    send_to_one(client, pool_name, as_json, action="acknowledge", why=why, target=node)


@click.command(name="mark-episode", epilog='Example: slackwater mark-episode web1 deploy --why "release 14"')
@click.argument("node")
@click.argument("mark", type=click.Choice(get_args(EpisodeMark)))
@at_option
@command_options
def mark_episode(
    node: str,
    mark: str,
    at_unix_s: float | None,
    client: ControllerClient,
    pool_name: str | None,
    why: str,
    as_json: bool,
) -> None:
    """Record what an episode of NODE was: its last one, or the one that went on at a time. Nothing else changes.

    `deploy`, `backup` and `false_alarm` count as false alarms. A second mark replaces the first.

    To label recordings for `train`, use `slackwater mark`.
    """
    pool, episode = client.episode(pool_name or pool_with(client, node), node, at_unix_s)
    if episode is None:
        raise ClientError(no_episode(node, pool, at_unix_s))
    fields = {"target": episode.node, "mark": mark, "since_unix_s": episode.since_unix_s}
    send_to_one(client, pool, as_json, action="mark_episode", why=why, **fields)
