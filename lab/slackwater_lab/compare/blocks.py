"""Runs in blocks: a block is one round of one scenario, all its variants in random order, so that variants are compared
within a block. What the data file lacks of what is asked for is measured."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from slackwater_lab.cells import append
from slackwater_lab.cluster import machine
from slackwater_lab.cluster.commit import commit, decision_commit
from slackwater_lab.cluster.lab import Lab, LabSettings
from slackwater_lab.cluster.load import Demand
from slackwater_lab.cluster.machines import HostKind
from slackwater_lab.cluster.paths import LabError
from slackwater_lab.compare import results
from slackwater_lab.compare.measured import MACHINE, PROGRAMS, Block, Measured, machine_of
from slackwater_lab.experiment.drawn import named
from slackwater_lab.experiment.measures import TIMES
from slackwater_lab.experiment.policies import POLICIES
from slackwater_lab.experiment.recording import ExperimentError, Run
from slackwater_lab.experiment.run import CALM_S, SETTLE_S, aims_of, one_run
from slackwater_lab.experiment.scenarios import SCENARIOS, Scenario
from slackwater_lab.experiment.steady import capacity_rps

AROUND_S = 5.0
"""Time of a run besides its phases: programs that start and end, the way back."""
OPENING_S = 45.0
"""Time of a lab's start, with the measurement of the capacity."""
CAPACITIES = 3
"""The capacity is the median of this number of measurements."""
MOST_FAILED = 3
"""This number of failed runs is no accident."""
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Question:
    """The runs that are asked for. Raises ExperimentError for an unknown name."""

    scenarios: Sequence[str]
    """In the order in which they are shown and measured."""
    policies: Sequence[str]
    """The variants of each block, in the order in which they are shown."""
    rounds: int
    """Number of blocks of each scenario."""
    seed: int = 1
    """Decides the order of the runs in each block."""

    def __post_init__(self) -> None:
        for kind, names, known in (("scenario", self.scenarios, named), ("policy", self.policies, POLICIES.get)):
            if unknown := [name for name in names if known(name) is None]:
                table = SCENARIOS if kind == "scenario" else POLICIES
                raise ExperimentError(f"no {kind} `{unknown[0]}`; there are: {', '.join(table)}")
            if not names:
                raise ExperimentError(f"expected one {kind} at least, got none")
            if len(set(names)) < len(names):
                raise ExperimentError(f"expected each {kind} once, got: {', '.join(names)}")

    @property
    def runs(self) -> int:
        return self.rounds * len(self.scenarios) * len(self.policies)

    def place(self, run: Measured) -> tuple[int, int]:
        """Where a run is shown: by scenario, then by policy."""
        return self.scenarios.index(run.scenario), self.policies.index(run.variant)

    def asks_for(self, run: Measured) -> bool:
        return run.scenario in self.scenarios and run.variant in self.policies


def scenario_of(name: str) -> Scenario:
    """Raises ExperimentError when there is none of this name."""
    scenario = named(name)
    if scenario is None:
        raise ExperimentError(f"no scenario `{name}`; there are: {', '.join(SCENARIOS)}")
    return scenario


@dataclass(frozen=True)
class Piece:
    """A block of which some runs are left."""

    block: Block
    seed: int
    variants: tuple[str, ...]
    """All of the block."""
    wanted: frozenset[str]
    """The variants to measure."""
    capacity_rps: float | None = None
    """The capacity on which the load of the block's other runs is based."""

    @property
    def folder(self) -> str:
        return f"{self.block.hosts}-{self.block.scenario}-{self.block.round}"

    @property
    def left(self) -> list[Run]:
        """The runs to measure, in the block's order."""
        order = list(self.variants)
        random.Random(self.seed).shuffle(order)
        runs = [Run(place, self.block.round, self.block.scenario, name) for place, name in enumerate(order, start=1)]
        return [run for run in runs if run.policy in self.wanted]


