"""The measurement of which balance algorithm works best with Slackwater.

`slackwater lab balance` writes the figures that are read here; docs/results/balance.md has all of them.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

DEFAULT = "random"
"""Where a backend has no `balance`, from HAProxy 3.3 on; before it was `roundrobin`."""
FILE = Path(__file__).with_name("measured.json")


class Ratio(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A ratio's median over the scenarios, with its 95% interval; None where the scenarios were too few for one."""

    median: float
    low: float | None = None
    high: float | None = None


class Response(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Ratios of response times: of their mean and percentiles over all requests of a scenario."""

    mean: Ratio
    p95: Ratio
    p99: Ratio


class MeasuredAlgorithm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An algorithm with Slackwater, as ratios that are taken scenario by scenario."""

    to_best: Response
    """Ratio to the best algorithm with Slackwater."""
    to_alone: Response
    """Ratio to the same algorithm without Slackwater."""
    to_best_worst: float
    """Ratio of the means in the worst scenario."""
    to_alone_worst: float
    worse_than_alone: int
    """Number of scenarios whose mean is more than 10% above that without Slackwater."""


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The results of `slackwater lab balance`."""

    command: str
    commit: str | None
    scenarios: int
    best: str
    """The algorithm whose means have the least geometric mean."""
    balances: dict[str, MeasuredAlgorithm]
    """HAProxy's name of the algorithm -> its figures."""


def read(path: Path = FILE) -> Measurement:
    """The measurement that comes with the package. Raises OSError, msgspec.MsgspecError."""
    return msgspec.json.decode(path.read_bytes(), type=Measurement)


def advice(balance: str, backend: str, measurement: Measurement) -> tuple[str, str] | None:
    """(measurement, remedy) in words where another algorithm was surely better with Slackwater; None where not."""
    measured = measurement.balances.get(balance)
    if measured is None or measured.to_best.mean.low is None or measured.to_best.mean.low <= 1.0:
        return None
    mean, p95, p99 = measured.to_best.mean, measured.to_best.p95, measured.to_best.p99
    default = " (HAProxy's default from 3.3 on)" if balance == DEFAULT else ""
    return (
        f"`balance {balance}`{default} was slower with Slackwater than `balance {measurement.best}` in"
        f" {measurement.scenarios} simulated scenarios: at the median {mean.median:.2f} times the mean response time"
        f" (95% sure: {mean.low:.2f} to {mean.high:.2f}), {p95.median:.2f} times the p95, {p99.median:.2f} times the"
        " p99",
        f"`balance {measurement.best}` in backend `{backend}` of HAProxy's configuration, then reload HAProxy",
    )
