"""From features to each node's state: stated thresholds and a tree must agree, in enough of the last ticks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from detector.classify import thresholds
from detector.classify.episodes import CALM, ENOUGH, INTERFERENCE, STATES, STRONG, WEAK, StateMachines, Steps
from detector.classify.persistence import NEEDED, OF, Persistence
from detector.classify.pool_correlation import PoolCorrelation, PoolCorrelator
from detector.classify.tree import Model
from detector.estimator import START
from detector.features.columns import Bools, Floats, Ints, Table, reasons
from detector.features.features import Frame
from detector.features.signals import INDEX
from detector.slot_arrays import SlotArrays

STEAL = INDEX["steal"]
Describe = Callable[[Ints], list[list[str]]]
"""Gives the reasons of some rows of the frame, (K,), in words."""


@dataclass(frozen=True)
class Suspects:
    """Which rows look interfered by themselves, (M,) each."""

    rows: Bools
    strong: Bools
    """Those that do so clearly."""
    weak_signal: Bools
    """Those that do so too weakly to count unless it persists."""
    describe: Describe


@dataclass(frozen=True)
class Outcome:
    """What the rules make of a tick of M nodes, (M,) each."""

    state: Ints
    """Index in `STATES`."""
    since_unix_s: Floats
    began: Bools
    """The state changed on this tick."""
    waits: Bools
    """In an episode that only waits for its end: it has looked calm for a while."""
    looks: Ints
    """What the tick looks like by itself, index in `STATES`."""
    stands_out: Bools
    """Something deviates: not fit for a node's first baseline."""
    has_requests: Bools
    paths: list[list[str]]
    """The reasons in words."""


