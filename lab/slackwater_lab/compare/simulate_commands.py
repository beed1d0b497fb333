"""The command `slackwater lab simulate`."""

from __future__ import annotations

import itertools
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from rich.table import Table

from slackwater_lab.cells import until
from slackwater_lab.cluster.terminal import console, shown
from slackwater_lab.options import FILE, json_option, minutes_option, out_option, progress, write_json

if TYPE_CHECKING:
    from slackwater.detector.classify.tree import Model

POLICIES = ("static", "slackwater", "slackwater-even", "slackwater-lb", "ice", "oracle", "oracle-split")
BALANCES = (
    *("roundrobin", "leastconn", "random2", "bounded-random", "peak-ewma", "peak-ewma-2", "prequal-60", "prequal-84"),
    *("nginx-least-time", "traefik-least-time", "knapsack"),
)
PLAYERS = (
    *("static", *BALANCES[1:], "slackwater", "slackwater-lc", "slackwater-random2"),
    *("slackwater-lb", "slackwater-lb-lc", "slackwater-lb-random", "oracle-lc", "oracle-split", "oracle-split-lc"),
)
"""Names of the players of drawn scenarios."""
OF_DRAWN = frozenset({"drawn", "players", "folder", "minutes", "page", "seed", "json_file"})
SHOWN = ("slackwater-lb", "slackwater-lb-lc", "slackwater-lb-random", "slackwater-lc")

GIVEN = "slackwater.simulate.given"


