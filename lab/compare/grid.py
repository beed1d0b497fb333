"""MaxClients x pm.max_children, calm and beside a neighbour: ICE's figure of why a web server is retuned.

One host's real Apache and php-fpm are started anew for each cell and asked by a closed loop through the balancer. Cells
come in a random order from a seed, round by round; each is on disk when it is done, and the same question goes on where
it was.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lab.cluster import machine
from lab.cluster.hosts import Host
from lab.cluster.lab import Lab, LabSettings
from lab.cluster.load import Demand
from lab.compare import resumable
from lab.experiment.measures import figures
from lab.experiment.recording import ExperimentError
from lab.experiment.steady import set_weights, stay, stop_programs

FORMAT = 1
QUESTION, CELLS = "grid.json", "cells.parquet"
WORKERS = (4, 8, 16, 32, 64)
CHILDREN = (1, 2, 4, 8, 16)
CLIENTS = 16
SETTLE_S = 1.5
CALM_S = 4.0
NOISY_S = 6.0
MARGIN_S = 3.0
PHASES = ("calm", "noisy")
MEASURES = ("requests", "errors", "rps", "mean_ms", "p50_ms", "p95_ms", "p99_ms")
THREADS_A_PROCESS = 64
FAILED = 0.01
"""A cell that fails more of its requests is not the best, however quick."""
ROW = pa.schema(
    [("round", pa.int64()), ("workers", pa.int64()), ("children", pa.int64()), ("phase", pa.string())]
    + [(name, pa.int64() if name in ("requests", "errors") else pa.float64()) for name in MEASURES]
)


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was asked for."""

    v: int
    seed: int
    rounds: int
    workers: list[int]
    """Values of MaxRequestWorkers, MaxClients as it was called."""
    children: list[int]
    """Values of pm.max_children."""
    noise: str
    clients: int
    machine: dict[str, Any] = {}

    def cells(self) -> list[tuple[int, int, int]]:
        """Round, workers and children of each cell, in the order in which they are measured."""
        dice = random.Random(self.seed)
        found = []
        for number in range(1, self.rounds + 1):
            pairs = [(workers, children) for workers in self.workers for children in self.children]
            dice.shuffle(pairs)
            found += [(number, *pair) for pair in pairs]
        return found


def question(rounds: int, seed: int, workers: Sequence[int], children: Sequence[int], noise: str) -> Question:
    """Raises ExperimentError for values that Apache or php-fpm cannot have."""
    if not workers or not children or min([*workers, *children]) < 1:
        raise ExperimentError(
            f"grid: expected workers and children of 1 or more, got {list(workers)} and {list(children)}"
        )
    odd = [one for one in workers if one > THREADS_A_PROCESS and one % THREADS_A_PROCESS]
    if odd:
        raise ExperimentError(f"grid: {odd[0]} workers: expected at most {THREADS_A_PROCESS}, or a multiple of it")
    return Question(FORMAT, seed, rounds, sorted(set(workers)), sorted(set(children)), noise, CLIENTS)


def begin(folder: Path, asked: Question) -> Question:
    """The question to go on with. Raises ExperimentError when the folder holds another one."""
    if not (folder / QUESTION).exists():
        resumable.save(folder / QUESTION, asked)
        return asked
    found = load(folder)
    if msgspec.structs.replace(found, machine={}) != msgspec.structs.replace(asked, machine={}):
        raise ExperimentError(f"{folder}: it holds another grid; expected the same values, rounds and seed")
    return found


def load(folder: Path) -> Question:
    """Raises ExperimentError."""
    return resumable.load(folder / QUESTION, Question, FORMAT, "a grid")


def rows(folder: Path) -> list[dict[str, Any]]:
    """What is measured so far: a row for each cell and phase. Raises ExperimentError."""
    path = folder / CELLS
    if not path.exists():
        return []
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise ExperimentError(f"{path}: not the cells of a grid: {error}") from None
    if not table.schema.equals(ROW):
        raise ExperimentError(f"{path}: not the cells of a grid: it has {', '.join(table.schema.names)}")
    return list(table.to_pylist())


def left(folder: Path, asked: Question) -> list[tuple[int, int, int]]:
    """Cells that are not measured yet."""
    done = {(row["round"], row["workers"], row["children"]) for row in rows(folder)}
    return [cell for cell in asked.cells() if cell not in done]


