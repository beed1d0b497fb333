"""The commands `slackwater governor`."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import get_args

import click
import msgspec

from slackwater.controller.cli.added import place_of
from slackwater.core import stopping
from slackwater.core.config import load
from slackwater.core.config.node_changes import GovernorPolicy
from slackwater.core.extras import installed_by
from slackwater.core.options import Number, config_option, pool_option, seconds_of
from slackwater.governor.types import GovernorError

OF_THE_LAB = ("compare", "plan")
"""Commands on simulated machines, which `slackwater-lab` adds."""


class Group(click.Group):
    """Imports the lab's commands when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        there = [name for name in OF_THE_LAB if place_of(f"governor.{name}") is not None]
        return sorted([*super().list_commands(ctx), *there])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in OF_THE_LAB:
            return super().get_command(ctx, cmd_name)
        place = place_of(f"governor.{cmd_name}")
        if place is None:
            raise GovernorError(f"`slackwater governor {cmd_name}` needs slackwater-lab: {installed_by('lab')}")
        module, _, attribute = place.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=Group, epilog="Example: slackwater governor run --pool web --target-ms 100")
def governor() -> None:
    """Cores and clocks for a response-time target: what a policy sets, or would set."""


@governor.command(epilog="Example: slackwater governor run --pool web --act")
@config_option
@pool_option("Only this pool.")
@click.option("--policy", type=click.Choice(get_args(GovernorPolicy)), help="Which one  [default: governor.policy]")
@click.option("--target-ms", type=Number(0, min_open=True), help="Of the p95  [default: the pool's setting]")
@click.option("--act", is_flag=True, help="Give Orders to the nodes' wsengines; without it nothing is changed.")
@click.option("--for", "for_s", callback=seconds_of, metavar="TIME", help="How long  [default: until Ctrl-C]")
def run(
    config_path: Path,
    pool_name: str | None,
    policy: str | None,
    target_ms: float | None,
    act: bool,
    for_s: float | None,
) -> None:
    """Govern the pools' nodes in the foreground, beside `slackwater serve`: a line for each decision, and its reason.

    With --act it sets cores and clocks through the nodes' wsengines, in pools that act, and puts them back at the end.
    Without, it records what it would set. `governor.mode` has `serve` do the same; both at once are refused.
    """
    from slackwater.governor import service  # it needs what signs Orders

    settings = load(config_path)
    pool = settings.the_pool(pool_name) if pool_name or len(settings.pool) == 1 else None
    if target_ms is None and not any(
        candidate.target_p95_ms for candidate in settings.pool if pool in (None, candidate)
    ):
        raise GovernorError("there is no target; set the pool's `target_p95_ms`, or give --target-ms")
    changed = msgspec.structs.replace(
        settings.governor, mode="act" if act else "observe", policy=policy or settings.governor.policy
    )
    settings = msgspec.structs.replace(settings, governor=changed)
    if problem := settings.governor_problem(has_target=True):
        raise GovernorError(problem[1])
    if act and not any(candidate.mode == "act" for candidate in settings.pool if pool in (None, candidate)):
        raise GovernorError('the pool only observes; the governor acts in pools with `mode = "act"`')
    name = pool.name if pool is not None else None
    stopping.run(service.run(settings, only=name, target_ms=target_ms, tell=click.echo, for_s=for_s))
