"""The detector's core for one pool: Samples in, Verdicts out; no I/O, no clock: same Samples, same Verdicts.

A tick: newest Samples -> features -> tree or thresholds -> what the pool says -> each node's state machine -> Verdict.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from detector.baseline_checkpoint import LAST_HEARD, Nodes
from detector.classify import thresholds
from detector.classify.episodes import CALM, CODES, ENOUGH, INTERFERENCE, STATES, STRONG, WEAK, StateMachines, Steps
from detector.classify.persistence import NEEDED, OF, Lasting
from detector.classify.pool_correlation import Says, Together
from detector.classify.resource import RESOURCES, UNCLEAR, resource_of
from detector.classify.tree import Model
from detector.estimator import START, Estimates, Estimator
from detector.features.balancer_latency import COLUMN, Vantage
from detector.features.baseline import learnable
from detector.features.columns import Bools, Floats, Ints, Row, Table, reasons, row_of, table_of
from detector.features.features import Features, Frame
from detector.features.history import History, Rows
from detector.features.signals import leave_out_idle
from detector.inbox import Inbox, Stale
from slackwater.messages import VERSION, Resource, Sample, State, Verdict

log = logging.getLogger("detector.judge")

Why = Callable[[Ints], list[list[str]]]
"""Gives the reasons of some rows of the frame in words."""

LEARN_ANYWAY_S = 30.0
"""A pool that is slow together for this long has a new normal (a deploy that makes requests dearer): it is learnt."""
ROUTES = "routes"
"""Name, among a node's cells on disk, of its routes' calm response times."""


@dataclass(frozen=True)
class Tick:
    """What one Sample's tick looked like, for training: features and the state before the state machine."""

    sample: Sample
    features: Floats
    seen: State
    has_requests: bool


@dataclass(frozen=True)
class Suspects:
    """Which rows look interfered by themselves, (M,) each."""

    rows: Bools
    strong: Bools
    """Those that do so clearly."""
    mild: Bools
    """Those that do so too weakly to count unless it lasts."""
    why: Why


