"""A comparison: runs its plan in the lab, one run after the other, and goes on where it was interrupted."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from pathlib import Path

import msgspec

from lab.cluster import machine
from lab.cluster.lab import Lab
from lab.cluster.load import Demand
from lab.compare import comparison as comparisons
from lab.compare.comparison import Comparison
from lab.compare.resumable import paced
from lab.experiment import recording
from lab.experiment.drawn import named
from lab.experiment.recording import ExperimentError, Run
from lab.experiment.run import one_run
from lab.experiment.scenarios import Scenario
from lab.experiment.steady import capacity_rps

Progress = Callable[[str], None]
CAPACITIES = 3
"""The capacity is the median of so many measurements."""


def begin(folder: Path, asked: Comparison) -> Comparison:
    """The plan to go on with: the one in the folder, if it asks the same, or this one, which is then written.

    Raises ExperimentError when the folder holds another comparison.
    """
    if not (folder / comparisons.FILE).exists():
        comparisons.save(folder, asked)
        return asked
    found = comparisons.load(folder)
    if not found.same_question(asked):
        raise ExperimentError(
            f"{folder}: it holds another comparison ({len(found.runs)} runs, seed {found.seed}); expected the same"
            " scenarios, policies, rounds, seed and hosts to go on with, or an empty folder"
        )
    return found


def run(folder: Path, made: Comparison, progress: Progress, until_mono_s: float = float("inf")) -> None:
    """Runs what is not recorded yet; after `until_mono_s` no further run is begun. Raises LabError."""
    left = [one for one in made.runs if not recording.done(folder, one)]
    pieces = paced(left, len(made.runs), "runs", progress, until_mono_s)
    for app, runs in itertools.groupby(pieces, lambda one: _scenario(one).app):
        with Lab(made.settings(app), progress) as lab:
            made = _measure_capacity(folder, made, lab, app, progress)
            for one in runs:
                _one(lab, one, folder, made, progress)


def _scenario(one: Run) -> Scenario:
    found = named(one.scenario)
    if found is None:
        raise ExperimentError(f"no scenario `{one.scenario}`: the plan is of another version")
    return found


def _one(lab: Lab, one: Run, folder: Path, made: Comparison, progress: Progress) -> None:
    progress(f"round {one.round}: {one.scenario}, {one.policy}")
    scenario = _scenario(one)
    assert scenario.load is not None
    capacity = made.capacity_rps[scenario.app]
    demand = Demand(rate_rps=round(scenario.load * capacity, 1), clients=scenario.clients)
    one_run(lab, one, scenario, demand, capacity).save(folder)


def measured_rps(lab: Lab, app: str, progress: Progress) -> float:
    """The application's capacity in calm, in requests per second. Raises LabError."""
    found = round(statistics.median(capacity_rps(lab) for _ in range(CAPACITIES)), 1)
    progress(f"{app}: capacity {found:g} requests/s in calm")
    return found


def _measure_capacity(folder: Path, made: Comparison, lab: Lab, app: str, progress: Progress) -> Comparison:
    """The plan with the application's capacity: all runs ask for shares of one and the same number."""
    if app in made.capacity_rps:
        return made
    found = measured_rps(lab, app, progress)
    made = msgspec.structs.replace(
        made, capacity_rps={**made.capacity_rps, app: found}, machine=made.machine or machine.describe(lab)
    )
    comparisons.save(folder, made)
    return made
