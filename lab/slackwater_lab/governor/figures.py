"""A table's figures beside the paper's numbers: medians over seeds with intervals, and whether they are reached."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from slackwater_lab.compare.statistics import median


def one_by_one(seeds: Sequence[int], title: str, progress: Callable[[str], None]) -> Iterator[int]:
    """The seeds, with a line of progress before each one's run."""
    for number, seed in enumerate(seeds, 1):
        progress(f"{title}: run {number} of {len(seeds)}")
        yield seed


@dataclass(frozen=True)
class Figure:
    """One row of a table: a measure of a policy in a case, once for each seed."""

    case: str
    policy: str
    measure: str
    """Name of the measure, with its unit."""
    values: Sequence[float]
    paper: str = ""
    """The paper's value, in its words."""
    least: float | None = None
    most: float | None = None
    """The allowed range, where something is claimed."""

    def reached(self) -> bool | None:
        """The median is within what is allowed; None where nothing is claimed."""
        estimate = median(self.values)
        if self.least is None and self.most is None:
            return None
        if estimate is None:
            return False
        return (self.least is None or estimate.value >= self.least) and (
            self.most is None or estimate.value <= self.most
        )

    def as_json(self) -> dict[str, Any]:
        estimate = median(self.values)
        return {
            "case": self.case,
            "policy": self.policy,
            "measure": self.measure,
            "values": [round(value, 4) for value in self.values],
            "median": None if estimate is None else round(estimate.value, 4),
            "low": None if estimate is None or estimate.low is None else round(estimate.low, 4),
            "high": None if estimate is None or estimate.high is None else round(estimate.high, 4),
            "paper": self.paper,
            "least": self.least,
            "most": self.most,
            "reached": self.reached(),
        }


COLUMNS = ("case", "policy", "measure", "paper", "allowed", "median", "interval", "reached")


def cells(figure: Figure) -> tuple[str, ...]:
    """One row of text, in the order of COLUMNS."""
    shown = figure.as_json()
    median_, low, high = shown["median"], shown["low"], shown["high"]
    allowed = {
        (False, False): "",
        (True, False): f"at least {figure.least:g}" if figure.least is not None else "",
        (False, True): f"at most {figure.most:g}" if figure.most is not None else "",
    }.get((figure.least is not None, figure.most is not None), f"{figure.least} to {figure.most}")
    return (
        figure.case,
        figure.policy,
        figure.measure,
        figure.paper,
        allowed,
        "-" if median_ is None else f"{median_:.4g}",
        "-" if low is None or high is None else f"{low:.4g} to {high:.4g}",
        {None: "", True: "yes", False: "NOT reached"}[shown["reached"]],
    )
