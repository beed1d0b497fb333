"""The command group `slackwater lab`: small clusters with noise on this machine."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import click
from rich.table import Table

from slackwater.core.options import json_option as for_programs
from slackwater.core.options import tell
from slackwater_lab.ablate.commands import ablate
from slackwater_lab.ablate.detector_commands import ablate_detector
from slackwater_lab.balancer_view.commands import balancer_view
from slackwater_lab.calm.commands import calm
from slackwater_lab.cluster.lab import Lab, LabSettings
from slackwater_lab.cluster.noise import NOISES
from slackwater_lab.cluster.stress import STRESSORS
from slackwater_lab.cluster.terminal import console, shown
from slackwater_lab.cluster.traces import down, is_up, state, traces
from slackwater_lab.compare.balance_commands import balance
from slackwater_lab.compare.commands import compare
from slackwater_lab.compare.simulate_commands import simulate
from slackwater_lab.disturb.timetable import DISTURBANCES, timetable
from slackwater_lab.governor.live.commands import governor_policies
from slackwater_lab.options import cluster_options, json_option, progress, write_json
from slackwater_lab.stories import second_stage
from slackwater_lab.stories.capacity_commands import capacity
from slackwater_lab.stories.governed_commands import governor
from slackwater_lab.stories.own_cost_commands import cost
from slackwater_lab.stories.second_stage import CALM_CHILDREN, CHILDREN, KNOBS, SecondStageTest
from slackwater_lab.stories.signals_commands import signals


@click.group(epilog="Example: slackwater lab demo")
def lab() -> None:
    """A cluster on this machine: web servers in namespaces, a balancer, load, and noisy neighbours. Needs root."""


@lab.command(epilog="Example: slackwater lab up --app dokuwiki --balance leastconn")
@cluster_options
def up(settings: LabSettings) -> None:
    """Start the lab and keep it up until Ctrl-C."""
    with Lab(settings, progress) as cluster:
        progress("Ctrl-C takes it down")
        try:
            while True:
                cluster.check()
                time.sleep(0.5)
        except KeyboardInterrupt:
            progress("lab: going down")


@lab.command("down", epilog="Example: slackwater lab down")
@for_programs
def down_(as_json: bool) -> None:
    """Take down the lab that is up, and clear up after one that crashed."""
    removed = down()
    tell({"removed": removed}, "removed: " + ", ".join(removed) if removed else "nothing to remove", as_json)


@lab.command(epilog="Example: slackwater lab status --json")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(as_json: bool) -> None:
    """Say what there is of a lab; ends with status 1 when there is nothing."""
    leftovers, about, running = traces(), state(), is_up()
    if as_json:
        click.echo(json.dumps({"running": running, "traces": leftovers, "state": about}, indent=2))
    elif not leftovers:
        click.echo("no lab on this machine")
    else:
        where = f", {about['url']}" if about else ""
        click.echo(
            f"lab {'up' + where if running else 'left behind: run `slackwater lab down`'}: {', '.join(leftovers)}"
        )
    if not leftovers:
        sys.exit(1)


@lab.command("second-stage", epilog="Example: slackwater lab second-stage --scenario all-noisy --seconds 12 --rounds 3")
@cluster_options
@click.option(
    "--scenario", type=click.Choice(list(second_stage.RETUNED_WITHIN_S)), default="all-noisy", show_default=True
)
@click.option("--noise", type=click.Choice([*NOISES, *STRESSORS]), default="llcprobe", show_default=True)
@click.option("--seconds", type=click.FloatRange(1), default=20.0, show_default=True, help="Length of each phase.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--clients", type=click.IntRange(1), default=48, show_default=True, help="Clients of the closed loop.")
@click.option(
    "--knob", "knobs", multiple=True, type=click.Choice(list(KNOBS)), help=f"Repeatable.  [default: {CHILDREN}]"
)
@click.option(
    "--children", type=click.IntRange(1, 32), default=CALM_CHILDREN, show_default=True, help="Children of php-fpm."
)
@json_option
def second_stage_(
    settings: LabSettings,
    scenario: str,
    noise: str,
    seconds: float,
    rounds: int,
    clients: int,
    knobs: tuple[str, ...],
    children: int,
    json_file: str | None,
) -> None:
    """Measure the second stage: calm, a neighbour in every host with the weights alone, then with the second stage too.

    all-noisy: values from the knowledge base; search: values that are found by trying. Cgroups may run on all CPUs
    here, as containers with a quota do: on one CPU more children bring nothing.
    """
    cpus = len(os.sched_getaffinity(0)) if settings.kind == "cgroup" else None
    if cpus in {None, 1} and scenario == "all-noisy" and set(knobs or (CHILDREN,)) == {CHILDREN}:
        raise click.UsageError(
            f"a host has one CPU here, so its {CHILDREN} is left alone by the knowledge base: expected `--scenario"
            " search`, or another --knob"
        )
    settings = replace(settings, cpus=cpus, php_children=children, retunable=True)
    test = SecondStageTest(scenario, noise, seconds, rounds, clients, knobs or (CHILDREN,))
    with Lab(settings, progress) as cluster:
        result = second_stage.run(cluster, test, progress)
    if not write_json(result, json_file):
        return
    title = (
        f"{scenario}, {settings.balance}, {settings.app}, {noise}, {clients} clients, {children} children:"
        f" medians of {rounds} rounds"
    )
    table = Table("phase", *second_stage.COLUMNS, title=title)
    for row in second_stage.medians(result["rounds"]):
        table.add_row(*row)
    console().print(table)
    for number, measured in enumerate(result["rounds"], start=1):
        click.echo(f"round {number}: {second_stage.sentence(measured)}")
    if "remembered" in result:
        click.echo(f"remembered: {json.dumps(result['remembered'])}")
    click.echo(f"p95 with the second stage: {shown(result['ratio'], '.2f')} of without it")


@lab.command(epilog="Example: slackwater lab record --out calm-and-loud.parquet --seconds 300 --swing --seed 7")
@cluster_options
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="File to write.")
@click.option(
    "--noise",
    "kinds",
    multiple=True,
    type=click.Choice(list(NOISES)),
    help="Kind of noise; repeatable.  [default: all]",
)
@click.option(
    "--intensity",
    "intensities",
    multiple=True,
    type=click.FloatRange(0, 1, min_open=True),
    help="Share of time that it works; repeatable.",
)
@click.option("--calm", is_flag=True, help="No noise at all.")
@click.option("--seconds", type=click.FloatRange(10), default=120.0, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True, help="Same seed, same test.")
@click.option(
    "--load", "share", type=click.FloatRange(0.01, 1), default=0.3, show_default=True, help="Share of the capacity."
)
@click.option("--swing", is_flag=True, help="The load swings between 20% and 70% of the capacity.")
@click.option("--drain", is_flag=True, help="Also move the weight of a host while its neighbour is loud.")
@click.option("--overload", is_flag=True, help="Also load that the pool cannot carry, labelled so.")
@click.option("--by-event", is_flag=True, help="Samples follow events; default: one every 0.2 s.")
@click.option(
    "--disturbance",
    "disturbances",
    multiple=True,
    type=click.Choice([*DISTURBANCES, "all"]),
    help="Disturbance that is no neighbour, labelled so; repeatable.",
)
def record(
    settings: LabSettings,
    out: Path,
    kinds: tuple[str, ...],
    intensities: tuple[float, ...],
    calm: bool,
    seconds: float,
    seed: int,
    share: float,
    swing: bool,
    drain: bool,
    overload: bool,
    by_event: bool,
    disturbances: tuple[str, ...],
) -> None:
    """Record the monitors' Samples while neighbours come and go, with labels, for `slackwater train`."""
    from slackwater_lab.stories import record as recording

    kinds = () if calm else kinds or tuple(NOISES)
    intensities = intensities or (0.5, 0.75, 1.0)
    disturbances = DISTURBANCES if "all" in disturbances else disturbances
    script = timetable(
        seed,
        seconds,
        hosts=settings.hosts,
        kinds=kinds,
        intensities=intensities,
        share=None if swing else share,
        drain=drain,
        overload=overload,
        disturbances=disturbances,
    )
    note = ", ".join(
        [
            "no noise"
            if calm
            else f"{'/'.join(kinds)} at intensity {'/'.join(f'{intensity:g}' for intensity in intensities)}",
            "load 20% to 70% of capacity" if swing else f"load {share:.0%} of capacity",
            *(["weights moved"] if drain else []),
            *(["overload"] if overload else []),
            *(["Samples by event"] if by_event else []),
            *disturbances,
            f"seed {seed}",
        ]
    )
    with Lab(replace(settings, by_event=by_event), progress) as cluster:
        recording.record(cluster, script, out, note, progress)


@lab.command(epilog="Example: slackwater lab demo --seconds 30")
@click.option(
    "--seconds",
    type=click.FloatRange(5),
    default=12.0,
    show_default=True,
    help="Length of each act, of the calm one half.",
)
@click.option("--stay", is_flag=True, envvar="DEMO_STAY", help="Keep it up at the end, until Ctrl-C.")
@cluster_options
def demo(settings: LabSettings, seconds: float, stay: bool) -> None:
    """Show it: calm, a neighbour with static weights, and twice with Slackwater. Status 1 if it did not help.

    First it acts by what the balancer sees, then with monitors on the web servers.
    """
    from slackwater_lab.stories import demo as play

    with Lab(settings, click.echo) as cluster:
        wrong = play.run(cluster, seconds, stay, click.echo)
    if wrong:
        sys.exit(1)


for command in (
    *(
        ablate,
        ablate_detector,
        balancer_view,
        calm,
        simulate,
        balance,
        compare,
        capacity,
        signals,
        cost,
    ),
    *(governor, governor_policies),
):
    lab.add_command(command)
