"""The command `slackwater lab ablate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import click
from rich.table import Table

from slackwater_lab.cells import Pieces, side_by_side
from slackwater_lab.cluster.terminal import console
from slackwater_lab.options import jobs_option, json_option, pieces_options, progress, write_json

if TYPE_CHECKING:
    from slackwater.detector.classify.tree import Model
    from slackwater_lab.ablate.data import Key, Line
    from slackwater_lab.ablate.summary import Row

BALANCES = ("leastconn", "random", "roundrobin")


def _play(model: Model, code: str, commit: str | None, machine: str, left: tuple[Key, tuple[str, ...]]) -> Line:
    from slackwater_lab.ablate.data import Line
    from slackwater_lab.ablate.mechanisms import named
    from slackwater_lab.ablate.play import cpu_s, play

    key, names = left
    began_s = cpu_s()
    played = play(*key, named(names, key.balance), model)
    return Line(
        code=code,
        commit=commit,
        machine=machine,
        **key._asdict(),
        cpu_s=round(cpu_s() - began_s, 1),
        alone=played.alone,
        everything=played.everything,
        off=played.off,
        same=played.same,
    )


@click.command(
    epilog="Example: slackwater lab ablate --scenarios 300 --seed 77 --minutes 30"
    " --data docs/results/ablation.jsonl --page docs/results/ablation.md"
)
@click.option(
    "--scenarios", type=click.IntRange(1), default=20, show_default=True, help="Scenarios drawn from each seed."
)
@click.option("--seed", "seeds", multiple=True, type=int, help="Same seed, same scenarios; repeatable.  [default: 77]")
@click.option(
    "--balance",
    "balances",
    multiple=True,
    type=click.Choice(BALANCES),
    help="Repeatable.  [default: leastconn and random]",
)
@click.option(
    "--off", "names", multiple=True, metavar="MECHANISM", help="Mechanism to switch off; repeatable.  [default: each]"
)
@jobs_option
@pieces_options("scenarios that are played")
@click.option("--list", "only_list", is_flag=True, help="Only list the mechanisms.")
@json_option
def ablate(
    scenarios: int,
    seeds: tuple[int, ...],
    balances: tuple[str, ...],
    names: tuple[str, ...],
    jobs: int | None,
    pieces: Pieces,
    only_list: bool,
    json_file: str | None,
) -> None:
    """Play drawn scenarios in the simulator with each mechanism of the decision off, and show what each brings.

    With --data it can be stopped at any time, and the same command goes on. Figures of another state of the decision
    code or the simulator are left out, and played again. The decision code has no switches for this: what is off is
    replaced from outside, by name.
    """
    from slackwater.core.config import DetectorSettings
    from slackwater.detector.service import choose_model
    from slackwater_lab.ablate import data, page
    from slackwater_lab.ablate.mechanisms import MECHANISMS
    from slackwater_lab.ablate.seams import refuse_unknown
    from slackwater_lab.ablate.summary import summary
    from slackwater_lab.cluster import machine
    from slackwater_lab.cluster.commit import commit
    from slackwater_lab.compare.measured import machine_of

    refuse_unknown(names, MECHANISMS)
    if only_list:
        for mechanism in MECHANISMS.values():
            click.echo(f"{mechanism.name:26}{mechanism.off}{_under(mechanism.balances)}")
        return
    lines = data.read(pieces.data) if pieces.data else []
    code = data.code_digest()
    keys = [
        data.Key(seed, number, balance)
        for number in range(scenarios)
        for seed in seeds or (77,)
        for balance in balances or BALANCES[:2]
    ]
    left = [] if pieces.replay else data.left(lines, code, keys, names)
    model = choose_model(DetectorSettings(model=""))
    work = partial(_play, model, code, commit(), machine_of(machine.bare()))
    try:
        for line in side_by_side(work, left, len(keys), "scenarios", progress, pieces.until_mono_s, jobs):
            lines.append(line)
            pieces.keep(line)
    finally:
        pieces.write_page(partial(page.page, lines))
    balances_rows = summary(data.of_one_state(lines))
    as_json = {name: [asdict(row) | {"brings": row.brings} for row in rows] for name, rows in balances_rows.items()}
    if write_json({"code": code, "commit": commit(), "balances": as_json}, json_file):
        _show(balances_rows)


def _under(balances: frozenset[str]) -> str:
    return "" if len(balances) == len(BALANCES) else f" (under {' and '.join(sorted(balances))})"


def _show(balances: Mapping[str, Sequence[Row]]) -> None:
    from slackwater_lab.ablate.page import shown

    for balance, rows in balances.items():
        title = f"{balance}: {rows[0].scenarios} scenarios; ratios of geometric means"
        columns = (
            "off",
            "differs",
            "mean to alone",
            "p99",
            "worst mean",
            "mean to everything",
            "p99",
            "brings",
            "lines",
        )
        table = Table(*columns, title=title, box=None)
        for row in rows:
            alone = (f"{row.alone_mean.value:.3f}", f"{row.alone_p99.value:.3f}", f"{row.worst_mean:.2f}")
            table.add_row(
                row.name, str(row.differs), *alone, shown(row.mean), shown(row.p99), row.brings, str(row.lines)
            )
        console().print(table)
