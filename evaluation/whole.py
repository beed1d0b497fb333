"""The whole evaluation in pieces: what tells most comes first, and a piece fits into the time that is free.

A part is a comparison in a folder of its own. All together take about two and a half hours of a quiet machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from evaluation import compare, grid, plan, recording
from evaluation.scenarios import AFTER_S, CALM_S, SCENARIOS

SEED = 1
AROUND_S = 24.0
"""Of a run, besides calm, disturbance and calm again: warm-up, settling, programs that start and end."""
GRID = "grid"
GRID_CELL_S = 19.0


@dataclass(frozen=True)
class Part:
    """Scenarios x policies x rounds."""

    scenarios: tuple[str, ...]
    policies: tuple[str, ...]
    rounds: int

    def plan(self) -> plan.Plan:
        return plan.plan(self.scenarios, self.policies, self.rounds, SEED)

    def seconds(self) -> float:
        """About how long it takes."""
        return sum(AROUND_S + CALM_S + SCENARIOS[run.scenario].seconds + AFTER_S for run in self.plan().runs)


PARTS: dict[str, Part] = {
    "goals": Part(("one", "one-closed"), ("static", "leastconn", "slackwater", "slackwater-lc", "oracle"), 5),
    "severe": Part(("one-severe",), ("static", "leastconn", "slackwater", "slackwater-lc", "oracle"), 5),
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
            "oracle",
        ),
        1,
    ),
    "others": Part(
        tuple(name for name in SCENARIOS if name not in ("one", "one-closed", "one-severe", "one-70")),
        ("leastconn", "slackwater", "slackwater-lc"),
        1,
    ),
}
"""In this order. Goals are of five rounds; a single round shows only what is far off."""


def minutes() -> dict[str, float]:
    """About how long each part takes, the grid included."""
    found = {name: part.seconds() / 60 for name, part in PARTS.items()}
    return found | {GRID: len(grid.WORKERS) * len(grid.CHILDREN) * GRID_CELL_S / 60}


def run(folder: Path, say: Callable[[str], None], until_mono_s: float = float("inf")) -> bool:
    """Goes on where it was; begins nothing that would end after `until_mono_s`. Whether all is measured.

    Raises CompareError, LabError.
    """
    for name, part in PARTS.items():
        if time.monotonic() >= until_mono_s:
            return False
        made = compare.begin(folder / name, part.plan())
        say(f"{name}: {', '.join(part.scenarios)}; {part.rounds} rounds")
        compare.run(folder / name, made, say, until_mono_s)
        if not all(recording.done(folder / name, one) for one in made.runs):
            return False
    if time.monotonic() >= until_mono_s:
        return False
    asked = grid.begin(folder / GRID, grid.question(1, SEED, grid.WORKERS, grid.CHILDREN, "llcprobe"))
    grid.run(folder / GRID, asked, say, until_mono_s)
    return not grid.left(folder / GRID, asked)


def measured(folder: Path) -> list[Path]:
    """Comparisons that have at least one run."""
    found = []
    for name in PARTS:
        if (folder / name / plan.FILE).exists():
            runs = plan.load(folder / name).runs
            found += [folder / name] * any(recording.done(folder / name, one) for one in runs)
    return found
