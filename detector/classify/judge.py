"""The detector's core for one pool: Samples in, Verdicts out; no I/O, no clock: same Samples, same Verdicts.

A tick: newest Samples -> features -> tree or thresholds -> pool correlation -> each node's state machine -> Verdict.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from detector.classify import thresholds
from detector.classify.episodes import CALM, CODES, ENOUGH, INTERFERENCE, STATES, STRONG, WEAK, StateMachines, Steps
from detector.classify.persistence import NEEDED, OF, Persistence
from detector.classify.pool_correlation import PoolCorrelation, PoolCorrelator
from detector.classify.resource import RESOURCES, UNCLEAR, resource_of
from detector.classify.tree import Model
from detector.estimator import START, Estimates, Estimator
from detector.features.balancer_latency import COLUMN, BalancerLatency
from detector.features.baseline import LAST_HEARD, StoredBaselines
from detector.features.columns import Bools, Floats, Ints, Row, Table, reasons, row_of, table_of
from detector.features.features import Features, Frame
from detector.features.history import SampleWindows
from detector.features.signals import leave_out_idle
from detector.sample_sorter import SampleSorter, Stale
from detector.slot_arrays import SlotArrays
from slackwater.messages import VERSION, Resource, Sample, Verdict

log = logging.getLogger("detector.judge")

Describe = Callable[[Ints], list[list[str]]]
"""Gives the reasons of some rows of the frame, (K,), in words."""

LEARN_ANYWAY_S = 30.0
"""A pool that is slow together for this long has a new normal (a deploy that makes requests dearer): it is learnt."""
ROUTES = "routes"
"""Name, among a node's cells on disk, of its routes' calm response times."""


@dataclass(frozen=True)
class Tick:
    """What one Sample's tick looked like, for training."""

    sample: Sample
    features: Floats
    """(len(FEATURES),)."""
    has_requests: bool


@dataclass(frozen=True)
class Suspects:
    """Which rows look interfered by themselves, (M,) each."""

    rows: Bools
    strong: Bools
    """Those that do so clearly."""
    weak_signal: Bools
    """Those that do so too weakly to count unless it persists."""
    describe: Describe


