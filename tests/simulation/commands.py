"""The command `make protocols`: `python -m tests.simulation.commands`."""

from __future__ import annotations

import json
import os
import sys

import click

from tests.simulation.search import Outcome, run_one, search


@click.command(epilog="Example: python -m tests.simulation.commands --schedules 100000")
@click.option("--schedules", type=click.IntRange(1), default=1000, show_default=True, help="How many to try.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="The first; the next one is 1 more.")
@click.option("--processes", type=click.IntRange(1), help="How many at a time  [default: one a processor]")
@click.option("--story", is_flag=True, help="Tell the story of --seed alone, with the logs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def protocols(schedules: int, seed: int, processes: int | None, story: bool, as_json: bool) -> None:
    """Try the lease and takeover protocols on a simulated bus, balancer and clock; status 1 if an invariant broke.

    Controllers crash at any await, are frozen, restarted and cut off; messages are lost, doubled and late. The
    controllers run the real code. A seed always gives the same schedule.
    """
    if story:
        outcome = run_one(seed, with_logs=True)
        _show(outcome, as_json)
        sys.exit(1 if outcome.broken else 0)
    with click.progressbar(length=schedules, label="schedules", file=sys.stderr) as bar:
        result = search(seed, schedules, processes or len(os.sched_getaffinity(0)), progress=bar.update)
    per_s = result.schedules / result.took_s
    if as_json:
        broken = [{"seed": outcome.seed, "broken": outcome.broken} for outcome in result.broken]
        result_json = {"seed": seed, "schedules": result.schedules, "took_s": round(result.took_s, 1), "broken": broken}
        click.echo(json.dumps(result_json, indent=2))
    else:
        click.echo(f"{result.schedules} schedules in {result.took_s:.1f} s ({per_s:.0f} a second)")
        for outcome in result.broken:
            click.echo(f"seed {outcome.seed}: {outcome.broken}")
        if result.broken:
            click.echo()
            _show(run_one(result.broken[0].seed), as_json=False)
            click.echo(
                f"again, with the logs: python -m tests.simulation.commands --seed {result.broken[0].seed} --story"
            )
        else:
            click.echo("every invariant held")
    sys.exit(1 if result.broken else 0)


def _show(outcome: Outcome, as_json: bool) -> None:
    if as_json:
        story = [{"time_s": round(time_s, 6), "who": who, "what": event} for time_s, who, event in outcome.story]
        click.echo(json.dumps({"seed": outcome.seed, "broken": outcome.broken, "story": story}, indent=2))
        return
    for time_s, who, event in outcome.story:
        click.echo(f"{time_s:8.3f} s  {who:<9} {event}")
    if not outcome.broken:
        click.echo(f"seed {outcome.seed}: every invariant held")


if __name__ == "__main__":
    protocols()
