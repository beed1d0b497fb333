"""How figures of a comparison are printed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

REFERENCE = "leastconn"
WORST = 10
WORSE = 0.1
"""Smaller changes, up or down, do not count."""
DECIDES = "second_means_median_ms"
"""ICE's measure: by it the worst are found."""
SHOWN = (
    ("second_means_median_ms", "median of means/s ms", ".1f"),
    ("p50_ms", "p50 ms", ".1f"),
    ("p95_ms", "p95 ms", ".1f"),
    ("p99_ms", "p99 ms", ".1f"),
    ("errors_share", "errors", ".2%"),
    ("answers_s", "answer s", ".2f"),
    ("detected_s", "detected s", ".2f"),
    ("later_share", "its share after 2 s", ".1%"),
)


def with_interval(estimate: dict[str, Any] | None, form: str) -> str:
    """`12.3 [10.1, 14.9]`; `-` where there is none."""
    if estimate is None:
        return "-"
    if estimate["low"] is None:
        return format(estimate["value"], form)
    return f"{estimate['value']:{form}} [{estimate['low']:{form}}, {estimate['high']:{form}}]"


def worst(cells: Sequence[dict[str, Any]], policy: str) -> Table:
    """The ten scenarios in which a policy is worst against `leastconn`; a change of +10% is 10% worse.

    The title counts in how many of all it is much worse, and much better.
    """
    against = {
        cell["scenario"]: cell["ratio"][REFERENCE]
        for cell in cells
        if cell["policy"] == policy and cell["ratio"].get(REFERENCE, {}).get(DECIDES) is not None
    }
    decides = {name: ratios[DECIDES]["value"] - 1.0 for name, ratios in against.items()}
    order = sorted(decides, key=lambda name: decides[name], reverse=True)
    worse, better = (sum(sign * change > WORSE for change in decides.values()) for sign in (1, -1))
    title = f"{policy}, {len(order)} scenarios: {worse} worse and {better} better by more than {WORSE:.0%}"
    table = Table("scenario", "means/s", "p95", "p99", title=title, box=None)
    for name in order[:WORST]:
        ratios = [against[name].get(key) for key in (DECIDES, "p95_ms", "p99_ms")]
        table.add_row(name, *("-" if ratio is None else f"{ratio['value'] - 1.0:+.0%}" for ratio in ratios))
    return table