class Judge:
    """Judges one pool. `model` None: by the thresholds."""

    def __init__(self, pool: str, *, stale_after_s: float, calm_dwell_s: float, model: Model | None = None) -> None:
        self.pool = pool
        self.model = model
        self.inbox = Inbox(pool, stale_after_s)
        self.features = Features()
        self.history = History()
        self.vantage = Vantage()
        self.estimator = Estimator(model.coefficients if model else START)
        self.ticks: list[Tick] | None = None
        """Set to a list to keep every tick (training)."""
        self.calm_by_label: dict[str, bool] | None = None
        """Node -> calm, while training: what a label says decides what is learnt, not the judgement in the making."""
        self._together = Together()
        self._machines = StateMachines(calm_dwell_s)
        self._lasting = Lasting()
        self._last_shown: dict[int, list[str]] = {}
        """Slot of a node in an episode -> why, on the last tick that showed it."""
        self._restored: Nodes = {}
        self._kept_waiting: Bools = np.zeros(0, dtype=bool)
        self._fresh: Bools = np.zeros(0, dtype=bool)
        self._used: Bools = np.zeros(0, dtype=bool)
        self._in_episode: Bools = np.zeros(0, dtype=bool)
        self._resource: Ints = np.zeros(0, dtype=np.int64)

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
            found = self.inbox.sort(table, now_s)
            self._welcome(now_s, table, found.welcome)
            for part in found.rounds:
                whole = len(part.rows) == len(table)
                verdicts += self._judge(now_s, table if whole else table.only(part.rows), part.slots, part.first)
        for loss in self.inbox.losses(now_s):
            log.warning(
                "%s/%s: %d Samples never came (its monitor dropped %d of them while the bus was away)",
                *(self.pool, loss.node, loss.lost, loss.dropped),
            )
        for stale in self.inbox.stale(now_s):
            verdicts.append(self._lost(now_s, stale))
        return verdicts

    def hear_balancer(self, now_s: float, rt_ms: Mapping[str, float]) -> None:
        """Takes in each node's mean response time as the balancer sees it: for nodes that see no traffic themselves."""
        for node, told_ms in rt_ms.items():
            slot = self.inbox.slot(node)
            if slot is not None:
                self.vantage.hear(now_s, slot, told_ms)

    # -- baselines on disk ------------------------------------------------------------------------------------------

    def baseline_nodes(self) -> list[str]:
        """All nodes that `export_baselines` knows, those not heard of since the start too."""
        return [*self._restored, *self.inbox.nodes]

    def export_baselines(self, now_unix_s: float, nodes: list[str] | None = None) -> Nodes:
        """Node -> its calm baseline as JSON, with when it was last heard of; of all nodes, or of these.

        One heard of in the last hour counts as heard of now.
        """
        wanted = self.baseline_nodes() if nodes is None else nodes
        slot_of = self.inbox.nodes
        heard = [node for node in wanted if node in slot_of]
        slots: Ints = np.array([slot_of[node] for node in heard], dtype=np.int64)
        found: Nodes = {node: self._restored[node] for node in wanted if node in self._restored}
        for node, slot, cells in zip(heard, slots.tolist(), self.features.baselines.export(slots), strict=True):
            if routes := self.history.routes.export(slot):
                cells[ROUTES] = routes
            if cells:
                found[node] = {LAST_HEARD: round(now_unix_s, 1), **cells}
        return found

    def restore_baselines(self, nodes: Nodes) -> None:
        """Takes what `export_baselines` gave; each node gets its own when it is first heard of."""
        self._restored = dict(nodes)

    # -- one tick ---------------------------------------------------------------------------------------------------

    def _welcome(self, now_s: float, table: Table, welcome: Sequence[tuple[int, int]]) -> None:
        """Makes room for new nodes, and empties slots that were another's."""
        more = self.inbox.slots - len(self._fresh)
        if more > 0:
            parts = (self.features, self.history, self.estimator, self.vantage, self._together, self._machines)
            for part in (*parts, self._lasting):
                part.resize(self.inbox.slots)
            self._fresh, self._in_episode, self._used, self._kept_waiting = (
                np.concatenate([marks, np.zeros(more, dtype=bool)])
                for marks in (self._fresh, self._in_episode, self._used, self._kept_waiting)
            )
            self._resource = np.concatenate([self._resource, np.full(more, UNCLEAR)])
        for slot, row in welcome:
            node = table.nodes[row]
            if self._used[slot]:
                self._last_shown.pop(slot, None)
                self.features.forget(slot)
                self.history.forget(slot)
                self.estimator.forget(slot)
                self.vantage.forget(slot)
                self._together.forget(slot)
                self._lasting.forget(slot)
                self._in_episode[slot] = self._kept_waiting[slot] = False
            self._used[slot] = True
            self._machines.welcome(slot, now_s, float(table.time_unix_s[row]))
            if node in self._restored:
                try:
                    cells = {**self._restored.pop(node)}
                    cells.pop(LAST_HEARD, None)
                    self.history.routes.restore(slot, cells.pop(ROUTES, {}))
                    self.features.baselines.restore(slot, cells)
                except (ValueError, TypeError) as error:
                    log.warning("%s/%s: baseline of before left out: %s", self.pool, node, error)

    def _judge(self, now_s: float, table: Table, slots: Ints, first: Bools) -> list[Verdict]:
        """One Sample of each of these slots, all in one pass."""
        self._fresh[slots] = True
        table.columns[COLUMN] = self.vantage.column(now_s, slots, table.columns)
        leave_out_idle(table.columns)
        rows = self.history.add(slots, table, first)
        frame = self.features.compute(rows, self._fresh, self._in_episode)
        crossed = thresholds.cross(frame, self._kept_waiting[slots])
        self._kept_waiting[slots] = crossed.kept_waiting
        suspects = self._suspect(frame, crossed, table)
        shown = self._lasting.step(slots, suspects.mild)
        lasting: Bools = np.asarray(shown >= NEEDED)
        pool_says = self._together.judge(frame, crossed, suspects.rows | lasting, self._fresh, self._in_episode)
        seen = pool_says.seen
        strong = suspects.strong | (seen != INTERFERENCE)
        steps = self._machines.step(
            slots,
            now_s,
            table.time_unix_s,
            seen,
            strength=np.where(lasting & (seen == INTERFERENCE), ENOUGH, np.where(strong, STRONG, WEAK)),
            wary=frame.borrowed,
            thin=~pool_says.has_requests,
            residual=np.asarray(crossed.residual.any(axis=1)),
            answered=~np.isnan(table.columns["traffic.rt_mean_ms"]),
        )
        neighbour: Bools = np.asarray(steps.state == INTERFERENCE)
        self._in_episode[slots] = neighbour
        calm = self._learn(now_s, rows, frame, crossed, seen, steps, table)
        estimates = self.estimator.update(frame, calm, neighbour)
        self._follow_resource(frame, seen, steps, neighbour)
        if self.ticks is not None:
            matrix = frame.matrix()
            for row, sample in enumerate(table.samples):
                self.ticks.append(Tick(sample, matrix[row], STATES[seen[row]], bool(pool_says.has_requests[row])))
        paths = self._paths(frame, crossed, pool_says, steps, suspects.why, shown)
        return self._verdicts(table, frame.slots, steps, estimates, paths)

    def _suspect(self, frame: Frame, crossed: thresholds.Crossed, table: Table) -> Suspects:
        """What each row looks like by itself.

        The thresholds find a neighbour. The tree has a say on the signals that it asks for: where it says `calm`, these
        do not count, and what the others show is weak (it takes more ticks) and must be felt by users. It cannot veto
        what it never looked at: the signal that shows a neighbour on one kind of machine stays calm on another.
        """
        if self.model is None:
            mild = crossed.mild_without(np.zeros_like(crossed.lasting))
            return Suspects(
                crossed.interfering, crossed.strong, mild, lambda rows: thresholds.explain_all(frame, crossed, rows)
            )
        tree = self.model.tree
        leaves, levels, lacking = tree.walk(frame.matrix())
        agreed = lacking | tree.interfering(leaves)
        denied = tree.asked(leaves) & ~agreed[:, None]
        suspected = np.where(agreed, crossed.interfering, crossed.felt_without(denied))

        def why(rows: Ints) -> list[list[str]]:
            paths = tree.explain_all(frame, rows, leaves)
            for place in np.flatnonzero(lacking[rows]).tolist():
                row = int(rows[place])
                lacks = tree.asked_in_vain(frame, row, levels, reasons(table.absent[row]))
                paths[place] = [*thresholds.explain(frame, crossed, row), f"judged by the thresholds ({lacks})"]
            for place in np.flatnonzero((suspected & ~agreed)[rows]).tolist():
                paths[place] = [*thresholds.explain(frame, crossed, int(rows[place])), *paths[place]]
            return paths

        return Suspects(suspected, crossed.strong & agreed, crossed.mild_without(denied), why)

    def _learn(
        self,
        now_s: float,
        rows: Rows,
        frame: Frame,
        crossed: thresholds.Crossed,
        seen: Ints,
        steps: Steps,
        table: Table,
    ) -> Bools:
        """Teaches the baselines from the rows that are calm without doubt; returns which these are."""
        if self.calm_by_label is not None:
            calm = np.array([self.calm_by_label.get(node, True) for node in table.nodes])
        else:
            lasting = now_s - self._machines.since_s[frame.slots] >= LEARN_ANYWAY_S
            together = (steps.state == CODES["all_slow"]) | (steps.state == CODES["overload"])
            calm = np.where(together, lasting, (seen == CALM) & (steps.state == CALM))
            # The first baseline decides what is normal: nothing that stands out among the peers goes into it.
            calm &= ~(frame.borrowed & crossed.votes.any(axis=1))
        fit = learnable(calm, frame.values)
        self.features.baselines.learn(frame.slots[fit], frame.bins[fit], frame.values[fit])
        if rows.rt_by_route_ms is not None:
            self.history.routes.learn(frame.slots, rows.rt_by_route_ms, calm)
        return calm

    def _follow_resource(self, frame: Frame, seen: Ints, steps: Steps, neighbour: Bools) -> None:
        """What an episode's ticks last told clearly; a drained server's ticks tell nothing."""
        if not neighbour.any():
            return
        self._resource[frame.slots[neighbour & steps.began]] = UNCLEAR
        found = resource_of(frame)
        told = neighbour & (seen == INTERFERENCE) & (found != UNCLEAR)
        self._resource[frame.slots[told]] = found[told]

    # -- words ------------------------------------------------------------------------------------------------------

    def _paths(
        self, frame: Frame, crossed: thresholds.Crossed, pool_says: Says, steps: Steps, why: Why, shown: Ints
    ) -> list[list[str]]:
        """Each row's reasons in words. Nearly all rows are calm and told at once, the others one by one.

        `shown` (M,): in how many of the last ticks a weak neighbour showed.
        """
        seen = pool_says.seen
        paths = why(np.arange(len(seen)))
        shows = steps.shows
        busy = np.flatnonzero((seen != CALM) | (steps.state != CALM) | ~steps.silent)
        for row in busy.tolist():
            slot, state, looks = int(frame.slots[row]), STATES[steps.state[row]], STATES[seen[row]]
            path = paths[row]
            if looks == "interference" and shown[row] >= NEEDED:
                path = [*path, *thresholds.explain_lasting(frame, row), f"in {shown[row]} of the last {OF} ticks"]
            if looks == "overload":
                cost = _share(frame.demand[row])
                path = [*path, f"its own load explains it: its requests cost {cost} of its CPU when calm"]
            elif looks == "all_slow":
                path = [*(thresholds.explain_slow(frame, row) or path), pool_says.why(row)]
            said = steps.said(row, lambda row: ", ".join(thresholds.explain_residual(frame, crossed, row)))
            if looks == state and shows[row]:
                self._last_shown[slot] = path
                path = [*path, said]
            elif state != "calm":  # what holds it now comes first: the evidence is of before
                path = [said, *(f"before: {line}" for line in self._last_shown.get(slot, [])[:1])]
            elif looks != "calm":
                path = [*path, f"looks like {looks}, but not in enough of the last ticks"]
            elif said:
                path = [*path, said]
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
        self._fresh[slot] = self._in_episode[slot] = self._kept_waiting[slot] = False
        label_unix_s = stale.last_unix_s + stale.for_s
        self._machines.lost(slot, now_s, label_unix_s)
        self._lasting.forget(slot)
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
