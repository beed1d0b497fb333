"""What each mechanism brings, over all scenarios that were played with it off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slackwater_lab.ablate.data import Line
from slackwater_lab.ablate.mechanisms import BALANCES, EVERYTHING, MECHANISMS
from slackwater_lab.ablate.play import Figures
from slackwater_lab.ablate.seams import lines_of
from slackwater_lab.compare.statistics import Estimate, geometric_mean

WORTH = 1.02
"""A mechanism is worth its code if response times without it grow by this factor or more."""
WORSE = 1.1
"""A scenario is worse if its mean exceeds that of the balancer alone by more than this factor."""
ENOUGH = 100
"""Fewer scenarios are not enough to call an effect small: rare events were hardly drawn."""
BRINGS, LITTLE, UNSURE, HARMS = "yes", "less than 2%", "not shown", "no: better without"


@dataclass(frozen=True)
class Row:
    """One mechanism off, under one balance. Ratios are geometric means over the scenarios."""

    name: str
    off: str
    scenarios: int
    differs: int
    """Scenarios in which something else was set without it."""
    alone_mean: Estimate
    alone_p99: Estimate
    """Ratios to the balancer alone."""
    worst_mean: float
    """Ratio of the means to the balancer alone in the worst scenario."""
    worse: int
    """Scenarios whose mean is above `WORSE`."""
    mean: Estimate
    p99: Estimate
    """Ratios to the decision with everything on."""
    lines: int
    """Lines of code that nothing else needs."""
    guards: str

    @property
    def brings(self) -> str:
        """Whether it is worth its code by mean or p99, in a word; of `everything` there is none."""
        if self.name == EVERYTHING:
            return ""
        if self.scenarios < ENOUGH:
            return UNSURE
        intervals = [
            (estimate.low, estimate.high)
            for estimate in (self.mean, self.p99)
            if estimate.low is not None and estimate.high is not None
        ]
        if len(intervals) < 2:
            return UNSURE
        if any(low >= WORTH for low, _ in intervals):
            return BRINGS
        if all(high <= 1.0 for _, high in intervals) and any(high < 1.0 for _, high in intervals):
            return HARMS
        return LITTLE if all(high < WORTH for _, high in intervals) else UNSURE


def rows(lines: Sequence[Line], balance: str) -> list[Row]:
    """A row for everything and for each mechanism that was played under a balance, in the table's order."""
    under_balance = [line for line in lines if line.balance == balance]
    table = []
    for name in (EVERYTHING, *MECHANISMS):
        played: dict[tuple[int, int], tuple[Line, Figures]] = {}
        for line in under_balance:
            if (figures := line.without(name)) is not None:
                played[line.seed, line.number] = (line, figures)
        if played:
            table.append(_row(name, list(played.values())))
    return table


def _row(name: str, played: Sequence[tuple[Line, Figures]]) -> Row:
    mechanism = MECHANISMS.get(name)
    alone = [figures.mean_ms / line.alone.mean_ms for line, figures in played]
    return Row(
        name=name,
        off="nothing is off" if mechanism is None else mechanism.off,
        scenarios=len(played),
        differs=sum(name in line.off for line, _ in played),
        alone_mean=_mean(alone),
        alone_p99=_mean([figures.p99_ms / line.alone.p99_ms for line, figures in played]),
        worst_mean=max(alone),
        worse=sum(ratio > WORSE for ratio in alone),
        mean=_mean([figures.mean_ms / line.everything.mean_ms for line, figures in played]),
        p99=_mean([figures.p99_ms / line.everything.p99_ms for line, figures in played]),
        lines=0 if mechanism is None else lines_of(mechanism.goes),
        guards="" if mechanism is None else mechanism.guards,
    )


def _mean(ratios: Sequence[float]) -> Estimate:
    mean = geometric_mean(ratios)
    assert mean is not None
    return mean


def summary(lines: Sequence[Line]) -> dict[str, list[Row]]:
    """Balance -> rows, in the order of `BALANCES`."""
    return {balance: made for balance in BALANCES if (made := rows(lines, balance))}