def here(hosts: HostKind) -> Block:
    """The machine and the commit of blocks that are measured now, without scenario and round."""
    return Block(hosts, "", 0, machine_of(machine.bare()), decision_commit())


def refuse_other_hosts(measured: Sequence[Measured], settings: LabSettings) -> None:
    """Raises ExperimentError where a run was measured on hosts of another number, quota or period, or on another
    HAProxy."""
    asked: dict[str, Any] = {key: getattr(settings, key) for key in ("hosts", "quota_cores", "period_s")}
    asked["haproxy"] = machine.version_of(settings.haproxy, "-v")
    for run in measured:
        actual = {key: run.machine[key] for key in asked}
        if (run.hosts, actual) != (settings.kind, asked):
            raise ExperimentError(
                f"the data file has runs on another lab ({run.hosts}, {actual}): expected {settings.kind}, {asked}"
            )


def left(measured: Sequence[Measured], question: Question, common: Block) -> list[Piece]:
    """What is not measured yet, in order: each scenario's first round before any second, so that whoever stops early
    knows something of all. A block goes on only where and as it was begun (`common`); else it is left as it is, and
    another round is measured in its place. Scenarios of one application follow each other, so that the lab stays up."""
    wanted = frozenset(question.policies)
    apps = list(dict.fromkeys(scenario_of(name).app for name in question.scenarios))
    pieces: list[tuple[tuple[int, int], Piece]] = []
    for name in question.scenarios:
        blocks: dict[Block, list[Measured]] = {}
        for run in measured:
            if (run.hosts, run.scenario) == (common.hosts, name):
                blocks.setdefault(run.block, []).append(run)
        lacking = {block: wanted - {run.variant for run in runs} for block, runs in blocks.items()}
        partial = [block for block, variants_left in lacking.items() if variants_left]
        used = {block.round for block in blocks}
        fresh = (number for number in range(1, len(used) + question.rounds + 1) if number not in used)
        resumable = [block for block in partial if block == common._replace(scenario=name, round=block.round)]
        app = apps.index(scenario_of(name).app)
        for place in range(len(blocks) - len(partial), question.rounds):
            block = resumable.pop(0) if resumable else common._replace(scenario=name, round=next(fresh))
            first = next(iter(blocks.get(block, [])), None)
            seed, capacity = (first.seed, first.capacity_rps) if first else (_seed(question.seed, block), None)
            piece = Piece(block, seed, tuple(question.policies), lacking.get(block, wanted), capacity)
            pieces.append(((place, -app if place % 2 else app), piece))
    return [piece for _, piece in sorted(pieces, key=itemgetter(0))]


def _seed(seed: int, block: Block) -> int:
    return random.Random(f"{seed} {block.hosts} {block.scenario} {block.round}").randrange(2**31)


def about_s(measured: Sequence[Measured], scenario: str, policy: str) -> float:
    """The expected length of a run: the median of the same runs so far, else of other runs of the scenario, else the
    sum of its parts."""
    of_scenario = [run for run in measured if run.scenario == scenario]
    same = [run for run in of_scenario if run.variant == policy] or of_scenario
    return (
        statistics.median(run.took_s for run in same)
        if same
        else AROUND_S + SETTLE_S + CALM_S + scenario_of(scenario).seconds
    )


def left_s(measured: Sequence[Measured], pieces: Sequence[Piece]) -> float:
    """The expected length of all runs that are left."""
    return math.fsum(about_s(measured, run.scenario, run.policy) for piece in pieces for run in piece.left)


