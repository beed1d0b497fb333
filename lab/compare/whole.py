"""The whole evaluation in pieces: what tells most comes first, and a piece fits into the time that is free.

A part is a comparison in a folder of its own. `minutes` says how long each takes on a quiet machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lab.compare import compare, comparison, grid
from lab.compare.parts import Parts, Progress
from lab.experiment import recording
from lab.experiment.scenarios import AFTER_S, CALM_S, SCENARIOS

SEED = 1
AROUND_S = 24.0
"""Of a run, besides calm, disturbance and calm again: warm-up, settling, programs that start and end."""
GRID = "grid"
GRID_CELL_S = 19.0
STREAMING = "streaming.json"
"""What the streaming service's test left, if it could be run."""


@dataclass(frozen=True)
class Part:
    """Scenarios x policies x rounds."""

    scenarios: tuple[str, ...]
    policies: tuple[str, ...]
    rounds: int

    def plan(self) -> comparison.Comparison:
        return comparison.planned(self.scenarios, self.policies, self.rounds, SEED)

    def seconds(self) -> float:
        """About how long it takes."""
        return sum(AROUND_S + CALM_S + SCENARIOS[run.scenario].seconds + AFTER_S for run in self.plan().runs)


GOALS = ("static", "leastconn", "slackwater", "slackwater-lc", "oracle")
OTHERS = tuple(name for name in SCENARIOS if name not in ("one", "one-closed", "one-severe", "one-70"))
AGAINST_LEASTCONN = ("leastconn", "slackwater", "slackwater-lc")

PARTS: dict[str, Part] = {
    "goals": Part(("one", "one-closed"), GOALS, 5),
    "severe": Part(("one-severe",), GOALS, 5),
    "peers": Part(
        ("one-70",),
        (
            "static",
            "leastconn",
            "random2",
            "agent-check",
            "outlier",
            "wsengine-only",
            "ice",
            "slackwater",
            "slackwater-lc",
            "bounded-random",
            "nginx-least-time",
            "traefik-least-time",
            "oracle",
            "oracle-split",
            "oracle-split-lc",
        ),
        1,
    ),
    "others": Part(OTHERS, AGAINST_LEASTCONN, 1),
    "peers-again": Part(
        ("one",),
        ("static", "leastconn", "random2", "agent-check", "outlier", "ice", "slackwater-lc", "oracle-lc"),
        5,
    ),
    "second-stage": Part(("long",), ("static", "ice", "slackwater"), 2),
    "others-again": Part(("one-70", *OTHERS), AGAINST_LEASTCONN, 2),
}
"""In this order. A single round shows only what is far off: the last part makes three of it, which decides whether ours
is ever worse than `leastconn`. `peers-again` has `static`, `leastconn` and `slackwater-lc` once more: changes are of
policies in the same round. `second-stage` is an episode long enough for what `ice` does after 10 s."""


def order() -> list[str]:
    """All parts as they are measured: the grid before the last one, which is the longest."""
    *first, last = PARTS
    return [*first, GRID, last]


def minutes() -> dict[str, float]:
    """About how long each part takes; in the order in which they are measured."""
    grid_s = len(grid.WORKERS) * len(grid.CHILDREN) * GRID_CELL_S
    return {name: (grid_s if name == GRID else PARTS[name].seconds()) / 60 for name in order()}


def run(folder: Path, progress: Callable[[str], None], until_mono_s: float = float("inf")) -> bool:
    """Goes on where it was; begins nothing that would end after `until_mono_s`. Whether all is measured.

    Raises ExperimentError, LabError.
    """
    for name in order():
        if time.monotonic() >= until_mono_s:
            return False
        measure = _run_grid if name == GRID else _run_part
        if not measure(folder / name, progress, until_mono_s):
            return False
    return True


def _run_part(folder: Path, progress: Callable[[str], None], until_mono_s: float) -> bool:
    part = PARTS[folder.name]
    made = compare.begin(folder, part.plan())
    progress(f"{folder.name}: {', '.join(part.scenarios)}; {part.rounds} rounds")
    compare.run(folder, made, progress, until_mono_s)
    return all(recording.done(folder, one) for one in made.runs)


def _run_grid(folder: Path, progress: Callable[[str], None], until_mono_s: float) -> bool:
    asked = grid.begin(folder, _grid())
    grid.run(folder, asked, progress, until_mono_s)
    return not grid.left(folder, asked)


def _grid() -> grid.Question:
    return grid.question(1, SEED, grid.WORKERS, grid.CHILDREN, "llcprobe")


def progress(folder: Path) -> list[Progress]:
    """How much of each part is measured, of those too that are not begun. Raises ExperimentError."""
    return [_cells_done(folder / name) if name == GRID else _runs_done(folder / name) for name in order()]


def _runs_done(folder: Path) -> Progress:
    asked = PARTS[folder.name].plan()
    begun = (folder / comparison.FILE).exists() and comparison.load(folder).same_question(asked)
    done = sum(recording.done(folder, one) for one in asked.runs) if begun else 0
    return Progress(folder.name, done, len(asked.runs), "runs")


def _cells_done(folder: Path) -> Progress:
    cells = len(_grid().cells())
    left = len(grid.left(folder, _grid())) if (folder / grid.QUESTION).exists() else cells
    return Progress(folder.name, cells - left, cells, "cells")


def parts(folder: Path, simulated: tuple[Path, ...] = ()) -> Parts:
    """What there is to report on, and what of it is missing. Raises ExperimentError."""
    there = progress(folder)
    return Parts(
        comparisons=[folder / one.part for one in there if one.unit == "runs" and one.done],
        simulated=simulated,
        grid=folder / GRID if any(one.part == GRID and one.done for one in there) else None,
        streaming=folder / STREAMING if (folder / STREAMING).exists() else None,
        evaluation=folder,
        planned=there,
    )
