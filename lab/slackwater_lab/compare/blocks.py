"""Runs in blocks: a block is one scenario under each policy in one round. In a round each policy has its turn, in
random order, in which it plays all scenarios, so that its programs start once. What the data file lacks is measured."""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from slackwater_lab.compare.overload import RunLoad
from slackwater_lab.experiment.drawn import named
from slackwater_lab.experiment.measures import TIMES
from slackwater_lab.experiment.policies import POLICIES
from slackwater_lab.experiment.recording import ExperimentError, Run
from slackwater_lab.experiment.run import CALM_S, SETTLE_S, Session, aims_of
from slackwater_lab.experiment.scenarios import SCENARIOS, Scenario
from slackwater_lab.experiment.steady import capacity_rps

AROUND_S = 5.0
"""Time of a run besides its phases: programs that start and end, the way back."""
OPENING_S = 60.0
"""Time of a lab's start, with the measurement of the capacity and of the neighbours' shares."""
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
    """Decides the order of the runs in each round."""

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
        """The runs to measure."""
        runs = [
            Run(place, self.block.round, self.block.scenario, name) for place, name in enumerate(self.variants, start=1)
        ]
        return [run for run in runs if run.policy in self.wanted]


@dataclass(frozen=True)
class Turn:
    """Runs of one policy, one after the other while its programs are up; all on hosts of the same quotas."""

    policy: str
    runs: deque[tuple[Piece, Run]]
    """Those that are left."""

    @property
    def scenario(self) -> Scenario:
        """The scenario of the first run."""
        return scenario_of(self.runs[0][1].scenario)


