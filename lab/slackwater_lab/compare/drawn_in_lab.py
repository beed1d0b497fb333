"""Scenarios that were drawn and run in the lab: each policy against `leastconn` over all of them, and its worst ten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slackwater_lab.compare.comparison import FIGURES, Cells
from slackwater_lab.compare.measured import Measured
from slackwater_lab.compare.statistics import Estimate, ratio
from slackwater_lab.compare.tables import REFERENCE, WORSE, WORST
from slackwater_lab.experiment.drawn import HOSTS, named

DECIDES = "mean_ms"
"""By it the worst are found."""


def summary(runs: Sequence[Measured], cells: Cells) -> dict[str, Any]:
    """`rows`: policy, figure, better, worse, ratio. `worst`: policy -> rows, the worst first."""
    by_policy: dict[str, list[Mapping[str, Any]]] = {}
    for cell in cells:
        if cell["policy"] != REFERENCE and cell["ratio"].get(REFERENCE, {}).get(DECIDES) is not None:
            by_policy.setdefault(cell["policy"], []).append(cell)
    levels = {cell["scenario"]: cell for cell in cells if cell["policy"] == REFERENCE}
    return {
        "scenarios": len(levels),
        "rows": [(policy, *_over_all(own, figure)) for policy, own in by_policy.items() for figure in FIGURES],
        "worst": {policy: _worst(own, levels) for policy, own in by_policy.items()},
        "rounds": max((run.round for run in runs), default=1),
    }


def _over_all(own: Cells, figure: str) -> tuple[str, int, int, int, Estimate | None]:
    """The figure, how many scenarios there are, how many are better and worse, and the mean ratio."""
    ratios = [of["value"] for cell in own if (of := cell["ratio"][REFERENCE][figure]) is not None]
    better, worse = (sum(sign * (value - 1.0) > WORSE for value in ratios) for sign in (-1, 1))
    return FIGURES[figure], len(ratios), better, worse, ratio((value, 1.0) for value in ratios)


def _worst(own: Cells, levels: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    order = sorted(own, key=lambda cell: cell["ratio"][REFERENCE][DECIDES]["value"], reverse=True)
    rows = []
    for cell in order[:WORST]:
        scenario = named(cell["scenario"])
        assert scenario is not None
        kinds = dict.fromkeys(neighbour.kind for neighbour in scenario.neighbours)
        row = [cell["scenario"].rpartition("-")[2], f"{len(scenario.hosts)} of {HOSTS}", f"{scenario.load:.0%}"]
        row += [", ".join(kinds), f"{cell['ratio'][REFERENCE][DECIDES]['value']:.2f}"]
        row += [f"{levels[cell['scenario']][key]['value']:.1f} → {cell[key]['value']:.1f}" for key in FIGURES]
        rows.append(row)
    return rows
