"""From recorded runs to the comparison's figures; the lab is not needed, so this is also the replay."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from lab.cluster.hosts import hosts
from lab.compare import cost, latency, recording
from lab.compare.plan import load
from lab.compare.policies import POLICIES
from lab.compare.recording import Recorded
from lab.compare.scenarios import SCENARIOS
from lab.compare.statistics import Estimate, change, median

TIMES = ("second_means_median_ms", "mean_ms", "p50_ms", "p95_ms", "p99_ms")
"""Of a run, while neighbours are loud. The first is ICE's: the median over the seconds of each second's mean response
time. In a closed loop the median over requests misleads: a slow server keeps its clients from asking the others."""
MEASURES = (*TIMES, "errors_share", "answers_s", "detected_s")


def phase(recorded: Recorded, begin_s: float, end_s: float) -> dict[str, float | None]:
    """Figures of the requests that were due in [begin, end). Response times are of those answered without an error."""
    due = (recorded.due_s >= begin_s) & (recorded.due_s < end_s)
    good = due & (recorded.status < 400)
    times_ms = 1e3 * recorded.seconds[good]
    asked = int(due.sum())
    found: dict[str, float | None] = {"requests": float(asked), "rps": len(times_ms) / (end_s - begin_s)}
    found["errors_share"] = (asked - len(times_ms)) / asked if asked else None
    if not len(times_ms):
        return found | dict.fromkeys(TIMES)
    p50, p95, p99 = np.percentile(times_ms, [50, 95, 99]).tolist()
    second = np.floor(recorded.due_s[good] - begin_s).astype(np.int64)
    counts = np.bincount(second)
    means = np.bincount(second, times_ms)[counts > 0] / counts[counts > 0]
    return found | {
        "mean_ms": float(times_ms.mean()),
        "p50_ms": p50,
        "p95_ms": p95,
        "p99_ms": p99,
        "second_means_median_ms": float(np.median(means)),
    }


def figures(recorded: Recorded) -> dict[str, Any]:
    """All figures of a run. Requests that never got a response count as errors of the disturbed phase."""
    marks = recorded.marks
    loud = phase(recorded, marks.on_s, marks.off_s)
    asked = (loud["requests"] or 0.0) + recorded.lost
    errors = (loud["errors_share"] or 0.0) * (loud["requests"] or 0.0) + recorded.lost
    loud |= {"requests": asked, "errors_share": errors / asked if asked else None} | answers(recorded)
    return {
        "round": recorded.run.round,
        "scenario": recorded.run.scenario,
        "policy": recorded.run.policy,
        "calm": phase(recorded, marks.calm_s, marks.on_s),
        "loud": loud,
        "after": phase(recorded, marks.off_s, marks.end_s),
        "cost": recorded.facts.get("cost", {}),
        "left": left(recorded.facts.get("cpu", {})),
        "commit": recorded.facts.get("commit"),
    }


def answers(recorded: Recorded) -> dict[str, Any]:
    """How soon the policy answered: the first weight, and the first Verdicts where they are recorded."""
    marks = recorded.marks
    members = hosts(max(SCENARIOS[recorded.run.scenario].hosts) + 1)
    noisy = {members[number].name for number in SCENARIOS[recorded.run.scenario].hosts}
    found: dict[str, Any] = {
        "answers_s": latency.answer_s(recorded.weights, noisy, marks.calm_s, marks.on_s, marks.off_s),
        "detected_s": None,
        "detections_s": None,
    }
    neighbours = recorded.facts.get("neighbours")
    if recorded.verdicts is not None and neighbours is not None:
        delays = latency.detections(recorded.verdicts, neighbours)
        seen = [one for one in delays if one is not None]
        found |= {"detections_s": delays, "detected_s": statistics.median(seen) if seen else None}
    return found


def left(cpu: dict[str, dict[str, float]]) -> float | None:
    """Share of the CPU of the hosts that had a neighbour which their servers got meanwhile; None: not recorded."""
    loud = [one for one in cpu.values() if one["neighbour_s"] > 0.01 * one["loud_s"]]
    whole = sum(one["vm_s"] + one["neighbour_s"] for one in loud)
    return sum(one["vm_s"] for one in loud) / whole if whole else None


def per_second(recorded: Recorded) -> tuple[list[float], list[float]]:
    """Seconds from the first neighbour, and each one's mean response time in ms: for the figure over time."""
    good = recorded.status < 400
    second = np.floor(recorded.due_s[good] - recorded.marks.on_s).astype(np.int64)
    first = int(second.min()) if len(second) else 0
    counts = np.bincount(second - first)
    sums = np.bincount(second - first, 1e3 * recorded.seconds[good])
    some = np.flatnonzero(counts)
    return (some + first).astype(float).tolist(), (sums[some] / counts[some]).tolist()


