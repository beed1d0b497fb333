"""How figures of a comparison are printed."""

from __future__ import annotations

from typing import Any

SHOWN = (
    ("second_means_median_ms", "median of means/s ms", ".1f"),
    ("p50_ms", "p50 ms", ".1f"),
    ("p95_ms", "p95 ms", ".1f"),
    ("p99_ms", "p99 ms", ".1f"),
    ("errors_share", "errors", ".2%"),
    ("answers_s", "answer s", ".2f"),
    ("detected_s", "detected s", ".2f"),
)


def with_interval(estimate: dict[str, Any] | None, form: str) -> str:
    """`12.3 [10.1, 14.9]`; `-` where there is none."""
    if estimate is None:
        return "-"
    if estimate["low"] is None:
        return format(estimate["value"], form)
    return f"{estimate['value']:{form}} [{estimate['low']:{form}}, {estimate['high']:{form}}]"
