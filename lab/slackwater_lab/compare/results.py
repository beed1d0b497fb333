"""From runs to figures: those of one run from what it recorded, and those of many from the data file's lines."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from slackwater_lab.cluster.hosts import hosts
from slackwater_lab.compare.measured import Measured, as_runs
from slackwater_lab.compare.statistics import Estimate, median, ratio
from slackwater_lab.experiment import latency
from slackwater_lab.experiment.drawn import named
from slackwater_lab.experiment.measures import TIMES, figures
from slackwater_lab.experiment.recording import Recorded

ANSWERS = ("answers_s", "detected_s", "back_s", "not_back", "wrong_moves", "later_share")
MEASURES = (*TIMES, "errors_share", "answers_s", "detected_s", "later_share")


def of_run(recorded: Recorded) -> dict[str, dict[str, Any]]:
    """All figures of a run, before the first neighbour (`calm`) and until the last one ended (`loud`).

    Requests that never got a response count as errors beside the neighbours.
    """
    marks = recorded.marks
    calm = figures(recorded, recorded.due_s, marks.calm_s, marks.on_s)
    loud = figures(recorded, recorded.due_s, marks.on_s, marks.off_s, recorded.lost)
    return {"calm": dict(calm), "loud": dict(loud) | answers(recorded)}


def answers(recorded: Recorded) -> dict[str, Any]:
    """The times until the first weight and the first Verdicts, and of the way back."""
    marks = recorded.marks
    scenario = named(recorded.run.scenario)
    assert scenario is not None
    members = hosts(max(scenario.hosts, default=-1) + 1)
    noisy = {members[number].name for number in scenario.hosts}
    beside = recorded.facts["neighbours"]
    times: dict[str, Any] = {
        "answers_s": latency.answer_s(recorded.weights, noisy, marks.calm_s, marks.on_s, marks.off_s),
        "detected_s": None,
        "back_s": latency.back_s(recorded.weights, marks.off_s),
        "later_share": latency.later_share(recorded.weights, noisy, marks.on_s, marks.off_s),
        "not_back": float(latency.is_away(recorded.weights)),
        "wrong_moves": latency.wrong_moves(recorded.weights, beside, marks.calm_s),
    }
    if recorded.verdicts is not None:
        delays = latency.detections(recorded.verdicts, beside)
        seen = [delay for delay in delays if delay is not None]
        times["detected_s"] = statistics.median(seen) if seen else None
    return times


def cells(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """Scenario x policy, for JSON: medians over rounds with intervals, and ratios to every other policy."""
    runs = as_runs(measured)
    scenarios, policies = (list(dict.fromkeys(run[key] for run in runs)) for key in ("scenario", "policy"))
    result = []
    for scenario, policy in itertools.product(scenarios, policies):
        own = of(runs, scenario, policy)
        if not own:
            continue
        cell: dict[str, Any] = {"scenario": scenario, "policy": policy, "rounds": len(own)}
        for name in MEASURES:
            values = [value for run in own.values() if (value := run["loud"].get(name)) is not None]
            cell[name] = _as_json(median(values))
        cell["back_s"] = _back_s([run["loud"] for run in own.values()])
        cell["wrong_moves"] = round(sum(run["loud"]["wrong_moves"] for run in own.values()))
        cell["answered"] = sum(run["loud"]["answers_s"] is not None for run in own.values())
        calm = [run["calm"]["p95_ms"] for run in own.values() if run["calm"]["p95_ms"] is not None]
        cell["calm_p95_ms"] = _as_json(median(calm))
        cell["ratio"] = {
            other: {name: _as_json(versus(runs, scenario, policy, other, name)) for name in TIMES}
            for other in policies
            if other != policy and own.keys() & of(runs, scenario, other).keys()
        }
        result.append(cell)
    return result


def _back_s(figures: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The median time of the way back over the runs that moved a weight, and how many of these were not back at their
    end, which count as later than all others. A median among these is None."""
    away = sum(bool(run["not_back"]) for run in figures)
    back_s = [run["back_s"] for run in figures if run["back_s"] is not None]
    if not back_s and not away:
        return None
    middle = statistics.median([*back_s, *[math.inf] * away])
    return {"value": middle if math.isfinite(middle) else None, "count": len(back_s) + away, "not_back": away}


def of(runs: Sequence[dict[str, Any]], scenario: str, policy: str) -> dict[int, dict[str, Any]]:
    """A policy's runs of a scenario, by round."""
    return {run["round"]: run for run in runs if run["scenario"] == scenario and run["policy"] == policy}


def versus(runs: Sequence[dict[str, Any]], scenario: str, policy: str, other: str, measure: str) -> Estimate | None:
    """A measure of one policy as a multiple of another's, over the rounds that have both."""
    ours, theirs = of(runs, scenario, policy), of(runs, scenario, other)
    rounds = sorted(ours.keys() & theirs.keys())
    return ratio((ours[number]["loud"][measure], theirs[number]["loud"][measure]) for number in rounds)


def _as_json(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else asdict(estimate)
