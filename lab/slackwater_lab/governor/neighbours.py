"""The table `neighbours`: the policies of the table `heimdall` beside a neighbour that comes and goes.

The machine, the service and its target are Heimdall's. A neighbour takes part of the cores' speed for some seconds,
again and again. The detector's Verdict follows its coming and its going with a delay: uniform from 0 to 1 s. The
detector was measured to have a median of 0.4 s and a 95th percentile of 1.7 s (docs/results/detector-scores.md). Only
our policy uses the Verdict; `slackwater, no Verdict` is the same policy without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slackwater.governor.policies.slackwater import Slackwater
from slackwater_lab.governor import heimdall_table
from slackwater_lab.governor.figures import Figure, one_by_one
from slackwater_lab.governor.heimdall import STEP_S, TARGET_MS, PolicyTrace, bound_w, machine, run, trace
from slackwater_lab.governor.heimdall_table import Row
from slackwater_lab.governor.queues import Floats

LOAD = 0.6
"""Share of Heimdall's load: with all of it not even all cores at the highest clock would meet the target beside the
neighbour."""
PAUSE_S, STAY_S = (10.0, 40.0), (5.0, 25.0)
"""Time between two episodes, and of one; uniform."""
SPEED = (0.7, 0.9)
"""What the neighbour leaves of the cores' speed; uniform, another in each episode."""
VERDICT_WITHIN_S = 1.0
GOAL_PERCENT = 97.0
BLIND = "slackwater, no Verdict"


@dataclass(frozen=True)
class Episode:
    """Times in seconds."""

    begin_s: float
    end_s: float
    speed: float
    """The speed that is left of the cores."""
    verdict_s: float
    """Time from which the Verdict is `interference`."""
    calm_s: float
    """Time from which the Verdict is calm again."""


@dataclass(frozen=True)
class Neighbour:
    """Called with a time in s: the speed that is left, and whether the Verdict is `interference`."""

    episodes: tuple[Episode, ...]
    verdicts: bool = True

    def __call__(self, time_s: float) -> tuple[float, bool]:
        speed = next((episode.speed for episode in self.episodes if episode.begin_s <= time_s < episode.end_s), 1.0)
        return speed, self.verdicts and any(episode.verdict_s <= time_s < episode.calm_s for episode in self.episodes)

    def beside(self, seconds: int) -> npt.NDArray[np.bool_]:
        """(N,) the neighbour was there in part of the second."""
        is_beside = np.zeros(seconds, dtype=bool)
        for episode in self.episodes:
            is_beside[int(episode.begin_s) : int(np.ceil(episode.end_s))] = True
        return is_beside


def neighbour(seed: int, seconds: float) -> Neighbour:
    """The episodes of a seed; the same for all policies."""
    random = np.random.default_rng([seed, 3])
    episodes: list[Episode] = []
    end_s = 0.0
    while end_s < seconds:
        begin_s = end_s + random.uniform(*PAUSE_S)
        end_s = begin_s + random.uniform(*STAY_S)
        speed = random.uniform(*SPEED)
        verdict_s, calm_s = (instant_s + random.uniform(0.0, VERDICT_WITHIN_S) for instant_s in (begin_s, end_s))
        episodes.append(Episode(begin_s, end_s, speed, verdict_s, calm_s))
    return Neighbour(tuple(episodes))


ROWS: dict[str, Row] = {
    **{name: row for name, row in heimdall_table.ROWS.items() if not row.learnt},
    BLIND: Row(lambda processor, _: Slackwater(processor, TARGET_MS)),
}


def compare(
    seeds: Sequence[int],
    curve: str,
    progress: Callable[[str], None] = lambda _: None,
    *,
    step_s: int = STEP_S,
    rows: dict[str, Row] = ROWS,
) -> list[Figure]:
    """The table's figures."""
    processor = machine(curve)
    load = LOAD * trace(step_s)
    neighbours = {seed: neighbour(seed, float(len(load))) for seed in seeds}
    runs = {
        name: [
            run(
                row.make(processor, seed),
                processor,
                seed,
                load,
                Neighbour(neighbours[seed].episodes, verdicts=name != BLIND),
            )
            for seed in one_by_one(seeds, f"neighbours: {name}", progress)
        ]
        for name, row in rows.items()
    }
    most_w = [float(run.watts.mean()) for run in runs["static"]]
    figures: list[Figure] = []
    for name, several in runs.items():
        goal = (GOAL_PERCENT, None) if name == "slackwater" else (None, None)
        figures += [
            Figure("whole trace", name, "guarantee %", [run.guarantee_percent for run in several], "", *goal),
            Figure("whole trace", name, "tardiness", [run.tardiness for run in several]),
            Figure("whole trace", name, "energy saved %", _saved(several, most_w)),
        ]
        pairs = [(run, neighbours[seed].beside(len(load))) for seed, run in zip(seeds, several, strict=True)]
        within = [_within(run.p95_ms[beside]) for run, beside in pairs]
        figures.append(Figure("beside the neighbour", name, "guarantee %", within))
    alone_w = bound_w(processor, load)
    figures.append(
        Figure(
            "bound without a neighbour",
            "bound",
            "energy saved %",
            [100.0 * (1.0 - alone_w / watts) for watts in most_w],
        )
    )
    return figures


def _within(p95_ms: Floats) -> float:
    """Share of seconds within the target in %; NaN without any."""
    return 100.0 * (1.0 - float(np.mean(p95_ms > TARGET_MS))) if len(p95_ms) else float("nan")


def _saved(runs: Sequence[PolicyTrace], most_w: Sequence[float]) -> list[float]:
    """Energy in % of `static`'s beside the same neighbour."""
    return [100.0 * (1.0 - float(run.watts.mean()) / most) for run, most in zip(runs, most_w, strict=True)]