class Rules(SlotArrays):
    """Every slot's state, by votes of thresholds and tree. `model` None: by the thresholds alone."""

    name: str
    """Of the model, for Verdicts."""
    coefficients: tuple[float, ...]
    """The estimator's law begins with these."""
    _queueing_suspected: Bools

    def __init__(self, calm_dwell_s: float, model: Model | None = None) -> None:
        self.model = model
        self.name = model.name if model else "thresholds"
        self.coefficients = model.coefficients if model else START
        self._correlator = PoolCorrelator()
        self._machines = StateMachines(calm_dwell_s)
        self._persistence = Persistence()
        self._last_shown: dict[int, list[str]] = {}
        """Slot of a node in an episode -> the reasons of the last tick that showed it."""
        super().__init__(self._correlator, self._machines, self._persistence, _queueing_suspected=False)

    def add_node(self, slot: int, now_s: float, label_unix_s: float) -> None:
        """Puts a new node into a slot: calm, without history."""
        self._last_shown.pop(slot, None)
        self._machines.add_node(slot, now_s, label_unix_s)

    def since_s(self, slots: Ints) -> Floats:
        """(M,) when these slots' states began, monotonic seconds."""
        return self._machines.since_s[slots]

    def lost(self, slot: int, now_s: float, label_unix_s: float) -> tuple[int, float]:
        """The node has gone quiet: its state and since when (Unix seconds)."""
        self._queueing_suspected[slot] = False
        self._machines.mark_unknown(slot, now_s, label_unix_s)
        self._persistence.forget(slot)
        return int(self._machines.state[slot]), float(self._machines.since_unix_s[slot])

    def step(self, now_s: float, table: Table, frame: Frame, fresh: Bools, in_episode: Bools) -> Outcome:
        """Takes one tick of the frame's nodes in, all in one pass.

        `fresh` and `in_episode` are (slots,): nodes heard of, and those that are in an episode.
        """
        slots = frame.slots
        deviations = thresholds.find_deviations(frame, self._queueing_suspected[slots])
        self._queueing_suspected[slots] = deviations.queueing_suspected
        suspects = self._suspect(frame, deviations, table)
        shown = self._persistence.step(slots, suspects.weak_signal)
        persistent: Bools = np.asarray(shown >= NEEDED)
        correlation = self._correlator.classify(frame, deviations, suspects.rows | persistent, fresh, in_episode)
        classification = correlation.classification
        strong = suspects.strong | (classification != INTERFERENCE)
        steps = self._machines.step(
            slots,
            now_s,
            table.time_unix_s,
            classification,
            strength=np.where(persistent & (classification == INTERFERENCE), ENOUGH, np.where(strong, STRONG, WEAK)),
            no_own_baseline=frame.borrowed,
            low_traffic=~correlation.has_requests,
            residual=np.asarray(deviations.residual.any(axis=1)),
            answered=~np.isnan(table.columns["traffic.rt_mean_ms"]),
        )
        return Outcome(
            state=steps.state,
            since_unix_s=steps.since_unix_s,
            began=steps.began,
            waits=steps.waits,
            looks=classification,
            stands_out=np.asarray(deviations.votes.any(axis=1)),
            has_requests=correlation.has_requests,
            paths=self._paths(frame, deviations, correlation, steps, suspects.describe, shown),
        )

    def _suspect(self, frame: Frame, deviations: thresholds.Deviations, table: Table) -> Suspects:
        """What each row looks like by itself.

        The thresholds find a neighbour. The tree can veto the signals that it tests: where its leaf is `calm`, these do
        not count, and what the others show is weak (it takes more ticks) and must affect users. It cannot veto a signal
        that it never tests, nor anything on a kind of node that it was not trained on: what shows a neighbour in a
        cgroup stays calm in a virtual machine.
        """
        if self.model is None:
            weak_signal = deviations.weak_signal_without(np.zeros_like(deviations.weak_votes))
            return Suspects(
                deviations.interfering,
                deviations.strong,
                weak_signal,
                lambda rows: thresholds.explain_all(frame, deviations, rows),
            )
        tree = self.model.tree
        leaves, levels, lacking = tree.walk(frame.matrix())
        # A machine knows its steal, even if that is always 0; a cgroup has none.
        unjudged = lacking | (~np.isnan(frame.values[:, STEAL]) & (not self.model.knows_machines))
        agreed = unjudged | tree.interfering(leaves)
        vetoed = tree.tested_signals(leaves) & ~agreed[:, None]
        suspected = np.where(agreed, deviations.interfering, deviations.affects_users_without(vetoed))

        def describe(rows: Ints) -> list[list[str]]:
            paths = thresholds.explain_all(frame, deviations, rows)
            judged = np.flatnonzero(~unjudged[rows])
            denied = (suspected & ~agreed)[rows]
            for place, path in zip(judged.tolist(), tree.explain(frame, rows[judged], leaves), strict=True):
                paths[place] = [*paths[place], *path] if denied[place] else path
            for place in np.flatnonzero(unjudged[rows]).tolist():
                row = int(rows[place])
                why = "the model was not trained on machines"
                if lacking[row]:
                    why = tree.first_missing(frame, row, levels, reasons(table.absent[row]))
                paths[place].append(f"judged by the thresholds ({why})")
            return paths

        return Suspects(suspected, deviations.strong & agreed, deviations.weak_signal_without(vetoed), describe)

    def _paths(
        self,
        frame: Frame,
        deviations: thresholds.Deviations,
        correlation: PoolCorrelation,
        steps: Steps,
        describe: Describe,
        shown: Ints,
    ) -> list[list[str]]:
        """Each row's reasons in words. Nearly all rows are calm and described at once, the others one by one.

        `shown` (M,): in how many of the last ticks a weak signal showed.
        """
        classification = correlation.classification
        paths = describe(np.arange(len(classification)))
        shows = steps.shows
        busy = np.flatnonzero((classification != CALM) | (steps.state != CALM) | ~steps.uneventful)
        for row in busy.tolist():
            slot, state, looks = int(frame.slots[row]), STATES[steps.state[row]], STATES[classification[row]]
            path = paths[row]
            if looks == "interference" and shown[row] >= NEEDED:
                path = [*path, *thresholds.explain_weak_signal(frame, row), f"in {shown[row]} of the last {OF} ticks"]
            if looks == "overload":
                cost = _share(frame.demand[row])
                path = [*path, f"its own load explains it: its requests cost {cost} of its CPU when calm"]
            elif looks == "all_slow":
                path = [*(thresholds.explain_slow(frame, row) or path), correlation.why(row)]
            reason = steps.describe(row, lambda row: ", ".join(thresholds.explain_residual(frame, deviations, row)))
            if looks == state and shows[row]:
                self._last_shown[slot] = path
                path = [*path, reason]
            elif state != "calm":  # what holds it now comes first: the evidence is of before
                path = [reason, *(f"before: {line}" for line in self._last_shown.get(slot, [])[:1])]
            elif looks != "calm":
                path = [*path, f"looks like {looks}, but not in enough of the last ticks"]
            elif reason:
                path = [*path, reason]
            paths[row] = path
        return paths


def _share(value: float) -> str:
    return f"{value:.0%}" if math.isfinite(value) else "an unknown share"
