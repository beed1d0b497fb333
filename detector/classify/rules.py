"""From features to each node's state: what a Sample shows, by thresholds and tree, and the evidence that adds up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from detector.classify import thresholds
from detector.classify.episodes import CALM, INTERFERENCE, STATES, StateMachines, Steps
from detector.classify.evidence import COUNTED, FAINT, QUIET, STRONG, WEAK, weight
from detector.classify.pool_correlation import PoolCorrelation, PoolCorrelator
from detector.classify.tree import Model
from detector.estimator import START
from detector.features.columns import Bools, Floats, Ints, Table, reasons
from detector.features.features import Frame
from detector.features.history import in_cgroup
from detector.slot_arrays import SlotArrays

SHOWN_SHARE = 0.05
"""Of the CPU; other programs that take less are not told."""
Describe = Callable[[Ints], list[list[str]]]
"""Gives the reasons of some rows of the frame, (K,), in words."""


@dataclass(frozen=True)
class Suspects:
    """Which rows look interfered by themselves, (M,)."""

    level: Ints
    """How clearly: index in `LEVELS`."""
    describe: Describe


@dataclass(frozen=True)
class Outcome:
    """What the rules make of a tick of M nodes, (M,) each."""

    state: Ints
    """Index in `STATES`."""
    since_unix_s: Floats
    began: Bools
    """The state changed on this tick."""
    probability: Floats
    """Of a neighbour."""
    waits: Bools
    """In an episode that only waits for its end: it has looked calm for a while."""
    looks: Ints
    """What the tick looks like by itself, index in `STATES`."""
    level: Ints
    """How clearly it shows a neighbour: index in `LEVELS`."""
    stands_out: Bools
    """Something deviates: not fit for a node's first baseline."""
    has_requests: Bools
    paths: list[list[str]]
    """The reasons in words."""