class Remembering(click.Command):
    """Keeps the words that it was called with, so that its output names the command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[GIVEN] = list(args)
        return super().parse_args(ctx, args)


@click.command(
    cls=Remembering,
    epilog="Example: slackwater lab simulate --servers 10 --servers 20 --noisy 0.1 --noisy 0.3 --json out.json",
)
@click.option(
    "--servers", multiple=True, type=click.IntRange(2, 200), help="Number of servers; repeatable.  [default: 10]"
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Choice(POLICIES),
    help="Repeatable.  [default: static, slackwater, oracle]",
)
@click.option("--balance", type=click.Choice(BALANCES), default="roundrobin", show_default=True)
@click.option(
    "--balancers", multiple=True, type=click.IntRange(1), help="Balancers of the pool; repeatable.  [default: 1]"
)
@click.option("--load", "loads", multiple=True, type=float, help="Share of the capacity; repeatable.  [default: 0.5]")
@click.option("--noisy", multiple=True, type=float, help="Share of noisy servers; repeatable.  [default: 0.1]")
@click.option(
    "--taken", type=float, default=0.8, show_default=True, help="Share of a noisy server's speed that is gone."
)
@click.option(
    "--episode", "episode_s", type=float, default=30.0, show_default=True, help="Mean length in s; 0: for ever."
)
@click.option("--seconds", type=float, default=120.0, show_default=True, help="Measured time, after the warm-up.")
@click.option("--warm-up", "warm_up_s", type=float, default=30.0, show_default=True, help="Time in s before that.")
@click.option(
    "--size", "sizes", multiple=True, type=float, help="Size of each server, repeatable, in any unit.  [default: alike]"
)
@click.option("--quota", "quota_cores", type=float, default=0.0, show_default=True, help="Mean CPU quota; 0: none.")
@click.option(
    "--capacity", "capacity_rps", type=float, default=250.0, show_default=True, help="Requests/s of a server."
)
@click.option("--random", "drawn", type=click.IntRange(1), help="Number of scenarios drawn from --seed.")
@click.option(
    "--player",
    "players",
    multiple=True,
    type=click.Choice(PLAYERS),
    help="With --random: player beside leastconn; repeatable.  [default: all]",
)
@out_option
@minutes_option
@click.option("--page", type=FILE, help="With --random: the page to write.")
@click.option("--seed", type=int, default=1, show_default=True, help="Same seed, same run.")
@json_option
def simulate(
    servers: tuple[int, ...],
    policies: tuple[str, ...],
    balancers: tuple[int, ...],
    loads: tuple[float, ...],
    noisy: tuple[float, ...],
    json_file: str | None,
    drawn: int | None,
    players: tuple[str, ...],
    folder: Path | None,
    minutes: float | None,
    page: Path | None,
    **given: Any,
) -> None:
    """Run the detector and the laws against simulated servers, request by request.

    Options that may be given again are combined: every value of one with every value of the others.

    --random plays each drawn scenario under every balancer, Slackwater and the oracles, or those of --player, on all
    cores, and shows all of them against leastconn. They are kept in the folder of --out, and the same command goes on
    where it was interrupted.
    """
    from slackwater.core.config import DetectorSettings
    from slackwater.detector.service import choose_model
    from slackwater_lab.cluster.commit import commit
    from slackwater_lab.sim import requests
    from slackwater_lab.sim.setup import Setup

    judge_by = choose_model(DetectorSettings())
    if drawn is not None:
        _drawn(drawn, players, folder, minutes, page, given["seed"], judge_by, json_file)
        return
    if players or folder is not None or minutes is not None or page is not None:
        raise click.UsageError(
            "--player, --out, --page and --minutes are of drawn scenarios: expected --random with them"
        )
    combined = itertools.product(
        servers or (10,),
        balancers or (1,),
        loads or (0.5,),
        noisy or (0.1,),
        policies or ("static", "slackwater", "oracle"),
    )
    plans = [
        (Setup(servers=count, balancers=count_of_balancers, load=load, noisy=share, **given), policy)
        for count, count_of_balancers, load, share, policy in combined
    ]
    outcomes = []
    began = time.monotonic()
    for number, (setup, policy) in enumerate(plans, start=1):
        outcomes.append(requests.simulate(setup, policy, judge_by, progress))
        left_s = (time.monotonic() - began) / number * (len(plans) - number)
        progress(f"{number} of {len(plans)}: {policy}, {setup.servers} servers; about {left_s:.0f} s left")
    results = [outcome.as_json() for outcome in outcomes]
    command = shlex.join(["slackwater", "lab", "simulate", *click.get_current_context().meta[GIVEN]])
    if not write_json({"command": command, "commit": commit(), "runs": results}, json_file):
        return
    for table in tables(results):
        console().print(table)


def _drawn(
    count: int,
    asked: Sequence[str],
    folder: Path | None,
    minutes: float | None,
    page: Path | None,
    seed: int,
    model: Model,
    json_file: str | None,
) -> None:
    from slackwater_lab.compare import drawn
    from slackwater_lab.sim.drawn import REFERENCE

    context = click.get_current_context()
    for name in context.params.keys() - OF_DRAWN:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"{name} is drawn with --random: expected only --seed, --player, --out, --page, --minutes, --json"
            )
    if folder is None:
        raise click.UsageError("--out is missing: the folder that the scenarios are kept in")
    players = [name for name in PLAYERS if not asked or name in asked or name == REFERENCE]
    played = drawn.run(folder, seed, count, players, model, progress, until(minutes))
    summary = drawn.summary(played, count, players)
    shown = [name for name in SHOWN if name in players]
    if page is not None and played:
        given = ["FOLDER" if word == str(folder) else word for word in context.meta[GIVEN]]
        command = ["slackwater", "lab", "simulate", *given]
        page.write_text(drawn.page(summary, shown, shlex.join(command)))
    if not write_json(summary, json_file):
        return
    for table in drawn.tables(summary, shown):
        console().print(table)


RUN = ("run", "policy", "servers", "balancers", "load", "noisy")
FELT = ("mean ms", "p50 ms", "p95 ms", "p99 ms", "failed")
DECIDED = (
    "answered s",
    "back s",
    "missed",
    "false",
    "turns/h",
)


def tables(runs: list[dict[str, Any]]) -> list[Table]:
    """What users felt, and how it was decided: a run a row. `answered`: median from an episode's begin to the first
    weight; `back`: median from its end until its server has its full share to stay; `turns/h`: changes of direction
    per server and hour."""
    felt = Table(*RUN, *FELT, title="what users felt", box=None)
    decided = Table("run", "policy", *DECIDED, title="how it was decided", box=None)
    for number, run in enumerate(runs, start=1):
        setup, users = run["setup"], run["felt"]
        about = [number, run["policy"], *(setup[key] for key in RUN[2:])]
        times = [shown(users[key]) for key in ("mean_ms", "p50_ms", "p95_ms", "p99_ms")]
        felt.add_row(*map(str, about), *times, f"{users['failed_share']:.2%}")
        calls = [shown(run["detection_s"]["p50"], ".2f"), shown(run["back_s"]["p50"], ".2f")]
        calls += [run["missed"], run["false_reductions"]]
        calls += [f"{run['turns_per_server_hour']:.1f}"]
        decided.add_row(str(number), run["policy"], *map(str, calls))
    return [felt, decided]
