"""What the evaluation must reach, each with what it did reach."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slackwater_lab.compare import statistics
from slackwater_lab.compare.results import of, versus
from slackwater_lab.compare.statistics import Estimate
from slackwater_lab.experiment.scenarios import SCENARIOS

ROUNDS = 5
"""Rounds that a goal needs; fewer decide nothing."""
STOCK = "leastconn"
"""Runs without any program of ours."""
OURS = "slackwater-lc"
"""Ours on the same balance algorithm."""
PEERS = (
    "static",
    "leastconn",
    "random2",
    "bounded-random",
    "nginx-least-time",
    "traefik-least-time",
    "agent-check",
    "outlier",
    "wsengine-only",
    "ice",
)
ORACLES = {"slackwater-lc": ("oracle-split-lc", "oracle-lc"), "slackwater": ("oracle-split", "oracle")}
"""Ours -> oracles on the same balance algorithm: they know what each server can carry. The first may keep any split,
the second drains where the others can carry everything. The better one counts, where both are measured."""
ORACLE_LC = ORACLES[OURS][1]
BALANCES = {"slackwater-lc": "leastconn", "slackwater": "roundrobin"}
BETTER = ("two", "all", "load-80", "bursts", "stress", "mixed", "devices")
"""Scenarios in which ours must be better than stock."""
MEASURES = {"mean_ms": "mean", "p95_ms": "p95", "p99_ms": "p99"}
WORSE = 1.03
ORACLE = 1.1
ORACLE_P99 = {"slackwater": 1.25, "slackwater-lc": 1.1}
CALM_P99 = 1.2
Runs = Sequence[dict[str, Any]]
"""Runs as `measured.as_runs` makes them; runs of the same round are compared."""


@dataclass(frozen=True)
class Goal:
    """One line: `reached` is None where it was not measured, or in too few rounds or scenarios."""

    question: str
    goal: str
    measured: str
    reached: bool | None

    @property
    def word(self) -> str:
        return {True: "reached", False: "NOT reached", None: "not measured yet"}[self.reached]


@dataclass(frozen=True)
class Against:
    """A figure of ours as a multiple of the best of some others, in one scenario."""

    scenario: str
    figure: str
    other: str
    ratio: Estimate | None

    @property
    def rounds(self) -> int:
        return self.ratio.count if self.ratio is not None else 0

    @property
    def low(self) -> float:
        return self.ratio.low if self.ratio is not None and self.ratio.low is not None else 0.0

    @property
    def high(self) -> float:
        return self.ratio.high if self.ratio is not None and self.ratio.high is not None else math.inf

    @property
    def times(self) -> str:
        """`1.05 times [0.98, 1.12]`."""
        if self.ratio is None:
            return "-"
        if self.ratio.low is None:
            return f"{self.ratio.value:.2f} times"
        return f"{self.ratio.value:.2f} times [{self.ratio.low:.2f}, {self.ratio.high:.2f}]"

    def __str__(self) -> str:
        return f"{self.figure} {self.times} `{self.other}`'s"


def of_lab(runs: Runs) -> list[Goal]:
    """All goals."""
    stock = {name: _each_figure(runs, name, (STOCK,)) for name in SCENARIOS}
    peers = {name: _each_figure(runs, name, PEERS) for name in SCENARIOS}
    figures = ", ".join(MEASURES.values())
    better = ", ".join(f"`{name}`" for name in BETTER)
    goals = [
        _none_above(f"each scenario against stock `{STOCK}`: {figures}", "none worse by more than 3%", WORSE, stock),
        _none_above(
            f"{better} against stock `{STOCK}`: {figures}", "better", 1.0, {name: stock[name] for name in BETTER}
        ),
    ]
    for scenario in ("two", "two-dokuwiki"):
        for ours, oracles in ORACLES.items():
            near = [against(runs, scenario, ours, oracles, key) for key in ("mean_ms", "p95_ms")]
            goals.append(_within(f"`{scenario}`, {BALANCES[ours]}, against the oracle: mean, p95", ORACLE, near))
    for ours, limit in ORACLE_P99.items():
        near = [against(runs, "one", ours, ORACLES[ours], "p99_ms")]
        goals.append(_within(f"`one`, {BALANCES[ours]}, against the oracle: p99", limit, near))
    calm = Against("one", "p99", "calm", _against_calm(runs, OURS))
    possible = Against("one", f"`{ORACLE_LC}`: p99", "calm", _against_calm(runs, ORACLE_LC))
    goals.append(_within("`one`, leastconn, against calm: p99", CALM_P99, [calm], beside=[possible]))
    goals.append(
        _none_above(f"each scenario against its best peer: {figures}", "none worse by more than 3%", WORSE, peers)
    )
    return goals


def against(runs: Runs, scenario: str, ours: str, others: Iterable[str], measure: str) -> Against:
    """A figure of ours against the best other: among those measured most often, that with the highest ratio."""
    ratios = {other: versus(runs, scenario, ours, other, measure) for other in others}
    known = {other: ratio for other, ratio in ratios.items() if ratio is not None}
    if not known:
        return Against(scenario, MEASURES[measure], "-", None)
    enough = min(ROUNDS, max(ratio.count for ratio in known.values()))
    best = max((other for other in known if known[other].count >= enough), key=lambda other: known[other].value)
    return Against(scenario, MEASURES[measure], best, known[best])


def _against_calm(runs: Runs, variant: str) -> Estimate | None:
    """The p99 beside the neighbour as a multiple of the p99 before it."""
    own_runs = of(runs, "one", variant).values()
    return statistics.ratio((run["loud"]["p99_ms"], run["calm"]["p99_ms"]) for run in own_runs)


def _each_figure(runs: Runs, scenario: str, others: Iterable[str]) -> list[Against]:
    return [against(runs, scenario, OURS, others, measure) for measure in MEASURES]


def _none_above(question: str, goal: str, limit: float, figures: Mapping[str, Sequence[Against]]) -> Goal:
    """Reached where the whole interval of each figure in each scenario is at or below the limit."""
    rounds = {name: min(figure.rounds for figure in several) for name, several in figures.items()}
    short = {name: count for name, count in rounds.items() if count < ROUNDS}
    enough = [figure for name, several in figures.items() if rounds[name] >= ROUNDS for figure in several]
    above = [figure for figure in enough if figure.low > limit]
    unsure = [figure for figure in enough if figure.low <= limit < figure.high]
    parts = [
        f"{word}: " + ", ".join(f"`{figure.scenario}` {figure}" for figure in chosen)
        for word, chosen in (("surely not", above), ("not sure", unsure))
        if chosen
    ]
    if enough:
        parts.append(f"sure: {len(enough) - len(above) - len(unsure)} of {len(enough)} figures")
    if short:
        counts = [f"`{name}` {count}" for name, count in short.items() if count]
        counts += [f"{len(short) - len(counts)} scenarios 0"] * (len(counts) < len(short))
        parts.append(f"of {ROUNDS} rounds: {', '.join(counts)}")
    # One figure is enough for a no; a yes takes all of them.
    reached = False if above or unsure else None if short else True
    return Goal(question, f"{goal}, with {statistics.CONFIDENCE:.0%} confidence", "; ".join(parts), reached)


def _within(question: str, limit: float, figures: Sequence[Against], beside: Sequence[Against] = ()) -> Goal:
    """Reached where each figure is at or below the limit; its interval need not be. Figures `beside` are only shown."""
    rounds = min(figure.rounds for figure in figures)
    parts = [str(figure) for figure in (*figures, *beside) if figure.ratio is not None]
    parts.append(f"{rounds} of {ROUNDS} rounds")
    reached = (
        None if rounds < ROUNDS else all(figure.ratio is not None and figure.ratio.value <= limit for figure in figures)
    )
    return Goal(question, f"within {limit:g} times", "; ".join(parts), reached)
