"""HAProxy's balance algorithms under Slackwater, over drawn scenarios: the figures that `slackwater check` reads, and
their page."""

from __future__ import annotations

import math
import statistics as plain
from collections.abc import Mapping, Sequence

from slackwater.lbengine.backends.haproxy.measured import MeasuredAlgorithm, Measurement, Ratio, Response
from slackwater_lab.cells import templates
from slackwater_lab.compare import statistics
from slackwater_lab.compare.drawn import Played
from slackwater_lab.experiment.recording import ExperimentError

ALONE = {"roundrobin": "static", "leastconn": "leastconn", "random": "random2"}
"""HAProxy's name -> the player without Slackwater."""
WITH = {"roundrobin": "slackwater", "leastconn": "slackwater-lc", "random": "slackwater-random2"}
PLAYERS = (*ALONE.values(), *WITH.values())
WORSE = 1.1
"""Times the mean without Slackwater."""

Felt = Mapping[str, Mapping[str, float]]
"""Player -> response times of a scenario."""


def measured(played: Sequence[Played], command: str) -> Measurement:
    """The figures of scenarios that `PLAYERS` played. Raises ExperimentError without any."""
    if not played:
        raise ExperimentError("no scenario is played yet: expected one at least; the same command goes on")
    felt: list[Felt] = [scenario.players for scenario in played]

    def average(name: str) -> float:
        return plain.fmean(math.log(scenario[WITH[name]]["mean_ms"]) for scenario in felt)

    best = min(ALONE, key=average)

    def response(ours: str, theirs: str) -> Response:
        return Response(*(_ratio(felt, ours, theirs, key) for key in ("mean_ms", "p95_ms", "p99_ms")))

    def of(name: str) -> MeasuredAlgorithm:
        to_best, to_alone = (_ratios(felt, WITH[name], other, "mean_ms") for other in (WITH[best], ALONE[name]))
        return MeasuredAlgorithm(
            to_best=response(WITH[name], WITH[best]),
            to_alone=response(WITH[name], ALONE[name]),
            to_best_worst=max(to_best),
            to_alone_worst=max(to_alone),
            worse_than_alone=sum(ratio > WORSE for ratio in to_alone),
        )

    commits = dict.fromkeys(scenario.commit for scenario in played if scenario.commit)
    return Measurement(command, ", ".join(commits) or None, len(felt), best, {name: of(name) for name in ALONE})


def _ratios(felt: Sequence[Felt], ours: str, theirs: str, key: str) -> list[float]:
    return [scenario[ours][key] / scenario[theirs][key] for scenario in felt]


def _ratio(felt: Sequence[Felt], ours: str, theirs: str, key: str) -> Ratio:
    estimate = statistics.median(_ratios(felt, ours, theirs, key))
    assert estimate is not None
    return Ratio(estimate.value, estimate.low, estimate.high)


def page(measurement: Measurement) -> str:
    """The page of these figures, in Markdown."""
    return (
        templates("slackwater_lab.compare")
        .get_template("balance.md.jinja")
        .render(measurement=measurement, shown=_shown)
    )


def _shown(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None:
        return f"{ratio.median:.2f}"
    return f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
