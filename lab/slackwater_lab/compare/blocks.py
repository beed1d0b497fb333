"""Runs in blocks: a block is one round of one scenario, all its variants in random order, so that variants are compared
within a block. What the data file lacks of what is asked for is measured."""

from __future__ import annotations

import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
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
from slackwater_lab.experiment.run import one_run
from slackwater_lab.experiment.scenarios import AFTER_S, CALM_S, SCENARIOS, Scenario
from slackwater_lab.experiment.steady import capacity_rps

AROUND_S = 24.0
"""Time of a run besides its phases: warm-up, settling, programs that start and end."""
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

    variants: Mapping[str, Sequence[str]]
    """Scenario -> policies, both in the order in which they are shown; scenarios are measured in this order."""
    rounds: int
    seed: int = 1
    """Decides the order of the runs in each block."""

    def __post_init__(self) -> None:
        policies = dict.fromkeys(chain.from_iterable(self.variants.values()))
        for names, table, kind in ((self.variants, SCENARIOS, "scenario"), (policies, POLICIES, "policy")):
            known = named if kind == "scenario" else POLICIES.get
            if unknown := [name for name in names if known(name) is None]:
                raise ExperimentError(f"no {kind} `{unknown[0]}`; there are: {', '.join(table)}")
            if not names:
                raise ExperimentError(f"expected one {kind} at least, got none")
        for chosen in self.variants.values():
            if len(set(chosen)) < len(chosen):
                raise ExperimentError(f"expected each policy once, got: {', '.join(chosen)}")

    def only(self, scenarios: Sequence[str], variants: Sequence[str]) -> Question:
        """These scenarios and variants of it; empty: all. Raises ExperimentError for others."""
        if unknown := [name for name in scenarios if name not in self.variants]:
            raise ExperimentError(f"no scenario `{unknown[0]}`; there are: {', '.join(self.variants)}")
        chosen = {name: self.variants[name] for name in scenarios or self.variants}
        every = dict.fromkeys(chain.from_iterable(chosen.values()))
        if unknown := [name for name in variants if name not in every]:
            raise ExperimentError(f"no variant `{unknown[0]}`; there are: {', '.join(every)}")
        wanted = variants or every
        return replace(
            self, variants={name: [variant for variant in chosen[name] if variant in wanted] for name in chosen}
        )

    def asks_for(self, run: Measured) -> bool:
        return run.variant in self.variants.get(run.scenario, ())


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
    """Raises ExperimentError where a run was measured on hosts of another number, quota or period."""
    asked = {"hosts": settings.hosts, "quota_cores": settings.quota_cores, "period_s": settings.period_s}
    for run in measured:
        actual = {key: run.machine[key] for key in asked}
        if (run.hosts, actual) != (settings.kind, asked):
            raise ExperimentError(
                f"the folder has runs on other hosts ({run.hosts}, {actual}): expected {settings.kind}, {asked}"
            )


def left(measured: Sequence[Measured], whole: Question, common: Block, asked: Question | None = None) -> list[Piece]:
    """What is not measured yet, in order: each scenario's first round before any second, so that whoever stops early
    knows something of all. A block goes on only where and as it was begun (`common`); else it is left as it is, and
    another round is measured in its place. Blocks have the variants of `whole`, in an order of them all; those that are
    not `asked` for may follow another time."""
    asked = asked or whole
    pieces: list[tuple[int, Piece]] = []
    for name in asked.variants:
        wanted = frozenset(asked.variants[name])
        blocks: dict[Block, list[Measured]] = {}
        for run in measured:
            if (run.hosts, run.scenario) == (common.hosts, name):
                blocks.setdefault(run.block, []).append(run)
        lacking = {block: wanted - {run.variant for run in runs} for block, runs in blocks.items()}
        partial = [block for block, variants_left in lacking.items() if variants_left]
        done = len(blocks) - len(partial)
        used = {block.round for block in blocks}
        fresh = (number for number in range(1, len(used) + asked.rounds + 1) if number not in used)
        resumable = [block for block in partial if block == common._replace(scenario=name, round=block.round)]
        for place in range(done, asked.rounds if wanted else 0):
            block = resumable.pop(0) if resumable else common._replace(scenario=name, round=next(fresh))
            first = next(iter(blocks.get(block, [])), None)
            seed, capacity = (first.seed, first.capacity_rps) if first else (_seed(whole.seed, block), None)
            variants = tuple(whole.variants[name])
            pieces.append((place, Piece(block, seed, variants, lacking.get(block, wanted), capacity)))
    return [piece for _, piece in sorted(pieces, key=itemgetter(0))]


def _seed(seed: int, block: Block) -> int:
    return random.Random(f"{seed} {block.hosts} {block.scenario} {block.round}").randrange(2**31)


def about_s(measured: Sequence[Measured], block: Block) -> float:
    """The expected length of a run: the longest run of its scenario so far, or else the sum of its parts."""
    took = [run.took_s for run in measured if (run.hosts, run.scenario) == (block.hosts, block.scenario)]
    return max(took, default=AROUND_S + CALM_S + scenario_of(block.scenario).seconds + AFTER_S)


class Blocks:
    """Measures blocks one run after the other, each into the data file as soon as it has ended."""

    def __init__(self, out: Path, data: Path, settings: LabSettings, progress: Progress) -> None:
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
            return bool(queue) and time.monotonic() + opening_s + about_s(done, queue[0][0].block) <= until_mono_s

        while fits(OPENING_S):
            app = scenario_of(queue[0][1].scenario).app
            with Lab(replace(self._settings, app=app, retunable=True), self._progress) as lab:
                self._look(lab, app)
                while fits() and scenario_of(queue[0][1].scenario).app == app:
                    piece, run = queue.popleft()
                    self._progress(f"{run.scenario}, round {piece.block.round}: {run.policy}; then {len(queue)} left")
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
        folder = self._out / piece.folder
        begun_unix_s, begun_mono_s = time.time(), time.monotonic()
        outcome = one_run(lab, run, scenario, Demand(rate_rps=rate_rps, clients=scenario.clients), capacity)
        took_s = time.monotonic() - begun_mono_s
        outcome.save(folder)
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