class Rules(SlotArrays):
    """Every slot's state. `model` None: by the thresholds alone."""

    name: str
    """Of the model, for Verdicts."""
    coefficients: tuple[float, ...]
    """The estimator's law begins with these."""
    _queueing_suspected: Bools

    def __init__(self, calm_dwell_s: float, model: Model | None, false_episodes_per_node_day: float) -> None:
        self.model = model
        self.name = model.name if model else "thresholds"
        self.coefficients = model.coefficients if model else START
        self._correlator = PoolCorrelator()
        evidence = COUNTED if model is None else model.evidence
        self._machines = StateMachines(calm_dwell_s, evidence, evidence.threshold(false_episodes_per_node_day))
        self._last_shown: dict[int, list[str]] = {}
        """Slot of a node in an episode -> the reasons of the last tick that showed it."""
        super().__init__(self._correlator, self._machines, _queueing_suspected=False)

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
        return int(self._machines.state[slot]), float(self._machines.since_unix_s[slot])

    def step(self, now_s: float, table: Table, frame: Frame, fresh: Bools, in_episode: Bools) -> Outcome:
        """Takes one tick of the frame's nodes in, all in one pass.

        `fresh` and `in_episode` are (slots,): nodes heard of, and those that are in an episode.
        """
        slots = frame.slots
        deviations = thresholds.find_deviations(frame, self._queueing_suspected[slots])
        self._queueing_suspected[slots] = deviations.queueing_suspected
        suspects = self._suspect(frame, deviations, table)
        correlation = self._correlator.classify(frame, deviations, suspects.level > QUIET, fresh, in_episode)
        classification = correlation.classification
        level: Ints = np.where(classification == INTERFERENCE, suspects.level, STRONG)
        # Without a calm baseline of its own a node may just be starting: it shows everything less clearly.
        level = np.where(frame.borrowed, level - 1, level)
        steps = self._machines.step(
            slots,
            now_s,
            table.time_unix_s,
            classification,
            level=level,
            weight=weight(table.columns["period_s"]),
            low_traffic=~correlation.has_requests,
            residual=np.asarray(deviations.residual.any(axis=1)),
            answered=~np.isnan(table.columns["traffic.rt_mean_ms"]),
        )
        return Outcome(
            state=steps.state,
            since_unix_s=steps.since_unix_s,
            began=steps.began,
            waits=steps.waits,
            probability=steps.probability,
            looks=classification,
            level=np.where(classification == INTERFERENCE, level, QUIET),
            stands_out=deviations.stands_out,
            has_requests=correlation.has_requests,
            paths=self._paths(frame, deviations, correlation, steps, suspects.describe, level),
        )

    def _suspect(self, frame: Frame, deviations: thresholds.Deviations, table: Table) -> Suspects:
        """What each row looks like by itself.

        The thresholds find a neighbour. The tree can veto the signals that it tests: where its leaf is `calm`, these do
        not count, and what the others show is weak and must affect users. It cannot veto a signal
        that it never tests, nor anything on a kind of node that it was not trained on: what shows a neighbour in a
        cgroup stays calm in a virtual machine.
        """
        if self.model is None:
            return Suspects(
                _level(deviations, deviations.interfering, deviations.strong, np.zeros_like(deviations.weak_votes)),
                lambda rows: thresholds.explain_all(frame, deviations, rows),
            )
        tree = self.model.tree
        leaves, levels, lacking = tree.walk(frame.matrix())
        unjudged = lacking | (~in_cgroup(frame.values) & (not self.model.knows_machines))
        agreed = unjudged | tree.interfering(leaves)
        vetoed = tree.tested_signals(leaves) & ~agreed[:, None]
        suspected = np.where(agreed, deviations.interfering, deviations.affects_users_without(vetoed))

        def describe(rows: Ints) -> list[list[str]]:
            paths = thresholds.explain_all(frame, deviations, rows)
            judged = (~unjudged[rows]).nonzero()[0]
            denied = (suspected & ~agreed)[rows]
            for place, path in zip(judged.tolist(), tree.explain(frame, rows[judged], leaves), strict=True):
                paths[place] = [*paths[place], *path] if denied[place] else path
            for place in unjudged[rows].nonzero()[0].tolist():
                row = int(rows[place])
                why = "the model was not trained on machines"
                if lacking[row]:
                    why = tree.first_missing(frame, row, levels, reasons(table.absent[row]))
                paths[place].append(f"judged by the thresholds ({why})")
            return paths

        return Suspects(_level(deviations, suspected, deviations.strong & agreed, vetoed), describe)

    def _paths(
        self,
        frame: Frame,
        deviations: thresholds.Deviations,
        correlation: PoolCorrelation,
        steps: Steps,
        describe: Describe,
        level: Ints,
    ) -> list[list[str]]:
        """Each row's reasons in words. Nearly all rows are calm and described at once, the others one by one.

        `level` (M,): how clearly each shows what it looks like.
        """
        classification = correlation.classification
        paths = describe(np.arange(len(classification)))
        shows = steps.shows
        busy = (classification != CALM) | (steps.state != CALM) | ~steps.uneventful
        for row in busy.nonzero()[0].tolist():
            slot, state, looks = int(frame.slots[row]), STATES[steps.state[row]], STATES[classification[row]]
            path = paths[row]
            if looks == "interference" and level[row] <= FAINT:
                path = [*path, *thresholds.explain_weak_signal(frame, row)]
            if looks == "overload":
                path = [*path, _own_load(frame, row)]
            elif looks == "all_slow":
                path = [*(thresholds.explain_slow(frame, row) or path), correlation.why(row)]
            reason = steps.describe(row, lambda row: ", ".join(thresholds.explain_residual(frame, deviations, row)))
            if looks == state and shows[row]:
                self._last_shown[slot] = path
                path = [*path, reason]
            elif state != "calm":  # what holds it now comes first: the evidence is of before
                path = [reason, *(f"before: {line}" for line in self._last_shown.get(slot, [])[:1])]
            elif looks != "calm":
                path = [*path, f"looks like {looks}, but there is not enough evidence yet"]
            elif reason:
                path = [*path, reason]
            paths[row] = path
        return paths


def _level(deviations: thresholds.Deviations, suspected: Bools, strong: Bools, vetoed: Bools) -> Ints:
    """(M,) how clearly each row shows a neighbour; `vetoed` (M, signals) do not count."""
    faint = deviations.weak_signal_without(vetoed)
    return np.where(suspected, np.where(strong, STRONG, WEAK), np.where(faint, FAINT, QUIET))


def _own_load(frame: Frame, row: int) -> str:
    """Why a row looks `overload`, in words."""
    others = float(frame.others[row])
    beside = f", its other programs take {others:.0%}" if others >= SHOWN_SHARE else ""
    return f"its own load explains it: its requests cost {_share(frame.demand[row])} of its CPU when calm{beside}"


def _share(value: float) -> str:
    return f"{value:.0%}" if math.isfinite(value) else "an unknown share"
