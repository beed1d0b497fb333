"""Many scenarios drawn from a seed in the simulator: played on all cores, each a line of the data file when it is done,
and the players against `leastconn` over all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.table import Table

from slackwater.detector.classify.tree import Model
from slackwater_lab import cells
from slackwater_lab.cluster.commit import commit
from slackwater_lab.compare.tables import WORSE, WORST
from slackwater_lab.experiment.recording import ExperimentError
from slackwater_lab.sim import drawn
from slackwater_lab.sim.drawn import REFERENCE

FORMAT = 1
DATA = "scenarios.jsonl"
SHOWN_WORST = 5
"""Rows of the page for each player."""
MEASURES = ("second_means_median_ms", "mean_ms", "p95_ms", "p99_ms")
"""The first is ICE's measure and decides which player is worse."""


class Played(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A scenario that was played."""

    v: int = FORMAT
    seed: int
    number: int
    commit: str | None
    setup: dict[str, Any]
    """Fields of `slackwater_lab.sim.setup.Setup`."""
    players: dict[str, dict[str, Any]]
    """Player -> response times."""


def read(folder: Path, seed: int, count: int, players: Sequence[str]) -> list[Played]:
    """The first `count` scenarios of a seed that all these players have played, by number. Raises ExperimentError."""
    lines = cells.read(folder / DATA, Played, FORMAT, "a scenario that was played")
    by_number = {
        scenario.number: scenario
        for scenario in lines
        if scenario.seed == seed and scenario.players.keys() >= set(players)
    }
    return [by_number[number] for number in range(count) if number in by_number]


def _play(model: Model, seed: int, players: Sequence[str], by: str | None, number: int) -> Played:
    return Played(seed=seed, number=number, commit=by, **drawn.play(drawn.scenario(seed, number), players, model))


def run(
    folder: Path,
    seed: int,
    count: int,
    players: Sequence[str],
    model: Model,
    progress: Callable[[str], None],
    until_mono_s: float = float("inf"),
) -> list[Played]:
    """Plays what is left of the first `count` scenarios, and gives all that are played by `until_mono_s`.

    Raises ExperimentError.
    """
    if REFERENCE not in players:
        raise ExperimentError(f"{', '.join(players)}: expected {REFERENCE} among them, which all are held against")
    done = {scenario.number for scenario in read(folder, seed, count, players)}
    left = [number for number in range(count) if number not in done]
    work = partial(_play, model, seed, players, commit())
    # For a single scenario other processes, which import the whole lab, cost more than they save.
    alone = len(left) == 1 and until_mono_s == float("inf")
    results = map(work, left) if alone else cells.side_by_side(work, left, count, "scenarios", progress, until_mono_s)
    for played in results:
        cells.append(folder / DATA, played)
    return read(folder, seed, count, players)


def summary(played: Sequence[Played], count: int, players: Sequence[str]) -> dict[str, Any]:
    """Each player against `leastconn` over all scenarios that were played, and against its own balance alone, with the
    worst ten of each by that.

    A ratio of 1.1 is 10% worse. Of scenarios that nobody can carry (`carried` is false) the queues grow for as long as
    they are simulated. Players whose balance did not play alone are held against `leastconn`.
    """
    rows = [_row(scenario, players) for scenario in played]
    return {
        "seed": played[0].seed if played else None,
        "commits": list(dict.fromkeys(scenario.commit for scenario in played)),
        "asked": count,
        "played": len(rows),
        "carried": sum(row["carried"] for row in rows),
        "players": {name: _against(rows, name, "ratio") for name in players},
        "to_alone": {name: _against(rows, name, "to_alone") for name in players if drawn.alone(name) != name},
        "alone": {name: _alone(name, players) for name in players},
        "worst": {name: _worst(rows, name) for name in players if name != REFERENCE},
    }


def _alone(name: str, players: Sequence[str]) -> str:
    return drawn.alone(name) if drawn.alone(name) in players and drawn.alone(name) != name else REFERENCE


def _row(played: Played, players: Sequence[str]) -> dict[str, Any]:
    setup, felt = played.setup, played.players

    def ratios(name: str, other: str) -> dict[str, float]:
        return {key: felt[name][key] / felt[other][key] for key in MEASURES}

    return {
        "number": played.number,
        "setup": setup,
        "carried": setup["load"] < 1.0 - setup["noisy"] * setup["taken"],
        "felt": {name: felt[name] for name in players},
        "ratio": {name: ratios(name, REFERENCE) for name in players},
        "to_alone": {name: ratios(name, _alone(name, players)) for name in players},
    }


def _against(rows: Sequence[Mapping[str, Any]], name: str, kind: str) -> dict[str, Any]:
    """`kind`: the key of the ratios in a row."""
    figures: dict[str, Any] = {}
    for key in MEASURES:
        ratios = [row[kind][name][key] for row in rows]
        if ratios:
            low, middle, high, most = np.percentile(ratios, [5, 50, 95, 100]).tolist()
            figures[key] = {
                **{"median": middle, "p5": low, "p95": high, "most": most},
                "worse": sum(ratio > 1.0 + WORSE for ratio in ratios),
                "worse_carried": sum(row[kind][name][key] > 1.0 + WORSE for row in rows if row["carried"]),
                "better": sum(ratio < 1.0 / (1.0 + WORSE) for ratio in ratios),
            }
    figures["best"] = sum(
        row["felt"][name][MEASURES[0]] <= min(felt[MEASURES[0]] for felt in row["felt"].values()) for row in rows
    )
    return figures


def _worst(rows: Sequence[Mapping[str, Any]], name: str) -> list[dict[str, Any]]:
    order = sorted(rows, key=lambda row: row["to_alone"][name][MEASURES[0]], reverse=True)
    return [
        {key: row[key] for key in ("number", "setup", "carried")}
        | {"ratio": row["to_alone"][name], "ours": row["felt"][name]}
        for row in order[:WORST]
    ]


def tables(result: Mapping[str, Any], shown: Sequence[str]) -> list[Table]:
    """A table of all players against `leastconn`, one of those that have their balance alone beside them against that,
    and the ten worst scenarios of the players in `shown`."""
    of = f"{result['played']} of {result['asked']} scenarios, seed {result['seed']}: ratios"
    shared = [_everybody(result["players"], f"against {REFERENCE}, {of}")]
    if result["to_alone"]:
        named = {f"{name} to {result['alone'][name]}": ratios for name, ratios in result["to_alone"].items()}
        shared.append(_everybody(named, f"against the same balance alone, {of}"))
    return [*shared, *(_worst_table(name, result["worst"][name]) for name in shown if name in result["worst"])]


def _everybody(players: Mapping[str, Mapping[str, Any]], title: str) -> Table:
    columns = ("player", "means/s: median", "5% to 95%", "most", "worse by 10%", "of these carried")
    table = Table(*columns, "p95: median", "worse", "p99: median", "worse", title=title, box=None)
    for name, ratios in players.items():
        if MEASURES[0] in ratios:
            first, p95, p99 = (ratios[key] for key in (MEASURES[0], "p95_ms", "p99_ms"))
            cells = [f"{first['median']:.2f}", f"{first['p5']:.2f} to {first['p95']:.2f}", f"{first['most']:.1f}"]
            cells += [str(first["worse"]), str(first["worse_carried"])]
            cells += [text for two in (p95, p99) for text in (f"{two['median']:.2f}", str(two["worse"]))]
            table.add_row(name, *cells)
    return table


def page(result: Mapping[str, Any], shown: Sequence[str], command: str) -> str:
    """The page of these scenarios, in Markdown, with the worst of the players in `shown`."""
    worst = {name: [_worst_row(row) for row in result["worst"][name][:SHOWN_WORST]] for name in shown}
    values = dict(result) | {"worst": worst, "command": command, "decides": MEASURES[0]}
    return cells.templates("slackwater_lab.compare").get_template("simulated.md.jinja").render(values)


def _worst_table(name: str, worst: Sequence[Mapping[str, Any]]) -> Table:
    columns = ("number", "servers, kind", "load", "noisy, taken", "episodes s", "carried", "means/s ms", "ratio")
    table = Table(*columns, "p95 ratio", "p99 ratio", title=f"{name}: the worst {len(worst)}", box=None)
    for row in worst:
        table.add_row(*_worst_row(row))
    return table


def _worst_row(row: Mapping[str, Any]) -> list[str]:
    setup, ratio = row["setup"], row["ratio"]
    kind = "quota, shared" if setup["machine_cores"] else "quota" if setup["quota_cores"] else "even"
    return [
        *(str(row["number"]), f"{setup['servers']}, {kind}", f"{setup['load']:.2f}"),
        f"{round(setup['noisy'] * setup['servers'])}, {setup['taken']:.2f}",
        *(f"{setup['episode_s']:.1f}" if setup["episode_s"] else "all", "yes" if row["carried"] else "no"),
        f"{row['ours'][MEASURES[0]]:.1f} for {row['ours'][MEASURES[0]] / ratio[MEASURES[0]]:.1f}",
        *(f"{ratio[key]:.2f}" for key in (MEASURES[0], "p95_ms", "p99_ms")),
    ]
