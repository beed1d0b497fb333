"""`slackwater replace`: which machines would be replaced, and why. It replaces none."""

from __future__ import annotations

import time
from pathlib import Path

import click
import msgspec

from slackwater.core.config import load
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.options import config_option, pool_option
from slackwater.replace.service import planned
from slackwater.views.replacements import Plan


@click.command(epilog="Example: slackwater replace --pool web")
@config_option
@pool_option("Only this pool.")
@click.option("--json", "as_json", is_flag=True, help="One JSON array, an object for each pool, for programs.")
def replace(config_path: Path, pool_name: str | None, as_json: bool) -> None:
    """Show which machines would be replaced, which is next, and what is in the way. It replaces none.

    To replace a machine pays where it was slow by itself on `replace.chronic_days` of the last `replace.days`, and lost
    `replace.least_lost_share` of its capacity beyond the median of its peers. Run it as root or as the controller's
    user.
    """
    settings = load(config_path)
    pools = settings.pool if pool_name is None else [settings.the_pool(pool_name)]
    with Journal.open(journal_path(settings.state_dir), read_only=True) as journal:
        plans = [planned(journal, settings, pool, time.time()).plan for pool in pools]
    click.echo(msgspec.json.encode(plans).decode() if as_json else "\n".join(map(as_text, plans)))


def as_text(plan: Plan) -> str:
    """The plan in lines."""
    lines = [f"pool {plan.pool}, the last {plan.days} d, mode {plan.mode or 'unknown'}"]
    lines += [f"  {machine.node}: {machine.why}" for machine in plan.machines]
    if not plan.machines:
        lines.append("  no machine was slow by itself")
    elif not plan.node:
        lines.append("  no machine is worth replacing")
    else:
        lines.append(f"  next: {plan.node}; {_what_happens(plan)}")
    return "\n".join(lines)


def _what_happens(plan: Plan) -> str:
    if plan.obstacle is not None:
        return f"not now: {plan.waits}"
    if not plan.command:
        return "nothing is done by itself, as no `replace.command` is set"
    if plan.mode != "act":
        return f"the pool only observes; in mode act it would be drained, and {plan.command} called"
    return f"it is drained, and {plan.command} is called"
