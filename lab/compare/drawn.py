"""Many scenarios drawn from a seed in the simulator: played on all cores, each on disk when it is done, and the players
against `leastconn` over all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.table import Table

from detector.classify.tree import Model
from lab.compare import resumable
from lab.compare.tables import WORSE, WORST
from lab.experiment.recording import ExperimentError
from lab.sim import drawn
from lab.sim.drawn import REFERENCE

FORMAT = 1
PLAN, LINES = "drawn.json", "scenarios.jsonl"
MEASURES = ("second_means_median_ms", "mean_ms", "p95_ms", "p99_ms")
"""The first, ICE's measure, decides who is worse."""


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was asked for. Scenarios of the same seed are the same however many there are."""

    v: int
    seed: int
    players: list[str]
    commit: str | None


def begin(folder: Path, seed: int, players: Sequence[str], commit: str | None) -> Plan:
    """The plan to go on with. Raises ExperimentError when the folder holds another one."""
    if REFERENCE not in players:
        raise ExperimentError(f"{', '.join(players)}: expected {REFERENCE} among them, which all are held against")
    asked = Plan(FORMAT, seed, list(players), commit)
    if not (folder / PLAN).exists():
        folder.mkdir(parents=True, exist_ok=True)
        resumable.save(folder / PLAN, asked)
        return asked
    found = resumable.load(folder / PLAN, Plan, FORMAT, "drawn scenarios")
    if (found.seed, found.players) != (asked.seed, asked.players):
        raise ExperimentError(
            f"{folder}: it holds seed {found.seed} with {', '.join(found.players)}; expected the same to go on with, or"
            " an empty folder"
        )
    return found


def lines(folder: Path) -> list[dict[str, Any]]:
    """What was played so far, by number. Raises ExperimentError."""
    path = folder / LINES
    if not path.exists():
        return []
    try:
        found = [json.loads(line) for line in resumable.whole_lines(path.read_bytes()).splitlines()]
    except ValueError as error:
        raise ExperimentError(f"{path}: not scenarios that were played: {error}") from None
    return sorted(found, key=lambda one: int(one["number"]))


def _play(model: Model, plan: Plan, number: int) -> dict[str, Any]:
    return {"number": number} | drawn.play(drawn.scenario(plan.seed, number), plan.players, model)


def run(
    folder: Path,
    plan: Plan,
    count: int,
    model: Model,
    progress: Callable[[str], None],
    until_mono_s: float = float("inf"),
) -> None:
    """Plays what is left of the first `count` scenarios; what is not done by `until_mono_s` is given up."""
    played = lines(folder)
    done = {one["number"] for one in played}
    left = [number for number in range(count) if number not in done]
    if not left:
        return
    with (folder / LINES).open("w") as file:  # without a line that was cut
        for one in played:
            file.write(json.dumps(one) + "\n")
    work = partial(_play, model, plan)
    with (folder / LINES).open("a") as file:
        for found in resumable.side_by_side(work, left, count, "scenarios", progress, until_mono_s):
            file.write(json.dumps(found) + "\n")
            file.flush()


def summary(folder: Path, count: int) -> dict[str, Any]:
    """Each player against `leastconn` over all scenarios that were played, and the worst ten of each.

    A ratio of 1.1 is 10% worse. Of scenarios that nobody can carry (`carried` is false) the queues grow for as long as
    they are simulated.
    """
    plan = resumable.load(folder / PLAN, Plan, FORMAT, "drawn scenarios")
    played = [one for one in lines(folder) if one["number"] < count]
    rows = [_row(one, plan.players) for one in played]
    return {
        "seed": plan.seed,
        "commit": plan.commit,
        "asked": count,
        "played": len(rows),
        "carried": sum(row["carried"] for row in rows),
        "players": {name: _against(rows, name) for name in plan.players},
        "worst": {name: _worst(rows, name) for name in plan.players if name != REFERENCE},
    }


def _row(played: Mapping[str, Any], players: Sequence[str]) -> dict[str, Any]:
    setup, felt = played["setup"], played["players"]
    reference = felt[REFERENCE]
    return {
        "number": played["number"],
        "setup": setup,
        "carried": setup["load"] < 1.0 - setup["noisy"] * setup["taken"],
        "felt": felt,
        "ratio": {name: {key: felt[name][key] / reference[key] for key in MEASURES} for name in players},
    }


def _against(rows: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in MEASURES:
        ratios = [row["ratio"][name][key] for row in rows]
        if ratios:
            low, middle, high, most = np.percentile(ratios, [5, 50, 95, 100]).tolist()
            worse = sum(ratio > 1.0 + WORSE for ratio in ratios)
            carried = sum(row["ratio"][name][key] > 1.0 + WORSE for row in rows if row["carried"])
            found[key] = {
                "median": middle, "p5": low, "p95": high, "most": most, "worse": worse, "worse_carried": carried
            }  # fmt: skip
    found["best"] = sum(
        row["felt"][name][MEASURES[0]] <= min(one[MEASURES[0]] for one in row["felt"].values()) for row in rows
    )
    return found


def _worst(rows: Sequence[Mapping[str, Any]], name: str) -> list[dict[str, Any]]:
    order = sorted(rows, key=lambda row: row["ratio"][name][MEASURES[0]], reverse=True)
    return [
        {key: row[key] for key in ("number", "setup", "carried")}
        | {"ratio": row["ratio"][name], "ours": row["felt"][name], REFERENCE: row["felt"][REFERENCE]}
        for row in order[:WORST]
    ]


def tables(found: Mapping[str, Any], shown: Sequence[str]) -> list[Table]:
    """Everybody against `leastconn`, and the worst ten of those that are to be shown."""
    title = f"against {REFERENCE}, {found['played']} of {found['asked']} scenarios, seed {found['seed']}: ratios"
    columns = ("player", "means/s: median", "5% to 95%", "most", "worse by 10%", "of these carried")
    everybody = Table(*columns, "p95: median", "worse", "p99: median", "worse", title=title, box=None)
    for name, one in found["players"].items():
        first, p95, p99 = (one.get(key) for key in (MEASURES[0], "p95_ms", "p99_ms"))
        if first is not None:
            cells = [f"{first['median']:.2f}", f"{first['p5']:.2f} to {first['p95']:.2f}", f"{first['most']:.1f}"]
            cells += [str(first["worse"]), str(first["worse_carried"])]
            cells += [text for two in (p95, p99) for text in (f"{two['median']:.2f}", str(two["worse"]))]
            everybody.add_row(name, *cells)
    return [everybody, *(_worst_table(name, found["worst"][name]) for name in shown if name in found["worst"])]


def _worst_table(name: str, worst: Sequence[Mapping[str, Any]]) -> Table:
    columns = ("number", "servers", "kind", "load", "noisy", "taken", "episodes s", "carried", "means/s ms", "ratio")
    table = Table(*columns, "p95 ratio", "p99 ratio", title=f"{name}: the worst {len(worst)}", box=None)
    for one in worst:
        setup, ratio = one["setup"], one["ratio"]
        kind = "quota, shared" if setup["machine_cores"] else "quota" if setup["quota_cores"] else "even"
        cells = [str(one["number"]), str(setup["servers"]), kind, f"{setup['load']:.2f}"]
        cells += [f"{round(setup['noisy'] * setup['servers'])}", f"{setup['taken']:.2f}"]
        cells += [f"{setup['episode_s']:.1f}" if setup["episode_s"] else "all", "yes" if one["carried"] else "no"]
        cells += [f"{one['ours'][MEASURES[0]]:.1f} for {one[REFERENCE][MEASURES[0]]:.1f}"]
        table.add_row(*cells, *(f"{ratio[key]:.2f}" for key in (MEASURES[0], "p95_ms", "p99_ms")))
    return table
