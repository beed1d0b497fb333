"""The detector's core for one pool: Samples in, Verdicts out. Without I/O or a clock: same Samples, same Verdicts.

A tick: newest Samples -> features -> rules (each node's state) -> baselines and estimates -> Verdict.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np

from slackwater.core.config import DetectorSettings
from slackwater.core.messages import VERSION, Resource, Sample, Verdict
from slackwater.detector.capacity.calm_capacity import ERROR, CalmCapacity
from slackwater.detector.capacity.slowness import Slowness
from slackwater.detector.classify.episodes import ALL_SLOW, CALM, INTERFERENCE, OVERLOAD, STATES, word_of
from slackwater.detector.classify.failures import Failing, Failures
from slackwater.detector.classify.own_limit import OwnLimits
from slackwater.detector.classify.resource import RESOURCES, UNCLEAR, resource_of
from slackwater.detector.classify.rules import Outcome, Rules
from slackwater.detector.classify.tree import Model
from slackwater.detector.estimator import Estimates, Estimator
from slackwater.detector.explain import Explainer, silence, with_failures, with_limits
from slackwater.detector.features.balancer_latency import COLUMN, BalancerLatency
from slackwater.detector.features.baseline import LAST_HEARD, StoredBaselines
from slackwater.detector.features.columns import Bools, Floats, Ints, Row, Table, or_none, row_of, table_of
from slackwater.detector.features.features import Features, Frame
from slackwater.detector.features.history import SampleWindows
from slackwater.detector.features.signals import leave_out_idle
from slackwater.detector.monitors_first import Sources, monitors_first
from slackwater.detector.sample_sorter import SampleSorter, Stale
from slackwater.detector.slot_arrays import SlotArrays

log = logging.getLogger("detector.judge")

LEARN_ANYWAY_S = 30.0
"""A pool whose nodes are slow together for this long has a new normal, which is learnt: a deploy has made its requests
dearer."""
FALSE_EPISODES = DetectorSettings().false_episodes_per_node_day
ROUTES = "routes"
"""The name of the routes' calm response times among a node's cells on disk."""
HIGHEST_RPS = "highest_rps"
"""The name of the highest rate of calm among the cells of a server without a monitor. Others have none."""


@dataclass(frozen=True)
class Tick:
    """A Sample with its features, for training."""

    sample: Sample
    features: Floats
    """(len(FEATURES),)."""
    has_requests: bool
    kind: int
    """Kind of the node, index in `slackwater.detector.classify.tree.KINDS`."""
    by_tree: bool
    """Whether the tree says so (`Outcome.by_tree`)."""


class Judge(SlotArrays):
    """Judges the nodes of one pool."""

    _fresh: Bools
    _in_episode: Bools
    _resource: Ints

    def __init__(
        self,
        pool: str,
        *,
        stale_after_s: float,
        calm_dwell_s: float,
        false_episodes_per_node_day: float = FALSE_EPISODES,
        model: Model,
    ) -> None:
        self.pool = pool
        self.model = model
        self.rules = Rules(calm_dwell_s, model, false_episodes_per_node_day)
        self.sorter = SampleSorter(pool, stale_after_s)
        self.sources = Sources()
        self.features = Features()
        self.failures = Failures(false_episodes_per_node_day)
        self.own_limits = OwnLimits()
        self.windows = SampleWindows()
        self.balancer_latency = BalancerLatency()
        self.estimator = Estimator(model.coefficients)
        self.slowness = Slowness()
        self.calm_capacity = CalmCapacity()
        self.explainer: Explainer | None = Explainer(model.trees)
        """None: nobody reads the Verdicts' reasons, and they have none."""
        self.controller: str | None = None
        """Id of this detector's controller, for its Verdicts."""
        self.lowered: Collection[str] = ()
        """Nodes whose servers have less than their baseline weight because of a neighbour."""
        self.ticks: list[Tick] | None = None
        """Set to a list to keep every tick, for training."""
        self.calm_by_label: dict[str, bool] | None = None
        """Node -> calm, for training: the labels decide what is learnt, and not the unfinished judgement."""
        self._restored: StoredBaselines = {}
        self._of_other_source: StoredBaselines = {}
        """Node -> the baseline of its monitor's Samples while the balancer's are judged, and the other way round."""
        super().__init__(
            *(self.features, self.windows, self.estimator, self.balancer_latency),
            *(self.rules, self.slowness, self.calm_capacity, self.sources, self.failures, self.own_limits),
            _fresh=False,
            _in_episode=False,
            _resource=UNCLEAR,
        )

    @classmethod
    def of(cls, pool: str, settings: DetectorSettings, model: Model) -> Judge:
        """A Judge with these settings."""
        return cls(
            pool,
            stale_after_s=settings.stale_after_s,
            calm_dwell_s=settings.calm_dwell_s,
            false_episodes_per_node_day=settings.false_episodes_per_node_day,
            model=model,
        )

    def tick(self, now_s: float, samples: Sequence[Sample]) -> list[Verdict]:
        """Judges the Samples that came since the last tick.

        Returns a Verdict for each new Sample, and one a second for each node that sends none any more. `now_s` is
        monotonic seconds. Raises ValueError for a Sample of another pool.
        """
        return self.take(now_s, [row_of(sample) for sample in samples], samples)

    def take(self, now_s: float, arrived: Sequence[Row], samples: Sequence[Sample] = ()) -> list[Verdict]:
        """Does what `tick` does, for Samples that are rows already."""
        verdicts: list[Verdict] = []
        arrived, samples = monitors_first(arrived, samples, self._has_monitor)
        if arrived:
            table = table_of(arrived, self.pool, samples)
            sorted_samples = self.sorter.sort(table, now_s)
            self._add_nodes(now_s, table, sorted_samples.new_nodes)
            for part in sorted_samples.rounds:
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
        """Sets the nodes' mean response times (ms) at the balancer, which are used where a node sees no traffic."""
        slots = ((self.sorter.slot(node), mean_ms) for node, mean_ms in rt_ms.items())
        self.balancer_latency.report(now_s, {slot: mean_ms for slot, mean_ms in slots if slot is not None})

    # -- baselines on disk ------------------------------------------------------------------------------------------

    def baseline_nodes(self) -> list[str]:
        """All nodes that `export_baselines` knows, also those that were not heard of since the start."""
        return [*self._restored, *self.sorter.nodes]

    def export_baselines(self, now_unix_s: float, nodes: list[str] | None = None) -> StoredBaselines:
        """Node -> its calm baseline as JSON, with the time when it was last heard of; of all nodes, or of `nodes`.

        A node that was heard of in the last hour counts as heard of now.
        """
        wanted = self.baseline_nodes() if nodes is None else nodes
        slot_of = self.sorter.nodes
        heard = [node for node in wanted if node in slot_of]
        baselines: StoredBaselines = {node: self._restored[node] for node in wanted if node in self._restored}
        for node, cells in zip(heard, self._export([slot_of[node] for node in heard]), strict=True):
            if cells:
                baselines[node] = {LAST_HEARD: round(now_unix_s, 1), **cells}
        return baselines

    def _export(self, slots: Sequence[int]) -> list[dict[str, Any]]:
        """Each slot's calm baseline as JSON."""
        cells_by_slot: list[dict[str, Any]] = self.features.baselines.export(np.array(slots, dtype=np.int64))
        for slot, cells in zip(slots, cells_by_slot, strict=True):
            if routes := self.windows.routes.export(slot):
                cells[ROUTES] = routes
            if highest_rps := self.windows.rates.export(slot):
                cells[HIGHEST_RPS] = highest_rps
        return cells_by_slot

    def _restore(self, slot: int, node: str, stored: Mapping[str, Any]) -> None:
        """Restores a slot's calm baseline."""
        try:
            cells = {**stored}
            cells.pop(LAST_HEARD, None)
            highest_rps = cells.pop(HIGHEST_RPS, None)
            if highest_rps is not None:
                self.windows.rates.restore(slot, highest_rps)
            self.windows.routes.restore(slot, cells.pop(ROUTES, {}))
            self.features.baselines.restore(slot, cells)
        except (ValueError, TypeError) as error:
            log.warning("%s/%s: its stored baseline is left out: %s", self.pool, node, error)

    def restore_baselines(self, nodes: StoredBaselines) -> None:
        """Restores a result of `export_baselines`; each node gets its baseline when it is first heard of."""
        self._restored = dict(nodes)

    # -- one tick ---------------------------------------------------------------------------------------------------

    def _has_monitor(self, node: str) -> bool:
        """Whether a node's Samples are those of its monitor, and it is heard of."""
        slot = self.sorter.slot(node)
        return slot is not None and slot < len(self._fresh) and bool(self._fresh[slot] and self.sources.speaks[slot])

    def _knows_calm(self, node: str) -> bool:
        """Whether a node's signals can be compared with their calm: its own, or that of its peers' monitors."""
        lends = self._fresh & ~self._in_episode & ~self.sources.outside & self.features.baselines.learnt
        return bool(self._of_other_source.get(node) or lends.any())

    def _add_nodes(self, now_s: float, table: Table, new_nodes: Sequence[tuple[int, int]]) -> None:
        """Makes room for new nodes, and empties their slots of other nodes' values."""
        if new_nodes:
            self.resize(self.sorter.slots)
            for node in self._of_other_source.keys() - self.sorter.nodes.keys():
                del self._of_other_source[node]
        for slot, row in new_nodes:
            node = table.nodes[row]
            self.forget(slot)
            if self.explainer is not None:
                self.explainer.forget(slot)
            self._in_episode[slot] = is_lowered = node in self.lowered
            self.rules.add_node(slot, now_s, float(table.time_unix_s[row]), is_lowered=is_lowered)
            stored = self._restored.pop(node, {})
            outside = HIGHEST_RPS in stored if stored else bool(table.columns["balancer.only"][row])
            self.sources.outside[slot] = outside
            self._of_other_source.pop(node, None)
            self._restore(slot, node, stored)

    def _judge(self, now_s: float, table: Table, slots: Ints, first: Bools) -> list[Verdict]:
        """Judges one Sample of each of these slots, all in one pass."""
        self._fresh[slots] = True
        table = self.sources.hear(slots, table, self._in_episode, self._knows_calm)
        self._change_sources(slots, table)
        table.columns[COLUMN] = self.balancer_latency.column(now_s, slots, table.columns)
        leave_out_idle(table.columns)
        rows = self.windows.add(slots, table, first)
        frame = self.features.compute(rows, self._fresh, self._in_episode)
        limits = self.own_limits.update(now_s, table.columns, frame, self._in_episode)
        outcome = self.rules.step(now_s, table, frame, self._fresh, self._in_episode, limits)
        failing = self._failing(now_s, slots, table)
        outcome = dataclasses.replace(outcome, excused=outcome.excused | failing.unfit)
        neighbour: Bools = np.asarray(outcome.steps.state == INTERFERENCE)
        renamed = self.sources.reword(slots, frame.unnamed, outcome.shows, outcome.quiet)
        renamed |= self.own_limits.reword(slots, limits.proven & neighbour)
        outcome = self.rules.reword(outcome, slots, neighbour & renamed & ~outcome.steps.began, table.time_unix_s)
        self._in_episode[slots] = neighbour | failing.on
        self.windows.note_episodes(slots, neighbour)
        calm = self._learn(now_s, frame, outcome, table)
        estimates = self.estimator.update(frame, table.columns, calm, neighbour)
        if frame.outside.any():
            estimates = self._of_requests(frame, table, outcome, estimates, calm)
        self._follow_resource(frame, outcome, neighbour)
        if self.ticks is not None:
            columns = (outcome.pool.has_requests, outcome.answers.kind, outcome.by_tree)
            self.ticks += map(Tick, table.samples, frame.matrix, *(column.tolist() for column in columns))
        verdicts = self._verdicts(table, frame, outcome, estimates, failing)
        worded = self.explainer is not None
        return with_failures(with_limits(verdicts, limits, worded=worded), failing, worded=worded)

    def _failing(self, now_s: float, slots: Ints, table: Table) -> Failing:
        known = {"fresh": self._fresh, "in_episode": self._in_episode}
        return self.failures.update(now_s, slots, table.columns, table.time_unix_s, **known)

    def _change_sources(self, slots: Ints, table: Table) -> None:
        """Changes the baselines of nodes whose monitor came, or fell silent: their loads mean something else."""
        outside = table.columns["balancer.only"] > 0.0
        for row in np.flatnonzero(outside != self.sources.outside[slots]).tolist():
            slot, node = int(slots[row]), table.nodes[row]
            (cells,) = self._export([slot])
            for part in (self.features, self.windows, self.estimator, self.calm_capacity):
                part.forget(slot)
            self._restore(slot, node, self._of_other_source.get(node, {}))
            self._of_other_source[node] = cells
        self.sources.outside[slots] = outside

    def _learn(self, now_s: float, frame: Frame, outcome: Outcome, table: Table) -> Bools:
        """Teaches the baselines the rows that are calm without doubt; returns which rows these are, (M,).

        An excused row is none: in a full pool a neighbour overloads the peers too, and the row would teach it as calm.
        """
        if self.calm_by_label is not None:
            calm = np.array([self.calm_by_label.get(node, True) for node in table.nodes])
        else:
            state = outcome.steps.state
            long = now_s - self.rules.since_s(frame.slots) >= LEARN_ANYWAY_S
            looks_calm = (outcome.pool.looks == CALM) & (state == CALM) & ~outcome.excused
            calm = np.where((state == ALL_SLOW) | (state == OVERLOAD), long, looks_calm)
            # The first baseline decides what is normal, so no row that stands out among the peers goes into it.
            calm &= ~(frame.borrowed & outcome.stands_out)
        # A server that just came back answers what waited for it. One with a slow client is calm, but
        # what its users feel then is none of its calm.
        calm &= ~frame.returned & ~(frame.tail_alone & frame.users_wait)
        fit = calm & ~np.isnan(frame.values).all(axis=1)
        self.features.baselines.learn(frame.slots[fit], frame.bins[fit], frame.values[fit])
        outside = calm & frame.outside
        if outside.any():
            self.windows.rates.learn(frame.slots[outside], table.columns["period_s"][outside])
        if frame.rt_by_route_ms is not None:
            self.windows.routes.learn(frame.slots, frame.rt_by_route_ms, calm)
        return calm

    def _of_requests(
        self, frame: Frame, table: Table, outcome: Outcome, estimates: Estimates, calm: Bools
    ) -> Estimates:
        """The estimates; those of servers without a monitor are by their rates and response times."""
        looks_slow, in_episode = outcome.shows, outcome.steps.state == INTERFERENCE
        lost = self.slowness.update(frame.slots, frame.slower, table.columns["period_s"], looks_slow, in_episode)
        calm_rps = self.calm_capacity.update(
            frame.slots,
            table.columns["traffic.rps"],
            table.columns["traffic.rt_mean_ms"],
            self.windows.rates.highest(frame.slots),
            table.columns["period_s"],
            calm & frame.outside,
        )
        capacity = np.where(in_episode, np.nan, calm_rps)  # what is left of it beside a neighbour is not known
        return Estimates(
            predicted=np.where(frame.outside, np.nan, estimates.predicted),
            capacity=np.where(frame.outside, capacity, estimates.capacity),
            severity=np.where(frame.outside, lost, estimates.severity),
            capacity_stderr=np.where(frame.outside, ERROR * capacity, estimates.capacity_stderr),
        )

    def _follow_resource(self, frame: Frame, outcome: Outcome, neighbour: Bools) -> None:
        """Keeps the resource that an episode's ticks last showed clearly, since a drained server's ticks show none."""
        if not neighbour.any():
            return
        self._resource[frame.slots[neighbour & outcome.steps.began]] = UNCLEAR
        resource = resource_of(frame)
        clear = neighbour & outcome.shows & (resource != UNCLEAR)
        self._resource[frame.slots[clear]] = resource[clear]

    def _verdicts(
        self, table: Table, frame: Frame, outcome: Outcome, estimates: Estimates, failing: Failing
    ) -> list[Verdict]:
        """A Verdict for each row. The fields are in `Verdict`'s order, since names would cost time."""
        neighbour, unnamed = np.asarray(outcome.steps.state == INTERFERENCE), self.sources.unnamed[frame.slots]
        resources: list[Resource | None] = [None] * len(table)
        for row in np.flatnonzero(neighbour & ~unnamed).tolist():
            resources[row] = RESOURCES[self._resource[frame.slots[row]]]
        reasons = self.explainer.reasons(frame, outcome) if self.explainer else [[] for _ in resources]
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
                map(word_of, outcome.steps.state.tolist(), unnamed.tolist()),
                np.maximum(0.0, outcome.steps.since_unix_s).tolist(),
                estimates.severity.tolist(),
                reasons,
                repeat(self.model.name),
                resources,
                (~outcome.steps.waits).tolist(),
                table.seq.tolist(),
                *or_none(np.array(numbers)),
                outcome.steps.probability.tolist(),
                *or_none(outcome.steps.calm_shows_within_s[None]),
                repeat(self.controller),
                np.where(frame.outside, "balancer", "monitor").tolist(),
                *or_none(np.array((failing.share, failing.peers))),
            )
        )

    def _lost(self, now_s: float, stale: Stale) -> Verdict:
        slot = stale.slot
        self._fresh[slot] = self._in_episode[slot] = False
        label_unix_s = stale.last_unix_s + stale.for_s
        state, since_unix_s = self.rules.lost(slot, now_s, label_unix_s)
        return Verdict(
            v=VERSION,
            node=stale.node,
            pool=self.pool,
            time_unix_s=label_unix_s,
            state=STATES[state],
            since_unix_s=since_unix_s,
            severity=0.0,
            path=[silence(stale.for_s)],
            model=self.model.name,
            controller=self.controller,
            source="balancer" if self.sources.outside[slot] else "monitor",
        )
