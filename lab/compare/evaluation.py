"""The evaluation in pieces of any length: blocks of runs, each one round of one scenario with all its variants in
random order, so that variants are compared within a block. What the data file lacks is measured."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

from lab.cluster import machine
from lab.cluster.commit import commit, decision_commit
from lab.cluster.lab import Lab, LabSettings
from lab.cluster.load import Demand
from lab.cluster.machines import HostKind
from lab.cluster.paths import LabError
from lab.compare import compare, comparison, goals, results
from lab.compare.measured import MACHINE, PROGRAMS, Block, Measured, machine_of
from lab.compare.resumable import append
from lab.experiment.measures import TIMES
from lab.experiment.policies import POLICIES
from lab.experiment.recording import ExperimentError, Run
from lab.experiment.run import one_run
from lab.experiment.scenarios import AFTER_S, CALM_S, SCENARIOS

SEED = 1
AROUND_S = 24.0
"""Of a run, besides calm, disturbance and calm again: warm-up, settling, programs that start and end."""
OPENING_S = 45.0
"""Of a lab: hosts that start, and the capacity."""
MOST_FAILED = 3
"""So many failed runs are no accident."""

EVERYWHERE = ("leastconn", "slackwater-lc", "nginx-least-time", "outlier")
"""What the goals of all scenarios are about: ours, `leastconn` without anything of ours, and the best peers."""
ROUNDROBIN = ("static", "slackwater", "oracle-split")
MORE: dict[str, tuple[str, ...]] = {
    "two": (*ROUNDROBIN, "oracle-split-lc"),
    "two-dokuwiki": (*ROUNDROBIN, "oracle-split-lc"),
    "load-80": ("observed-lc",),
    "one": (*ROUNDROBIN, "oracle-split-lc", "oracle", "oracle-lc"),
    "one-70": ("random2", "bounded-random", "traefik-least-time", "agent-check", "ice", "wsengine-only"),
}
"""Scenario -> variants besides."""
FIRST = ("two", "one", *goals.BETTER, "two-dokuwiki")
VARIANTS: dict[str, tuple[str, ...]] = {
    name: (*EVERYWHERE, *MORE.get(name, ())) for name in dict.fromkeys((*FIRST, *SCENARIOS))
}
"""By scenario, in the order in which they are measured."""
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Piece:
    """A block of which some runs are left."""

    block: Block
    seed: int
    wanted: frozenset[str]
    """Variants to measure."""
    capacity_rps: float | None = None
    """That these took their load from."""

    @property
    def folder(self) -> str:
        return f"{self.block.hosts}-{self.block.scenario}-{self.block.round}"

    def plan(self, settings: LabSettings = comparison.REFERENCE) -> comparison.Comparison:
        """All its runs in their order, as a comparison of one round."""
        return comparison.planned((self.block.scenario,), VARIANTS[self.block.scenario], 1, self.seed, settings)

    @property
    def left(self) -> list[Run]:
        return [one for one in self.plan().runs if one.policy in self.wanted]


def here(hosts: HostKind) -> Block:
    """What a block that is measured now has in common with others; it has no scenario and no round."""
    return Block(hosts, "", 0, machine_of(machine.bare()), decision_commit())


def left(
    found: Sequence[Measured], scenarios: Sequence[str], common: Block, variants: Sequence[str] = ()
) -> list[Piece]:
    """What is not measured yet, in order: each scenario's first round before any second, so that whoever stops early
    knows something of all. A block goes on only where and as it was begun (`common`); else it is left as it is, and
    another round is measured in its place. Given `variants`, the blocks have these alone, where the scenario has them;
    the others of a block may follow another time. Raises ExperimentError for a scenario or variant that there is
    not."""
    if unknown := [name for name in scenarios if name not in VARIANTS]:
        raise ExperimentError(f"no scenario `{unknown[0]}`; there are: {', '.join(VARIANTS)}")
    every = dict.fromkeys(chain.from_iterable(VARIANTS[name] for name in scenarios or VARIANTS))
    if unknown := [name for name in variants if name not in every]:
        raise ExperimentError(f"no variant `{unknown[0]}`; there are: {', '.join(every)}")
    pieces: list[tuple[int, Piece]] = []
    for name in scenarios or VARIANTS:
        wanted = frozenset(VARIANTS[name]).intersection(variants or VARIANTS[name])
        blocks: dict[Block, list[Measured]] = {}
        for one in found:
            if (one.hosts, one.scenario) == (common.hosts, name):
                blocks.setdefault(one.block, []).append(one)
        lacking = {block: wanted - {one.variant for one in runs} for block, runs in blocks.items()}
        partial = [block for block, variants_left in lacking.items() if variants_left]
        whole = len(blocks) - len(partial)
        used = {block.round for block in blocks}
        fresh = (number for number in range(1, len(used) + goals.ROUNDS + 1) if number not in used)
        mine = [block for block in partial if block == common._replace(scenario=name, round=block.round)]
        for place in range(whole, goals.ROUNDS if wanted else 0):
            block = mine.pop(0) if mine else common._replace(scenario=name, round=next(fresh))
            first = next(iter(blocks.get(block, [])), None)
            seed, capacity_rps = (first.seed, first.capacity_rps) if first else (_seed(block), None)
            pieces.append((place, Piece(block, seed, lacking.get(block, wanted), capacity_rps)))
    return [piece for _, piece in sorted(pieces, key=itemgetter(0))]


def _seed(block: Block) -> int:
    return random.Random(f"{SEED} {block.hosts} {block.scenario} {block.round}").randrange(2**31)


def about_s(found: Sequence[Measured], block: Block) -> float:
    """How long a run of a block takes: the longest one of its scenario so far, or what its parts add up to."""
    took = [one.took_s for one in found if (one.hosts, one.scenario) == (block.hosts, block.scenario)]
    return max(took, default=AROUND_S + CALM_S + SCENARIOS[block.scenario].seconds + AFTER_S)


class Evaluation:
    """Measures blocks one run after the other, each into the data file as soon as it has ended."""

    def __init__(self, out: Path, data: Path, settings: LabSettings, progress: Progress) -> None:
        self._out, self._data, self._settings, self._progress = out, data, settings, progress
        self._capacity_rps: dict[str, float] = {}
        self._machine: dict[str, Any] = {}

    def run(self, pieces: Sequence[Piece], found: Sequence[Measured], until_mono_s: float = float("inf")) -> int:
        """How many runs are left; none is begun that would end after `until_mono_s`. A run that fails is left too.

        Raises LabError after some failed ones, ExperimentError, OSError.
        """
        queue = deque((piece, run) for piece in pieces for run in piece.left)
        done, failed = list(found), 0

        def fits(opening_s: float = 0.0) -> bool:
            return bool(queue) and time.monotonic() + opening_s + about_s(done, queue[0][0].block) <= until_mono_s

        while fits(OPENING_S):
            app = SCENARIOS[queue[0][1].scenario].app
            with Lab(replace(self._settings, app=app, retunable=True), self._progress) as lab:
                self._look(lab, app)
                while fits() and SCENARIOS[queue[0][1].scenario].app == app:
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
            self._capacity_rps[app] = compare.measured_rps(lab, app, self._progress)

    def _measured(self, lab: Lab, piece: Piece, run: Run) -> Measured:
        scenario = SCENARIOS[run.scenario]
        assert scenario.load is not None
        capacity = piece.capacity_rps or self._capacity_rps[scenario.app]
        rate_rps = round(scenario.load * capacity, 1)
        folder = self._out / piece.folder
        plan = piece.plan(self._settings)
        comparison.save(
            folder, msgspec.structs.replace(plan, capacity_rps={scenario.app: capacity}, machine=self._machine)
        )
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


KEPT = ("requests", "errors", "errors_share", *TIMES, "answers_s", "detected_s")


def _kept(figures: Mapping[str, Any]) -> dict[str, float | None]:
    """What the page shows and the goals ask for, in few digits."""
    return {key: None if figures[key] is None else round(figures[key], 5) for key in KEPT if key in figures}
