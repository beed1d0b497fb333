"""Which balance algorithm works best with Slackwater, as it was measured: `slackwater lab balance` writes the figures
that are read here (docs/results/balance.md has all of them)."""

from __future__ import annotations

from pathlib import Path

import msgspec

from lbengine.backends.haproxy.algorithms import CONFIGURED

FILE = Path(__file__).with_name("measured.json")


class Ratio(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Median over the scenarios, with its 95% interval; absent of too few scenarios."""

    median: float
    low: float | None = None
    high: float | None = None


class Response(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of response times: their mean and percentiles over all requests of a scenario."""

    mean: Ratio
    p95: Ratio
    p99: Ratio


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One algorithm with Slackwater. All are ratios, scenario by scenario."""

    to_best: Response
    """To the best algorithm with Slackwater."""
    to_alone: Response
    """To the same algorithm without Slackwater."""
    to_best_worst: float
    """Of the means, in the worst scenario."""
    to_alone_worst: float
    worse_than_alone: int
    """Scenarios whose mean is more than 10% above that without Slackwater."""


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `slackwater lab balance` found."""

    command: str
    commit: str | None
    scenarios: int
    best: str
    """The algorithm whose means are least on average, by logarithm."""
    balances: dict[str, Measured]
    """By HAProxy's name."""


def read(path: Path = FILE) -> Measurement:
    """Raises OSError, msgspec.MsgspecError."""
    return msgspec.json.decode(path.read_bytes(), type=Measurement)


def advice(balance: str, backend: str, found: Measurement) -> tuple[str, str] | None:
    """Where another algorithm was surely better with Slackwater: what was measured, and what to change."""
    name = CONFIGURED.get(balance, balance)
    measured = found.balances.get(name)
    if measured is None or measured.to_best.mean.low is None or measured.to_best.mean.low <= 1.0:
        return None
    mean, p95, p99 = measured.to_best.mean, measured.to_best.p95, measured.to_best.p99
    return (
        f"`balance {name}` was slower with Slackwater than `balance {found.best}` in {found.scenarios} simulated"
        f" scenarios: at the median {mean.median:.2f} times the mean response time (95% sure: {mean.low:.2f} to"
        f" {mean.high:.2f}), {p95.median:.2f} times the p95, {p99.median:.2f} times the p99",
        f"`balance {found.best}` in backend `{backend}` of HAProxy's configuration, then reload HAProxy",
    )