def summary(folder: Path) -> dict[str, Any]:
    """The comparison as JSON: medians over rounds with intervals, changes against every other policy, and whether it
    is whole. Raises CompareError."""
    made = load(folder)
    runs = [run for run in made.runs if recording.done(folder, run)]
    found = [figures(recording.read(folder, run)) for run in runs]
    return {
        "folder": str(folder),
        "complete": len(runs) == len(made.runs),
        "runs_done": len(runs),
        "runs_planned": len(made.runs),
        "seed": made.seed,
        "rounds": made.rounds,
        "capacity_rps": made.capacity_rps,
        "machine": made.machine,
        "commits": commits(found),
        "cells": _cells(made.scenarios, made.policies, found),
        "cost": costs(made.policies, found),
        "runs": found,
    }


def together(summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Several comparisons as one. Where they have a scenario in common its rounds count together; pairs are of rounds
    of one comparison, so nothing is compared across. Machine and seed are the first one's; each comparison's own facts
    are in `parts`."""
    runs: list[dict[str, Any]] = []
    before = 0
    for one in summaries:
        runs += [run | {"round": before + run["round"]} for run in one["runs"]]
        before += one["rounds"]
    own = ("folder", "complete", "runs_done", "runs_planned", "seed", "rounds", "capacity_rps", "machine", "commits")
    return summaries[0] | {
        "complete": all(one["complete"] for one in summaries),
        "runs_done": sum(one["runs_done"] for one in summaries),
        "runs_planned": sum(one["runs_planned"] for one in summaries),
        "commits": commits(runs),
        "cells": _cells(list(SCENARIOS), list(POLICIES), runs),
        "cost": costs(list(POLICIES), runs),
        "runs": runs,
        "parts": [{key: one[key] for key in own} for one in summaries],
    }


def commits(found: Sequence[dict[str, Any]]) -> list[str]:
    """Of the program that measured: all that were recorded, oldest run first; `not recorded` where one lacks."""
    return list(dict.fromkeys(run["commit"] or "not recorded" for run in found))


def cut_short(found: dict[str, Any]) -> str:
    """What must stand above every table and figure of a comparison that is not whole; empty when it is."""
    if found["complete"]:
        return ""
    return f"CUT SHORT: {found['runs_done']} of {found['runs_planned']} runs; what follows is of these only"


def _cells(scenarios: Sequence[str], policies: Sequence[str], found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    cells = []
    for scenario, policy in itertools.product(scenarios, policies):
        mine = of(found, scenario, policy)
        if not mine:
            continue
        cell: dict[str, Any] = {"scenario": scenario, "policy": policy, "rounds": len(mine)}
        for name in MEASURES:
            values = [run["loud"][name] for run in mine.values() if run["loud"][name] is not None]
            cell[name] = _told(median(values))
        cell["answered"] = sum(run["loud"]["answers_s"] is not None for run in mine.values())
        cell["detections"] = detections(mine.values())
        calm = [run["calm"]["p95_ms"] for run in mine.values() if run["calm"]["p95_ms"] is not None]
        cell["calm_p95_ms"] = _told(median(calm))
        cell["change"] = {
            other: {name: _told(versus(found, scenario, policy, other, name)) for name in TIMES}
            for other in policies
            if other != policy and mine.keys() & of(found, scenario, other).keys()
        }
        cells.append(cell)
    return cells


def detections(runs: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """Of all neighbours of these runs: how many there were, how many were found, and seconds to the first Verdict;
    None: no Verdicts are recorded."""
    told = [run["loud"]["detections_s"] for run in runs if run["loud"]["detections_s"] is not None]
    if not told:
        return None
    delays = [delay for one in told for delay in one]
    seen = [delay for delay in delays if delay is not None]
    p50, p95 = np.percentile(seen, [50, 95]).tolist() if seen else (None, None)
    most = max(seen, default=None)
    return {"neighbours": len(delays), "found": len(seen), "p50_s": p50, "p95_s": p95, "max_s": most}


def costs(policies: Sequence[str], found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What Slackwater itself used: for each policy that has parts of it, medians over all runs."""
    return [
        {"policy": policy} | row
        for policy in policies
        for row in cost.table([run["cost"] for run in found if run["policy"] == policy])
    ]


def of(found: Sequence[dict[str, Any]], scenario: str, policy: str) -> dict[int, dict[str, Any]]:
    """A policy's runs of a scenario, by round."""
    return {run["round"]: run for run in found if run["scenario"] == scenario and run["policy"] == policy}


def versus(found: Sequence[dict[str, Any]], scenario: str, policy: str, other: str, measure: str) -> Estimate | None:
    """By which share a measure of one policy is above another's, over the rounds that both have."""
    ours, theirs = of(found, scenario, policy), of(found, scenario, other)
    rounds = [
        number
        for number in sorted(ours.keys() & theirs.keys())
        if ours[number]["loud"][measure] is not None and theirs[number]["loud"][measure] is not None
    ]
    mine, others = ([float(side[number]["loud"][measure]) for number in rounds] for side in (ours, theirs))
    return change(mine, others)


def _told(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else asdict(estimate)
