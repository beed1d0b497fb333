"""The commands of `slackwater governor` on simulated machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click
import msgspec
from rich.table import Table

from slackwater.governor.power import CURVES, DEFAULT, hardware
from slackwater_lab.cluster.terminal import console
from slackwater_lab.governor import core_switch, estimators, heimdall_table, hurry_up, neighbours, pareto
from slackwater_lab.governor.figures import COLUMNS, Figure, cells
from slackwater_lab.governor.plan import PLANNED, Service, Step
from slackwater_lab.governor.plan import plan as plan_of
from slackwater_lab.options import json_option, progress, write_json

Compare = Callable[[Sequence[int], str, Callable[[str], None]], list[Figure]]
TABLES: dict[str, Compare] = {
    "core-switch": core_switch.compare,
    "estimators": estimators.compare,
    "heimdall": heimdall_table.compare,
    "hurry-up": hurry_up.compare,
    "neighbours": neighbours.compare,
    "pareto": pareto.compare,
}
"""Name -> its figures for some seeds and a power model."""
SEEDS = 5
BUSY_HELP = "W that work adds to a core at the highest clock."
curve_option = click.option(
    "--curve",
    type=click.Choice(list(CURVES)),
    default=DEFAULT,
    show_default=True,
    help="Voltage curve of the power model.",
)


@click.command(epilog="Example: slackwater governor compare --table pareto --seeds 5 --json pareto.json")
@click.option("--table", "name", type=click.Choice(list(TABLES)), required=True, help="The paper whose table it is.")
@click.option("--seeds", type=click.IntRange(1), default=SEEDS, show_default=True, help="Runs of each policy.")
@curve_option
@json_option
def compare(name: str, seeds: int, curve: str, json_file: str | None) -> None:
    """Simulate a paper's table: medians over the seeds, beside its numbers and what they may differ by."""
    figures = TABLES[name](range(1, seeds + 1), curve, progress)
    result = {"table": name, "seeds": seeds, "curve": curve, "figures": [figure.as_json() for figure in figures]}
    if not write_json(result, json_file):
        return
    table = Table(*COLUMNS, title=f"{name}: {seeds} seeds, power model {curve}")
    for figure in figures:
        table.add_row(*cells(figure))
    console().print(table)
    claimed = [figure.reached() for figure in figures if figure.reached() is not None]
    click.echo(f"{sum(map(bool, claimed))} of {len(claimed)} claims reached")


class Numbers(click.ParamType[tuple[float, ...]]):
    """Numbers with commas between them."""

    name = "N,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        try:
            numbers = tuple(float(text) for text in value.split(","))
        except ValueError:
            numbers = ()
        if not numbers or not all(0.0 <= number < float("inf") for number in numbers):
            self.fail(f"`{value}`: expected numbers with commas, such as 10,50.5", param, ctx)
        return numbers


@click.command(
    epilog="Example: slackwater governor plan --cores 4 --clocks-mhz 800,1600,2400 --work-ms 8 --target-ms 100"
    " --load 20,200,400"
)
@click.option("--policy", type=click.Choice(list(PLANNED)), default="slackwater", show_default=True)
@click.option("--cores", type=click.IntRange(1, 512), required=True, help="Cores that may serve.")
@click.option("--clocks-mhz", type=Numbers(), required=True, help="Clocks that the cores can have, ascending.")
@click.option(
    "--work-ms",
    type=click.FloatRange(0, min_open=True),
    required=True,
    help="CPU time of a request at the highest clock.",
)
@click.option("--base-ms", type=click.FloatRange(0), default=0.0, help="Response time that is not the server's CPU.")
@click.option("--target-ms", type=click.FloatRange(0, min_open=True), required=True, help="Target of the p95.")
@click.option("--load", type=Numbers(), required=True, help="Requests/s, step by step.")
@click.option("--step-s", type=click.IntRange(1, 3600), default=60, show_default=True, help="Length of a step.")
@click.option("--busy-w", type=click.FloatRange(0, min_open=True), default=3.61, show_default=True, help=BUSY_HELP)
@click.option(
    "--idle-w", type=click.FloatRange(0), default=0.65, show_default=True, help="Power of a core without work, in W."
)
@curve_option
@click.option("--seed", type=int, default=1, show_default=True)
@json_option
def plan(
    policy: str,
    cores: int,
    clocks_mhz: tuple[float, ...],
    work_ms: float,
    base_ms: float,
    target_ms: float,
    load: tuple[float, ...],
    step_s: int,
    busy_w: float,
    idle_w: float,
    curve: str,
    seed: int,
    json_file: str | None,
) -> None:
    """Show the configurations that a policy would choose over a load, on a simulated server.

    Energy is that of a power model, not measured.
    """
    if list(clocks_mhz) != sorted(set(clocks_mhz)) or clocks_mhz[0] <= 0.0:
        raise click.BadParameter("expected ascending clocks above 0", param_hint="--clocks-mhz")
    processor = hardware(curve, cores, clocks_mhz, busy_w=busy_w, base_w=0.0, idle_w=idle_w)
    steps = plan_of(policy, processor, Service(work_ms, target_ms, base_ms), load, step_s, seed)
    result = {"policy": policy, "curve": curve, "steps": [msgspec.to_builtins(step) for step in steps]}
    if not write_json(result, json_file):
        return
    table = Table("requests/s", "cores", "MHz", "of the time", "p95 ms", "seconds in target", "W", "W with all")
    for step in steps:
        table.add_row(*_cells(step))
    console().print(table)


def _cells(step: Step) -> tuple[str, ...]:
    return (
        f"{step.rps:g}",
        str(step.cores),
        f"{step.clock_mhz:g}",
        f"{step.share:.0%}",
        "-" if step.p95_ms is None else f"{step.p95_ms:.3g}",
        f"{step.within_target_percent:.4g}%",
        f"{step.watts:.3g}",
        f"{step.static_watts:.3g}",
    )
