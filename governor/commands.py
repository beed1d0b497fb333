"""The commands `slackwater governor`."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import time
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from governor.observe import DEFAULT, OBSERVE_EVERY_S, POLICIES, Advice, GovernorError, Node
from governor.policies.table import ACTING
from slackwater.config import NODE_POLICIES, ControllerSettings, load
from slackwater.extras import installed_by
from slackwater.journal.journal import Journal, journal_path
from slackwater.options import config_option, pool_option, seconds_of

STALE_AFTER_S = 3.0
"""An older Sample or Verdict does not count."""
POLL_EVERY_S = 0.1
"""Half a Sample's usual period, so that none is missed."""
OF_THE_LAB = {"compare": "lab.governor.commands:compare", "plan": "lab.governor.commands:plan"}
"""Commands on simulated machines, which a production install does not have."""


class Group(click.Group):
    """Imports the lab's commands when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        there = OF_THE_LAB if importlib.util.find_spec("lab") is not None else {}
        return sorted([*super().list_commands(ctx), *there])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = OF_THE_LAB.get(cmd_name)
        if place is None:
            return super().get_command(ctx, cmd_name)
        if importlib.util.find_spec("lab") is None:
            raise GovernorError(f"`slackwater governor {cmd_name}` needs lab: {installed_by('lab')}")
        module, _, attribute = place.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=Group, epilog="Example: slackwater governor observe --pool web --target-ms 100")
def governor() -> None:
    """Cores and clocks for a response-time target: what a policy would set, here or on simulated machines."""


@governor.command(epilog="Example: slackwater governor observe --pool web --for 10m --json")
@config_option
@pool_option("The pool; needed when there are several.")
@click.option("--policy", type=click.Choice(list(POLICIES)), default=DEFAULT, show_default=True, help="Which one.")
@click.option("--target-ms", type=click.FloatRange(0, min_open=True), help="Of the p95  [default: the pool's setting]")
@click.option("--for", "for_s", callback=seconds_of, metavar="TIME", help="How long  [default: until Ctrl-C]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for programs.")
def observe(
    config_path: Path,
    pool_name: str | None,
    policy: str,
    target_ms: float | None,
    for_s: float | None,
    as_json: bool,
) -> None:
    """Run a policy beside a pool and print what it would set on each node, and why. Nothing is changed.

    Reads the Samples and Verdicts of a running controller from its journal.
    """
    settings = load(config_path)
    try:
        for advice in advices(settings, pool_name, policy, target_ms, for_s):
            click.echo(msgspec.json.encode(advice).decode() if as_json else as_line(advice))
    except KeyboardInterrupt:
        return


def advices(
    settings: ControllerSettings,
    pool_name: str | None,
    policy: str,
    target_ms: float | None,
    for_s: float | None,
) -> Iterator[Advice]:
    """One for each node and second, for as long. Raises ConfigError, GovernorError, JournalError."""
    pool = settings.the_pool(pool_name)
    if target_ms is None:
        target_ms = pool.target_p95_ms
    if target_ms <= 0.0:
        raise GovernorError(f"pool {pool.name}: there is no target; set `target_p95_ms`, or give --target-ms")
    nodes: dict[str, Node] = {}
    began_s = printed_s = time.monotonic()
    newest: dict[str, Advice] = {}
    with Journal.open(journal_path(settings.state_dir), read_only=True) as journal:
        while for_s is None or time.monotonic() - began_s < for_s:
            now_unix_s = time.time()
            received_unix_s = journal.received("sample", pool.name)
            judged_unix_s = journal.received("verdict", pool.name)
            verdicts = {
                name: one
                for name, one in journal.latest_verdicts(pool.name).items()
                if now_unix_s - judged_unix_s.get(name, 0.0) <= STALE_AFTER_S
            }
            for name, sample in journal.latest_samples(pool.name).items():
                if now_unix_s - received_unix_s.get(name, 0.0) > STALE_AFTER_S:
                    continue
                node = nodes.setdefault(name, Node(settings.governor, policy, target_ms))
                advice = node.see(sample, verdicts.get(name))
                if advice is not None:
                    newest[name] = advice
            if time.monotonic() - printed_s >= OBSERVE_EVERY_S:
                printed_s = time.monotonic()
                yield from newest.values()
                newest = {}
            time.sleep(POLL_EVERY_S)


@governor.command(epilog="Example: slackwater governor run --pool web --act")
@config_option
@pool_option("Only this pool.")
@click.option("--policy", type=click.Choice([*ACTING, *NODE_POLICIES]), help="Which one  [default: governor.policy]")
@click.option("--target-ms", type=click.FloatRange(0, min_open=True), help="Of the p95  [default: the pool's setting]")
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
    from governor import service  # it needs what signs Orders

    settings = load(config_path)
    pool = settings.the_pool(pool_name) if pool_name or len(settings.pool) == 1 else None
    if target_ms is None and not any(one.target_p95_ms for one in settings.pool if pool in (None, one)):
        raise GovernorError("there is no target; set the pool's `target_p95_ms`, or give --target-ms")
    changed = msgspec.structs.replace(
        settings.governor, mode="act" if act else "observe", policy=policy or settings.governor.policy
    )
    settings = msgspec.structs.replace(settings, governor=changed)
    if problem := settings.governor_problem(has_target=True):
        raise GovernorError(problem[1])
    if act and not any(one.mode == "act" for one in settings.pool if pool in (None, one)):
        raise GovernorError('the pool only observes; the governor acts in pools with `mode = "act"`')
    name = pool.name if pool is not None else None
    asyncio.run(service.run(settings, only=name, target_ms=target_ms, tell=click.echo, for_s=for_s))


def as_line(advice: Advice) -> str:
    """`web1: 120 requests/s, p95 62 ms of 100 ms, 0.80 cores busy; 4 cores -> 2 cores at 1200 MHz, ...: why`."""
    if advice.would_cores is None or advice.cores is None or advice.busy_cores is None:
        return f"{advice.node}: {advice.why}"
    p95 = "no p95" if advice.p95_ms is None else f"p95 {advice.p95_ms:.3g} ms of {advice.target_p95_ms:g} ms"
    now, would = (
        f"{cores} cores" if clock_mhz is None else f"{cores} cores at {clock_mhz:g} MHz"
        for cores, clock_mhz in (
            (advice.cores, advice.clock_mhz),
            (advice.would_cores, advice.would_clock_mhz),
        )
    )
    return (
        f"{advice.node}: {advice.rps:.3g} requests/s, {p95}, {advice.busy_cores:.2f} cores busy;"
        f" {now}, would be {would}, {advice.watts:.3g} W, would be {advice.would_watts:.3g} W: {advice.why}"
    )