def run(folder: Path, asked: Question, progress: Callable[[str], None], until_mono_s: float = float("inf")) -> None:
    """Measures what is left; begins no cell after `until_mono_s`. Raises LabError."""
    cells = asked.cells()
    todo = left(folder, asked)
    if not todo:
        return
    with Lab(LabSettings(hosts=2, retunable=True), progress) as lab:
        if not asked.machine:
            asked = msgspec.structs.replace(asked, machine=machine.describe(lab))
            resumable.save(folder / QUESTION, asked)
        set_weights(lab, {host.name: 0 for host in lab.hosts[1:]})
        for cell in resumable.paced(todo, len(cells), "cells", progress, until_mono_s):
            progress(f"round {cell[0]}: {cell[1]} workers, {cell[2]} children")
            _write(folder, [*rows(folder), *_measure(lab, cell, asked)])


def _measure(lab: Lab, cell: tuple[int, int, int], asked: Question) -> list[dict[str, Any]]:
    number, workers, children = cell
    host = lab.hosts[0]
    set_up(lab, host, workers, children)
    load = lab.load(Demand(clients=asked.clients), 2 * SETTLE_S + CALM_S + NOISY_S + MARGIN_S)
    calm_s = load.begin_mono_s + SETTLE_S
    stay(lab, calm_s + CALM_S, load)
    noise = lab.noise(host, asked.noise, 1.0, SETTLE_S + NOISY_S + MARGIN_S)
    noisy_s = noise.on_mono_s + SETTLE_S
    try:
        stay(lab, noisy_s + NOISY_S, load, [noise])
    finally:
        noise.stop()
    requests = load.finish()
    marks = {"calm": (calm_s, calm_s + CALM_S), "noisy": (noisy_s, noisy_s + NOISY_S)}
    found = []
    for phase in PHASES:
        # The generator gives no time for requests without a response: they count where most went wrong.
        lost = requests.lost_count if phase == "noisy" else 0
        measured: dict[str, Any] = dict(figures(requests, requests.due_mono_s, *marks[phase], lost))
        cell_row = {"round": number, "workers": workers, "children": children, "phase": phase}
        found.append(cell_row | {name: measured[name] for name in MEASURES})
    return found


def set_up(lab: Lab, host: Host, workers: int, children: int) -> None:
    """Starts the host's Apache and php-fpm anew with these values."""
    threads = min(workers, THREADS_A_PROCESS)
    (host.folder / "zz-slackwater.conf").write_text(
        f"ServerLimit {workers // threads}\nStartServers 1\nThreadsPerChild {threads}\nMinSpareThreads 1\n"
        f"MaxSpareThreads {workers + threads}\nMaxRequestWorkers {workers}\n"
    )
    (host.folder / "pool.d/zz-slackwater.conf").write_text(f"[web]\npm.max_children = {children}\n")
    for name in ("apache2", "php-fpm8.2"):
        stop_programs(lab, f"{name} of {host.name}")
    lab.start_web_server(host)
    lab.wait_for_page(f"http://{host.address}{lab.app.paths[0]}")


def medians(found: Sequence[dict[str, Any]], measure: str) -> dict[str, dict[tuple[int, int], float]]:
    """Phase -> (workers, children) -> median over the rounds; cells without an answer are left out."""
    middle: dict[str, dict[tuple[int, int], float]] = {phase: {} for phase in PHASES}
    for phase in PHASES:
        for cell in dict.fromkeys((row["workers"], row["children"]) for row in found):
            values = [
                row[measure]
                for row in found
                if (row["workers"], row["children"]) == cell and row["phase"] == phase and row[measure] is not None
            ]
            if values:
                middle[phase][cell] = float(np.median(values))
    return middle


def summary(folder: Path) -> dict[str, Any]:
    """The grid as JSON: its cells' medians, the best of each phase by mean response time, and whether it is whole."""
    asked, found = load(folder), rows(folder)
    by_phase = {measure: medians(found, measure) for measure in MEASURES}
    means = by_phase["mean_ms"]
    best = {}
    for phase in PHASES:
        errors, requests = by_phase["errors"][phase], by_phase["requests"][phase]
        served = [cell for cell in means[phase] if errors[cell] <= FAILED * requests[cell]]
        if served:
            best[phase] = min(served, key=lambda cell: means[phase][cell])
    return {
        "complete": not left(folder, asked),
        "cells_done": len(found) // len(PHASES),
        "cells_planned": len(asked.cells()),
        "question": msgspec.to_builtins(asked),
        "best": {phase: {"workers": cell[0], "children": cell[1]} for phase, cell in best.items()},
        "cells": [
            {"phase": phase, "workers": cell[0], "children": cell[1]}
            | {measure: by_phase[measure][phase].get(cell) for measure in MEASURES}
            for phase in PHASES
            for cell in sorted({key for values in by_phase.values() for key in values[phase]})
        ],
    }


def _write(folder: Path, found: Sequence[dict[str, Any]]) -> None:
    draft = folder / f"{CELLS}.new"
    pq.write_table(pa.Table.from_pylist(list(found), schema=ROW), draft, compression="zstd")
    draft.replace(folder / CELLS)