class Judge(SlotArrays):
    """Judges one pool. `model` None: by the thresholds."""

    _queueing_suspected: Bools
    _fresh: Bools
    _in_episode: Bools
    _resource: Ints

    def __init__(self, pool: str, *, stale_after_s: float, calm_dwell_s: float, model: Model | None = None) -> None:
        self.pool = pool
        self.model = model
        self.sorter = SampleSorter(pool, stale_after_s)
        self.features = Features()
        self.windows = SampleWindows()
        self.balancer_latency = BalancerLatency()
        self.estimator = Estimator(model.coefficients if model else START)
        self.ticks: list[Tick] | None = None
        """Set to a list to keep every tick (training)."""
        self.calm_by_label: dict[str, bool] | None = None
        """Node -> calm, while training: the labels decide what is learnt, not the judgement in the making."""
        self._correlator = PoolCorrelator()
        self._machines = StateMachines(calm_dwell_s)
        self._persistence = Persistence()
        self._last_shown: dict[int, list[str]] = {}
        """Slot of a node in an episode -> the reasons of the last tick that showed it."""
        self._restored: StoredBaselines = {}
        super().__init__(
            *(self.features, self.windows, self.estimator, self.balancer_latency),
            *(self._correlator, self._machines, self._persistence),
            _queueing_suspected=False,
            _fresh=False,
            _in_episode=False,
            _resource=UNCLEAR,
        )

    def tick(self, now_s: float, samples: Sequence[Sample]) -> list[Verdict]:
        """Takes what came since the last tick; one Verdict per new Sample, and one a second per node gone quiet.

        `now_s` is monotonic seconds. Raises ValueError for a Sample of another pool.
        """
        return self.take(now_s, [row_of(sample) for sample in samples], samples)

    def take(self, now_s: float, arrived: Sequence[Row], samples: Sequence[Sample] = ()) -> list[Verdict]:
        """The same for Samples that are rows already."""
        verdicts: list[Verdict] = []
        if arrived:
            table = table_of(arrived, self.pool, samples)
            found = self.sorter.sort(table, now_s)
            self._add_nodes(now_s, table, found.new_nodes)
            for part in found.rounds:
                whole = len(part.rows) == len(table)
                verdicts += self._judge(now_s, table if whole else table.only(part.rows), part.slots, part.first)
        for loss in self.sorter.losses(now_s):
            log.warning(
                "%s/%s: %d Samples never came (its monitor dropped %d of them while the bus was away)",
                *(self.pool, loss.node, loss.lost, loss.dropped),
            )
        for stale in self.sorter.stale(now_s):
            verdicts.append(self._lost(now_s, stale))
        return verdicts

    def report_balancer_latency(self, now_s: float, rt_ms: Mapping[str, float]) -> None:
        """Takes in each node's mean response time (ms) at the balancer, used where the node itself sees no traffic."""
        for node, mean_ms in rt_ms.items():
            slot = self.sorter.slot(node)
            if slot is not None:
                self.balancer_latency.report(now_s, slot, mean_ms)

    # -- baselines on disk ------------------------------------------------------------------------------------------

    def baseline_nodes(self) -> list[str]:
        """All nodes that `export_baselines` knows, those not heard of since the start too."""
        return [*self._restored, *self.sorter.nodes]

    def export_baselines(self, now_unix_s: float, nodes: list[str] | None = None) -> StoredBaselines:
        """Node -> its calm baseline as JSON, with when it was last heard of; of all nodes, or of these.

        One heard of in the last hour counts as heard of now.
        """
        wanted = self.baseline_nodes() if nodes is None else nodes
        slot_of = self.sorter.nodes
        heard = [node for node in wanted if node in slot_of]
        slots: Ints = np.array([slot_of[node] for node in heard], dtype=np.int64)
        found: StoredBaselines = {node: self._restored[node] for node in wanted if node in self._restored}
        for node, slot, cells in zip(heard, slots.tolist(), self.features.baselines.export(slots), strict=True):
            if routes := self.windows.routes.export(slot):
                cells[ROUTES] = routes
            if cells:
                found[node] = {LAST_HEARD: round(now_unix_s, 1), **cells}
        return found

    def restore_baselines(self, nodes: StoredBaselines) -> None:
        """Takes what `export_baselines` gave; each node gets its own when it is first heard of."""
        self._restored = dict(nodes)

    # -- one tick ---------------------------------------------------------------------------------------------------

    def _add_nodes(self, now_s: float, table: Table, new_nodes: Sequence[tuple[int, int]]) -> None:
        """Makes room for new nodes, and empties slots that were another's."""
        self.resize(self.sorter.slots)
        for slot, row in new_nodes:
            node = table.nodes[row]
            self._last_shown.pop(slot, None)
            self.forget(slot)
            self._machines.add_node(slot, now_s, float(table.time_unix_s[row]))
            if node in self._restored:
                try:
                    cells = {**self._restored.pop(node)}
                    cells.pop(LAST_HEARD, None)
                    self.windows.routes.restore(slot, cells.pop(ROUTES, {}))
                    self.features.baselines.restore(slot, cells)
                except (ValueError, TypeError) as error:
                    log.warning("%s/%s: its stored baseline is left out: %s", self.pool, node, error)

    def _judge(self, now_s: float, table: Table, slots: Ints, first: Bools) -> list[Verdict]:
        """One Sample of each of these slots, all in one pass."""
        self._fresh[slots] = True
        table.columns[COLUMN] = self.balancer_latency.column(now_s, slots, table.columns)
        leave_out_idle(table.columns)
        rows = self.windows.add(slots, table, first)
        frame = self.features.compute(rows, self._fresh, self._in_episode)
        deviations = thresholds.find_deviations(frame, self._queueing_suspected[slots])
        self._queueing_suspected[slots] = deviations.queueing_suspected
        suspects = self._suspect(frame, deviations, table)
        shown = self._persistence.step(slots, suspects.weak_signal)
        persistent: Bools = np.asarray(shown >= NEEDED)
        correlation = self._correlator.classify(
            frame, deviations, suspects.rows | persistent, self._fresh, self._in_episode
        )
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
        neighbour: Bools = np.asarray(steps.state == INTERFERENCE)
        self._in_episode[slots] = neighbour
        calm = self._learn(now_s, frame, deviations, classification, steps, table)
        estimates = self.estimator.update(frame, table.columns, calm, neighbour)
        self._follow_resource(frame, classification, steps, neighbour)
        if self.ticks is not None:
            matrix = frame.matrix()
            for row, sample in enumerate(table.samples):
                self.ticks.append(Tick(sample, matrix[row], bool(correlation.has_requests[row])))
        paths = self._paths(frame, deviations, correlation, steps, suspects.describe, shown)
        return self._verdicts(table, frame.slots, steps, estimates, paths)

    def _suspect(self, frame: Frame, deviations: thresholds.Deviations, table: Table) -> Suspects:
        """What each row looks like by itself.

        The thresholds find a neighbour. The tree can veto the signals that it tests: where its leaf is `calm`, these do
        not count, and what the others show is weak (it takes more ticks) and must affect users. It cannot veto a signal
        that it never tests: the one that shows a neighbour on one kind of machine stays calm on another.
        """
        if self.model is None:
            weak_signal = deviations.weak_signal_without(np.zeros_like(deviations.weak_votes))
            return Suspects(
                deviations.interfering,
                deviations.strong,
                weak_signal,
                lambda rows: [thresholds.explain(frame, deviations, row) for row in rows.tolist()],
            )
        tree = self.model.tree
        leaves, levels, lacking = tree.walk(frame.matrix())
        agreed = lacking | tree.interfering(leaves)
        vetoed = tree.tested_signals(leaves) & ~agreed[:, None]
        suspected = np.where(agreed, deviations.interfering, deviations.affects_users_without(vetoed))

        def describe(rows: Ints) -> list[list[str]]:
            paths = tree.explain(frame, rows, leaves)
            for place in np.flatnonzero(lacking[rows]).tolist():
                row = int(rows[place])
                lacks = tree.first_missing(frame, row, levels, reasons(table.absent[row]))
                paths[place] = [*thresholds.explain(frame, deviations, row), f"judged by the thresholds ({lacks})"]
            for place in np.flatnonzero((suspected & ~agreed)[rows]).tolist():
                paths[place] = [*thresholds.explain(frame, deviations, int(rows[place])), *paths[place]]
            return paths

        return Suspects(suspected, deviations.strong & agreed, deviations.weak_signal_without(vetoed), describe)

    def _learn(
        self,
        now_s: float,
        frame: Frame,
        deviations: thresholds.Deviations,
        classification: Ints,
        steps: Steps,
        table: Table,
    ) -> Bools:
        """Teaches the baselines from the rows that are calm without doubt; returns which these are."""
        if self.calm_by_label is not None:
            calm = np.array([self.calm_by_label.get(node, True) for node in table.nodes])
        else:
            long = now_s - self._machines.since_s[frame.slots] >= LEARN_ANYWAY_S
            shared = (steps.state == CODES["all_slow"]) | (steps.state == CODES["overload"])
            calm = np.where(shared, long, (classification == CALM) & (steps.state == CALM))
            # The first baseline decides what is normal: nothing that stands out among the peers goes into it.
            calm &= ~(frame.borrowed & deviations.votes.any(axis=1))
        fit = calm & ~np.isnan(frame.values).all(axis=1)
        self.features.baselines.learn(frame.slots[fit], frame.bins[fit], frame.values[fit])
        if frame.rt_by_route_ms is not None:
            self.windows.routes.learn(frame.slots, frame.rt_by_route_ms, calm)
        return calm

    def _follow_resource(self, frame: Frame, classification: Ints, steps: Steps, neighbour: Bools) -> None:
        """Keeps the resource that an episode's ticks last showed clearly; a drained server's ticks show none."""
        if not neighbour.any():
            return
        self._resource[frame.slots[neighbour & steps.began]] = UNCLEAR
        found = resource_of(frame)
        clear = neighbour & (classification == INTERFERENCE) & (found != UNCLEAR)
        self._resource[frame.slots[clear]] = found[clear]

    # -- words ------------------------------------------------------------------------------------------------------

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

    def _verdicts(
        self, table: Table, slots: Ints, steps: Steps, estimates: Estimates, paths: list[list[str]]
    ) -> list[Verdict]:
        """One Verdict a row; the fields in the order in which `Verdict` has them, since names cost time."""
        model = self.model.name if self.model else "thresholds"
        neighbour = np.asarray(steps.state == INTERFERENCE)
        resources: list[Resource | None] = [None] * len(table)
        for row in np.flatnonzero(neighbour).tolist():
            resources[row] = RESOURCES[self._resource[slots[row]]]
        numbers = (
            table.columns["cpu.utilisation"],
            estimates.predicted,
            estimates.capacity,
            estimates.capacity_stderr,
            table.columns["traffic.rps"],
            table.columns["traffic.rt_mean_ms"],
            table.columns["traffic.rt_p95_ms"],
        )
        return list(
            map(
                Verdict,
                repeat(VERSION),
                table.nodes,
                repeat(self.pool),
                table.time_unix_s.tolist(),
                map(STATES.__getitem__, steps.state.tolist()),
                np.maximum(0.0, steps.since_unix_s).tolist(),
                estimates.severity.tolist(),
                paths,
                repeat(model),
                resources,
                (~steps.waits).tolist(),
                table.seq.tolist(),
                *map(_or_none, numbers),
            )
        )

    def _lost(self, now_s: float, stale: Stale) -> Verdict:
        slot = stale.slot
        self._fresh[slot] = self._in_episode[slot] = self._queueing_suspected[slot] = False
        label_unix_s = stale.last_unix_s + stale.for_s
        self._machines.mark_unknown(slot, now_s, label_unix_s)
        self._persistence.forget(slot)
        return Verdict(
            v=VERSION,
            node=stale.node,
            pool=self.pool,
            time_unix_s=label_unix_s,
            state=STATES[self._machines.state[slot]],
            since_unix_s=float(self._machines.since_unix_s[slot]),
            severity=0.0,
            path=[f"no Sample for {stale.for_s:.1f} s"],
            model=self.model.name if self.model else "thresholds",
        )


def _or_none(values: Floats) -> list[float | None]:
    """(M,) as Python's numbers, None for NaN and infinities."""
    found: list[float | None] = values.tolist()
    for row in np.flatnonzero(~np.isfinite(values)).tolist():
        found[row] = None
    return found


def _share(value: float) -> str:
    return f"{value:.0%}" if math.isfinite(value) else "an unknown share"
