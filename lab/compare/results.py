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
from lab.compare.comparison import load
from lab.compare.statistics import Estimate, change, median
from lab.experiment import cost, latency, recording
from lab.experiment.drawn import named
from lab.experiment.measures import TIMES, figures
from lab.experiment.recording import Recorded

MEASURES = (*TIMES, "errors_share", "answers_s", "detected_s")


def of_run(recorded: Recorded) -> dict[str, Any]:
    """All figures of a run. Requests that never got a response count as errors of the disturbed phase."""
    marks = recorded.marks

    def phase(begin_s: float, end_s: float, lost: int = 0) -> dict[str, Any]:
        return dict(figures(recorded, recorded.due_s, begin_s, end_s, lost))

    loud = phase(marks.on_s, marks.off_s, recorded.lost) | answers(recorded)
    return {
        "round": recorded.run.round,
        "scenario": recorded.run.scenario,
        "policy": recorded.run.policy,
        "calm": phase(marks.calm_s, marks.on_s),
        "loud": loud,
        "after": phase(marks.off_s, marks.end_s),
        "cost": recorded.facts.get("cost", {}),
        "left": left(recorded.facts.get("cpu", {})),
        "commit": recorded.facts.get("commit"),
    }


def answers(recorded: Recorded) -> dict[str, Any]:
    """How soon the policy answered: the first weight, and the first Verdicts where they are recorded."""
    marks = recorded.marks
    scenario = named(recorded.run.scenario)
    assert scenario is not None
    members = hosts(max(scenario.hosts) + 1)
    noisy = {members[number].name for number in scenario.hosts}
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


def summary(folder: Path) -> dict[str, Any]:
    """The comparison as JSON: medians over rounds with intervals, changes against every other policy, and whether it
    is whole. Raises ExperimentError."""
    made = load(folder)
    runs = [run for run in made.runs if recording.done(folder, run)]
    found = [of_run(recording.read(folder, run)) for run in runs]
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
            cell[name] = _as_json(median(values))
        cell["answered"] = sum(run["loud"]["answers_s"] is not None for run in mine.values())
        cell["detections"] = detections(mine.values())
        calm = [run["calm"]["p95_ms"] for run in mine.values() if run["calm"]["p95_ms"] is not None]
        cell["calm_p95_ms"] = _as_json(median(calm))
        cell["change"] = {
            other: {name: _as_json(versus(found, scenario, policy, other, name)) for name in TIMES}
            for other in policies
            if other != policy and mine.keys() & of(found, scenario, other).keys()
        }
        cells.append(cell)
    return cells


def detections(runs: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """Of all neighbours of these runs: how many there were, how many were found, and seconds to the first Verdict;
    None: no Verdicts are recorded."""
    recorded = [run["loud"]["detections_s"] for run in runs if run["loud"]["detections_s"] is not None]
    if not recorded:
        return None
    delays = [delay for one in recorded for delay in one]
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


def _as_json(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else asdict(estimate)