class Blocks:
    """Measures blocks one run after the other, each into the data file as soon as it has ended."""

    def __init__(self, out: Path | None, data: Path, settings: LabSettings, progress: Progress) -> None:
        """`out`: folder of the recordings; None: none are kept."""
        self._out, self._data, self._settings, self._progress = out, data, settings, progress
        self._capacity_rps: dict[str, float] = {}
        self._machine: dict[str, Any] = {}

    def run(self, pieces: Sequence[Piece], measured: Sequence[Measured], until_mono_s: float = float("inf")) -> int:
        """How many runs are left; none is begun that would end after `until_mono_s`. A run that fails is left too.

        Raises LabError after some failed ones, ExperimentError, OSError.
        """
        queue = deque((piece, run) for piece in pieces for run in piece.left)
        done, failed = list(measured), 0

        def fits(opening_s: float = 0.0) -> bool:
            if not queue:
                return False
            about = about_s(done, queue[0][1].scenario, queue[0][1].policy)
            return time.monotonic() + opening_s + about <= until_mono_s

        while fits(OPENING_S):
            app = scenario_of(queue[0][1].scenario).app
            with Lab(replace(self._settings, app=app, retunable=True), self._progress) as lab:
                self._look(lab, app)
                while fits() and scenario_of(queue[0][1].scenario).app == app:
                    piece, run = queue.popleft()
                    rest_s = math.fsum(about_s(done, later.scenario, later.policy) for _, later in queue)
                    self._progress(
                        f"{run.scenario}, round {piece.block.round}: {run.policy}; then {len(queue)} runs are left,"
                        f" about {rest_s / 60:.0f} min"
                    )
                    try:
                        done.append(self._measured(lab, piece, run))
                        append(self._data, done[-1])
                    except LabError as error:
                        failed += 1
                        self._progress(f"this run failed and does not count: {error}")
                        if failed >= MOST_FAILED:
                            raise
                        break  # whatever it left behind, the next run has a lab of its own
        return len(queue) + failed

    def _look(self, lab: Lab, app: str) -> None:
        facts = machine.describe(lab)
        self._machine = {key: facts[key] for key in (*MACHINE, *PROGRAMS)}
        if app not in self._capacity_rps:
            self._capacity_rps[app] = measured_rps(lab, app, self._progress)

    def _measured(self, lab: Lab, piece: Piece, run: Run) -> Measured:
        scenario = scenario_of(run.scenario)
        capacity = piece.capacity_rps or self._capacity_rps[scenario.app]
        rate_rps = round(scenario.load * capacity, 1)
        aims_of(lab, scenario)  # measured once, and not in a run's time
        begun_unix_s, begun_mono_s = time.time(), time.monotonic()
        outcome = one_run(lab, run, scenario, Demand(rate_rps=rate_rps, clients=scenario.clients), capacity)
        took_s = time.monotonic() - begun_mono_s
        if self._out is not None:
            outcome.save(self._out / piece.folder)
        figures = results.of_run(outcome.recorded)
        return Measured(
            begun=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(begun_unix_s)),
            took_s=round(took_s, 1),
            machine=self._machine,
            commit=commit(),
            decision_commit=piece.block.decision_commit,
            hosts=piece.block.hosts,
            scenario=run.scenario,
            balance=POLICIES[run.policy].balance,
            variant=run.policy,
            round=piece.block.round,
            seed=piece.seed,
            capacity_rps=capacity,
            rate_rps=rate_rps,
            calm=_kept(figures["calm"]),
            loud=_kept(figures["loud"]),
        )


def measured_rps(lab: Lab, app: str, progress: Progress) -> float:
    """The application's capacity in calm, in requests per second. Raises LabError."""
    capacity = round(statistics.median(capacity_rps(lab) for _ in range(CAPACITIES)), 1)
    progress(f"{app}: capacity {capacity:g} requests/s in calm")
    return capacity


KEPT = ("requests", "errors", "errors_share", *TIMES, *results.ANSWERS)


def _kept(figures: Mapping[str, Any]) -> dict[str, float | None]:
    """The figures that the page and the goals need, rounded."""
    return {key: None if figures[key] is None else round(figures[key], 5) for key in KEPT if key in figures}