def rounds_of(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """The pieces in rounds: each has a scenario once, and one application."""
    rounds: list[list[Piece]] = []
    for piece in pieces:
        scenario = piece.block.scenario
        if (
            not rounds
            or scenario in [other.block.scenario for other in rounds[-1]]
            or scenario_of(scenario).app != scenario_of(rounds[-1][0].block.scenario).app
        ):
            rounds.append([])
        rounds[-1].append(piece)
    return rounds


def turns_of(pieces: Sequence[Piece]) -> list[Turn]:
    """The turns of a round in random order, each with its scenarios in random order."""
    if not pieces:
        return []
    dice = random.Random(pieces[0].seed)
    policies = list(dict.fromkeys(run.policy for piece in pieces for run in piece.left))
    dice.shuffle(policies)
    turns: list[Turn] = []
    for policy in policies:
        runs = [(piece, run) for piece in pieces for run in piece.left if run.policy == policy]
        dice.shuffle(runs)
        runs.sort(key=lambda pair: scenario_of(pair[1].scenario).shape)
        alike = itertools.groupby(runs, lambda pair: scenario_of(pair[1].scenario).shape)
        turns += [Turn(policy, deque(together)) for _, together in alike]
    return turns


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
    return random.Random(f"{seed} {block.hosts} {block.round}").randrange(2**31)


def about_s(measured: Sequence[Measured], scenario: str, policy: str) -> float:
    """The expected length of a run: the mean of the same runs so far, else of other runs of the scenario, else the sum
    of its parts. The first run of a turn takes longer, and any may be the first."""
    of_scenario = [run for run in measured if run.scenario == scenario]
    same = [run for run in of_scenario if run.variant == policy] or of_scenario
    return (
        statistics.fmean(run.took_s for run in same)
        if same
        else AROUND_S + SETTLE_S + CALM_S + scenario_of(scenario).seconds
    )


def left_s(measured: Sequence[Measured], pieces: Iterable[Piece]) -> float:
    """The expected length of all runs that are left."""
    return math.fsum(about_s(measured, run.scenario, run.policy) for piece in pieces for run in piece.left)


def fitting(measured: Sequence[Measured], pieces: Sequence[Piece], left_s_until_end: float) -> Sequence[Piece]:
    """The first pieces of a round that can be measured in this time: a block is of use only if it is whole."""
    for count in range(len(pieces), 0, -1):
        if left_s(measured, pieces[:count]) <= left_s_until_end:
            return pieces[:count]
    return []


class Blocks:
    """Measures blocks, each run into the data file as soon as it has ended."""

    def __init__(self, out: Path | None, data: Path, settings: LabSettings, progress: Progress) -> None:
        """`out`: folder of the recordings; None: none are kept."""
        self._out, self._data, self._settings, self._progress = out, data, settings, progress
        self._capacity_rps: dict[str, float] = {}
        self._machine: dict[str, Any] = {}
        self._measured: list[Measured] = []
        self._rounds: deque[list[Piece]] = deque()
        """Those that are not begun."""
        self._turns: deque[Turn] = deque()
        """Those of the round that is under way."""
        self._until_mono_s = math.inf
        self._again: set[tuple[Piece, Run]] = set()
        """Runs that are repeated, since the machine did not carry them."""

    def run(self, pieces: Sequence[Piece], measured: Sequence[Measured], until_mono_s: float = math.inf) -> int:
        """How many runs are left; none is begun that would end after `until_mono_s`. A run that fails is left too, and
        one that the machine did not carry a second time.

        Raises LabError after some failed ones, ExperimentError, OSError.
        """
        self._measured, self._rounds, self._until_mono_s = list(measured), deque(rounds_of(pieces)), until_mono_s
        failed = 0
        while self._goes_on(OPENING_S):
            app = self._turns[0].scenario.app
            with Lab(replace(self._settings, app=app, retunable=True), self._progress) as lab:
                try:
                    self._look(lab, app)
                    while self._goes_on() and self._turns[0].scenario.app == app:
                        self._play(lab, self._turns[0])
                except LabError as error:  # whatever it left behind, the next run has a lab of its own
                    failed += 1
                    self._progress(f"this run failed and does not count: {error}")
                    if failed >= MOST_FAILED:
                        raise
        return sum(len(piece.left) for piece in pieces) - (len(self._measured) - len(measured))

    def _goes_on(self, opening_s: float = 0.0) -> bool:
        """Whether a turn is left; begins the next round when there is time for it."""
        while self._turns and not self._turns[0].runs:
            self._turns.popleft()
        if not self._turns and self._rounds:
            left_s = self._until_mono_s - time.monotonic() - opening_s
            self._turns.extend(turns_of(fitting(self._measured, self._rounds.popleft(), left_s)))
        return bool(self._turns)

    def _play(self, lab: Lab, turn: Turn) -> None:
        """Measures a turn's runs, as long as there is time."""
        with Session(lab, turn.policy, turn.scenario) as session:
            while turn.runs:
                piece, run = turn.runs[0]
                if time.monotonic() + about_s(self._measured, run.scenario, run.policy) > self._until_mono_s:
                    self._turns.clear()
                    self._rounds.clear()
                    return
                turn.runs.popleft()
                left = [later for other in self._turns for _, later in other.runs]
                left += [later for pieces in self._rounds for whole in pieces for later in whole.left]
                left_min = math.fsum(about_s(self._measured, later.scenario, later.policy) for later in left) / 60
                self._progress(
                    f"{run.scenario}, round {piece.block.round}: {run.policy}; then {len(left)} runs are left, about"
                    f" {left_min:.0f} min"
                )
                made = self._run(session, piece, run)
                append(self._data, made)
                if made.is_carried:
                    self._measured.append(made)
                    continue
                self._progress(f"the machine was overloaded, so this run does not count: {made.machine_load}")
                if (piece, run) not in self._again:
                    self._again.add((piece, run))
                    turn.runs.append((piece, run))

    def _look(self, lab: Lab, app: str) -> None:
        facts = machine.describe(lab)
        self._machine = {key: facts[key] for key in (*MACHINE, *PROGRAMS)}
        if app not in self._capacity_rps:
            self._capacity_rps[app] = measured_rps(lab, app, self._progress)
        scenarios = dict.fromkeys(run.scenario for turn in self._turns for _, run in turn.runs)
        scenarios |= dict.fromkeys(piece.block.scenario for pieces in self._rounds for piece in pieces)
        for scenario in map(scenario_of, scenarios):
            if scenario.app == app and not scenario.quotas:
                aims_of(lab, scenario)  # now, while no policy is on

    def _run(self, session: Session, piece: Piece, run: Run) -> Measured:
        scenario = scenario_of(run.scenario)
        capacity = piece.capacity_rps or self._capacity_rps[scenario.app]
        rate_rps = round(scenario.load * capacity, 1)
        begun_unix_s, begun_mono_s = time.time(), time.monotonic()
        outcome = session.play(run, scenario, Demand(rate_rps=rate_rps, clients=scenario.clients), capacity)
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
            machine_load=RunLoad(**outcome.recorded.facts["machine_load"]),
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
