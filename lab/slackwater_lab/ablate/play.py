"""A drawn scenario, played with each mechanism off: in one run for as long as they decide the same.

The run is of the whole decision. Beside it each turn is decided once more with each mechanism off, from what that one
believes. While the same is set the simulated servers are the same too. At the first difference the process is copied
(fork), and the copy plays on with the mechanism off, and with those beside it without which the same is set. So what
runs have in common is simulated once, and a mechanism that changes nothing in a scenario costs no run of its own.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from slackwater.core.config import LbengineSettings, PoolSettings
from slackwater.detector.classify.tree import Model
from slackwater.lbengine.decision.state import PoolState, PoolView
from slackwater.lbengine.decision.step import Actions, step
from slackwater_lab.ablate.mechanisms import BALANCES, Mechanism
from slackwater_lab.ablate.seams import Seam, off
from slackwater_lab.sim import drawn
from slackwater_lab.sim.requests import Simulation

POLICY = "slackwater"
DIGITS = 4
Weights = frozenset[tuple[str, str, int]]
"""The changes of a turn: kind, server and value of each."""


class PlayError(RuntimeError):
    """A run ended without figures; the text says which."""


class Figures(msgspec.Struct, frozen=True, array_like=True):
    """What users felt of a scenario, in ms over all requests, and how often a weight was set."""

    mean_ms: float
    p95_ms: float
    p99_ms: float
    moves: int = 0


class Played(msgspec.Struct, frozen=True):
    """A scenario under one balance."""

    alone: Figures
    """The balancer without Slackwater."""
    everything: Figures
    off: dict[str, Figures]
    """Mechanism -> figures without it, where the weights then differed."""
    same: list[str]
    """Mechanisms without which the same was set all the time."""


class Beside:
    """Stands in for `step` in the simulation: decides for the run, and beside it for each mechanism."""

    def __init__(self, mechanisms: Sequence[Mechanism]) -> None:
        self.figures: dict[str, Figures] = {}
        """Mechanism -> figures of the copies that have ended."""
        self.answer: int | None = None
        """The pipe that takes a copy's figures; None in the run itself."""
        self._off: Mechanism | None = None
        self._beside = list(mechanisms)
        self._states: dict[str, PoolState] = {}

    @property
    def same(self) -> list[str]:
        """The mechanisms that made no difference so far."""
        return [mechanism.name for mechanism in self._beside]

    def __call__(
        self, state: PoolState, view: PoolView, pool: PoolSettings, settings: LbengineSettings
    ) -> tuple[PoolState, Actions]:
        def decided(mechanism: Mechanism | None, before: PoolState) -> tuple[PoolState, Actions]:
            with off(() if mechanism is None else mechanism.seams):
                return step(before, view, pool, settings)

        ours = decided(self._off, state)
        decisions = {
            mechanism.name: decided(mechanism, self._states.get(mechanism.name, state)) for mechanism in self._beside
        }
        self._states = {name: decision[0] for name, decision in decisions.items()}
        groups: dict[Weights, list[Mechanism]] = {_set(ours[1]): []}
        for mechanism in self._beside:
            groups.setdefault(_set(decisions[mechanism.name][1]), []).append(mechanism)
        self._beside = groups.pop(_set(ours[1]))
        for first, *others in groups.values():
            if self._copied(first.name):
                self._off, self._beside = first, others
                return decisions[first.name]
        return ours

    def end(self, ours: Figures) -> None:
        """Ends a copy, and gives its figures to the run that it is of."""
        assert self.answer is not None
        assert self._off is not None
        figures = {**self.figures, **dict.fromkeys([self._off.name, *self.same], ours)}
        with contextlib.suppress(BrokenPipeError), os.fdopen(self.answer, "wb") as pipe:
            pipe.write(msgspec.json.encode(figures))
        os._exit(0)

    def _copied(self, name: str) -> bool:
        """True in the copy; the run itself goes on when the copy has ended."""
        reads, writes = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        if (pid := os.fork()) == 0:
            os.close(reads)
            if self.answer is not None:
                os.close(self.answer)
            self.answer, self.figures = writes, {}
            return True
        os.close(writes)
        with os.fdopen(reads, "rb") as pipe:
            answer = pipe.read()
        _, status = os.waitpid(pid, 0)
        if status != 0:
            raise PlayError(f"without {name}: the run ended with status {status} and {len(answer)} bytes of figures")
        self.figures |= msgspec.json.decode(answer, type=dict[str, Figures])
        return False


def _set(actions: Actions) -> Weights:
    return frozenset((change.what, change.server, change.after) for change in actions.wanted)


def play(seed: int, number: int, balance: str, mechanisms: Sequence[Mechanism], model: Model) -> Played:
    """A scenario under a balance of `BALANCES`. For a process without threads: it is copied. Raises PlayError."""
    setup = replace(drawn.scenario(seed, number), balance=BALANCES[balance])
    alone = figures(Simulation(setup, "static", None))
    beside = Beside(mechanisms)
    try:
        with off([Seam("slackwater_lab.sim.control:step", beside)]):
            ours = figures(Simulation(setup, POLICY, model))
        if beside.answer is not None:
            beside.end(ours)
    except BaseException:
        if beside.answer is None:
            raise
        traceback.print_exc()
        os._exit(1)
    return Played(alone, ours, beside.figures, beside.same)


def figures(run: Simulation) -> Figures:
    """Plays a run to its end."""
    outcome = run.run()
    felt = drawn.felt(run)
    mean_ms, p95_ms, p99_ms = (float(f"{felt[key]:.{DIGITS}g}") for key in ("mean_ms", "p95_ms", "p99_ms"))
    return Figures(mean_ms, p95_ms, p99_ms, outcome.moves)


def cpu_s() -> float:
    """CPU time of this process and of its copies that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
