"""The detector's core for one pool: Samples in, Verdicts out; no I/O, no clock: same Samples, same Verdicts.

A tick: newest Samples -> features -> tree or thresholds -> what the pool says -> each node's state machine -> Verdict.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from detector import thresholds
from detector.baseline import learnable
from detector.episodes import NEEDED, OF, StateMachine, Status
from detector.estimator import START, Estimates, Estimator
from detector.features import Features, Frame
from detector.history import History
from detector.inbox import Inbox, Stale
from detector.signals import Bools, Floats, Ints
from detector.tree import Model
from slackwater.messages import VERSION, Sample, State, Verdict

log = logging.getLogger("detector.judge")

Why = Callable[[int], list[str]]
"""Gives the reasons of a row of the frame in words."""

ALL_SLOW_SHARE = 0.7
"""When this share of the pool, and at least two nodes, is slow at a time, the cause is shared: it is no neighbour."""
FULL = 0.85
"""From this CPU share on, what its requests cost when calm can explain that a server is slow."""
BUSY = 0.97
"""CPU utilisation of a server that is overloaded even if nothing else shows it."""
MORE_THAN_PEERS = 1.15
"""A full server that stands out is overloaded when it carries so much more than its peers; at theirs it is not."""
LEARN_ANYWAY_S = 30.0
"""A pool that is slow together for this long has a new normal (a deploy that makes requests dearer): it is learnt."""
FEW_REQUESTS = 0.03
"""A server whose own CPU share is below this has no requests to speak of: little can show there."""


@dataclass(frozen=True)
class Tick:
    """What one Sample's tick looked like, for training: features and the state before the state machine."""

    sample: Sample
    features: Floats
    seen: State
    has_requests: bool


class Judge:
    """Judges one pool. `model` None: by the thresholds."""

    def __init__(self, pool: str, *, stale_after_s: float, calm_dwell_s: float, model: Model | None = None) -> None:
        self.pool = pool
        self.model = model
        self.calm_dwell_s = calm_dwell_s
        self.inbox = Inbox(pool, stale_after_s)
        self.features = Features()
        self.history = History()
        self.estimator = Estimator(model.coefficients if model else START)
        self.ticks: list[Tick] | None = None
        """Set to a list to keep every tick (training)."""
        self.calm_by_label: dict[str, bool] | None = None
        """Node -> calm, while training: what a label says decides what is learnt, not the judgement in the making."""
        self._machines: dict[int, StateMachine] = {}
        self._began: dict[int, list[str]] = {}
        """Slot of a node in an episode -> why, on the last tick that showed it."""
        self._owner: dict[int, str] = {}
        self._restored: dict[str, dict[str, Any]] = {}
        self._seen_slow: Bools = np.zeros(0, dtype=bool)
        self._fresh: Bools = np.zeros(0, dtype=bool)
        self._in_episode: Bools = np.zeros(0, dtype=bool)

    def tick(self, now_s: float, samples: Sequence[Sample]) -> list[Verdict]:
        """Takes what came since the last tick; one Verdict per new Sample, and one a second per node gone quiet.

        `now_s` is monotonic seconds. Raises ValueError for a Sample of another pool.
        """
        for sample in samples:
            self.inbox.offer(sample, now_s)
        for loss in self.inbox.losses(now_s):
            log.warning(
                "%s/%s: %d Samples never came (its monitor dropped %d of them while the bus was away)",
                *(self.pool, loss.node, loss.lost, loss.dropped),
            )
        verdicts: list[Verdict] = []
        while batch := self.inbox.take():
            self._welcome(now_s, batch)
            verdicts += self._judge(now_s, batch)
        for stale in self.inbox.stale(now_s):
            verdicts.append(self._lost(now_s, stale))
        return verdicts

    # -- baselines on disk ------------------------------------------------------------------------------------------

    def export_baselines(self) -> dict[str, Any]:
        """Node -> its calm baseline as JSON, those not heard of since the start too."""
        known = {node: self.features.baselines.export(slot) for node, slot in self.inbox.nodes.items()}
        return {**self._restored, **{node: cells for node, cells in known.items() if cells}}

    def restore_baselines(self, nodes: dict[str, Any]) -> None:
        """Takes what `export_baselines` gave; each node gets its own when it is first heard of."""
        self._restored = dict(nodes)

    # -- one tick ---------------------------------------------------------------------------------------------------

    def _welcome(self, now_s: float, batch: list[tuple[int, Sample, bool]]) -> None:
        slots = self.inbox.slots
        more = slots - len(self._fresh)
        if more > 0:
            self.features.resize(slots)
            self.history.resize(slots)
            self.estimator.resize(slots)
            self._seen_slow = np.concatenate([self._seen_slow, np.zeros(more, dtype=bool)])
            self._fresh = np.concatenate([self._fresh, np.zeros(more, dtype=bool)])
            self._in_episode = np.concatenate([self._in_episode, np.zeros(more, dtype=bool)])
        for slot, sample, _ in batch:
            self._fresh[slot] = True
            if self._owner.get(slot) == sample.node:
                continue
            if slot in self._owner:
                self._began.pop(slot, None)
                self.features.forget(slot)
                self.estimator.forget(slot)
                self._seen_slow[slot] = self._in_episode[slot] = False
            self._owner[slot] = sample.node
            self._machines[slot] = StateMachine(self.calm_dwell_s, now_s, sample.time_unix_s)
            if sample.node in self._restored:
                try:
                    self.features.baselines.restore(slot, self._restored.pop(sample.node))
                except ValueError as error:
                    log.warning("%s/%s: baseline of before left out: %s", self.pool, sample.node, error)

    def _judge(self, now_s: float, batch: list[tuple[int, Sample, bool]]) -> list[Verdict]:
        slots: Ints = np.array([slot for slot, _, _ in batch], dtype=np.int64)
        samples = [sample for _, sample, _ in batch]
        rows = self.history.add(slots, samples, np.array([first for _, _, first in batch]))
        frame = self.features.compute(rows, self._fresh, self._in_episode)
        crossed = thresholds.cross(frame)
        suspected, why = self._suspect(frame, crossed, samples)
        seen = self._pool_says(frame, crossed, suspected)
        statuses = [
            self._machines[int(slots[row])].step(
                now_s,
                sample.time_unix_s,
                seen[row],
                wary=bool(frame.borrowed[row]),
                thin=not frame.load[row] >= FEW_REQUESTS,
                residual=", ".join(thresholds.explain_residual(frame, crossed, row))
                if crossed.residual[row].any()
                else "",
            )
            for row, sample in enumerate(samples)
        ]
        neighbour = np.array([status.state == "interference" for status in statuses])
        self._in_episode[slots] = neighbour
        calm: Bools = self._learn(now_s, frame, crossed, seen, statuses, samples)
        estimates = self.estimator.update(frame, calm, neighbour)
        if self.ticks is not None:
            matrix = frame.matrix()
            for row, sample in enumerate(samples):
                requests = bool(frame.load[row] >= FEW_REQUESTS)
                self.ticks.append(Tick(sample, matrix[row], seen[row], requests))
        return [
            self._verdict(row, sample, status, frame, seen[row], why, estimates)
            for row, (sample, status) in enumerate(zip(samples, statuses, strict=True))
        ]

    def _suspect(self, frame: Frame, crossed: thresholds.Crossed, samples: list[Sample]) -> tuple[Bools, Why]:
        """Rows that look interfered by themselves, and a function that gives the reasons of a row.

        The tree and the stated thresholds must agree: a tree learns what tells its recordings apart, and one signal can
        be enough for that; the thresholds leave a burst's own waiting out, and ask for a second witness.
        """
        if self.model is None:
            return crossed.interfering, lambda row: thresholds.explain(frame, crossed, row)
        tree = self.model.tree
        leaves, levels, lacking = tree.walk(frame.matrix())
        suspected: Bools = np.asarray(crossed.interfering & (lacking | tree.interfering(leaves)))

        def why(row: int) -> list[str]:
            if lacking[row]:
                lacks = tree.asked_in_vain(frame, row, levels, samples[row])
                return [*thresholds.explain(frame, crossed, row), f"judged by the thresholds ({lacks})"]
            return tree.explain(frame, row, levels)

        return suspected, why

    def _pool_says(self, frame: Frame, crossed: thresholds.Crossed, suspected: Bools) -> list[State]:
        """State of each row: does its own load explain it, or a cause that the pool shares?"""
        demand = np.where(np.isnan(frame.demand), frame.load, frame.demand)
        with np.errstate(invalid="ignore"):
            full = demand >= FULL
            like_peers = frame.peers_demand * MORE_THAN_PEERS >= demand
            busy = suspected | crossed.slow | (frame.utilisation >= BUSY)
        overload = full & busy & ~(suspected & like_peers)
        # Who stands out against its peers has a cause of its own, also while all are slow.
        slow = crossed.slow & ~overload & ~suspected
        self._seen_slow[frame.slots] = slow
        pool = int(self._fresh.sum())
        together = int((self._seen_slow & self._fresh).sum())
        shared = together >= 2 and together >= ALL_SLOW_SHARE * pool
        states: list[State] = []
        for row in range(len(frame.slots)):
            if overload[row]:
                states.append("overload")
            elif slow[row] and shared:
                states.append("all_slow")
            else:
                states.append("interference" if suspected[row] else "calm")
        return states

    def _learn(
        self,
        now_s: float,
        frame: Frame,
        crossed: thresholds.Crossed,
        seen: list[State],
        statuses: list[Status],
        samples: list[Sample],
    ) -> Bools:
        """Teaches the baselines from the rows that are calm without doubt; returns which these are."""
        if self.calm_by_label is not None:
            calm = np.array([self.calm_by_label.get(sample.node, True) for sample in samples])
        else:
            calm = np.array(
                [self._is_calm(now_s, seen[row], statuses[row], int(frame.slots[row])) for row in range(len(seen))]
            )
            # The first baseline decides what is normal: nothing that stands out among the peers goes into it.
            calm &= ~(frame.borrowed & crossed.votes.any(axis=1))
        fit = learnable(calm, frame.values)
        self.features.baselines.learn(frame.slots[fit], frame.bins[fit], frame.values[fit])
        return calm

    def _is_calm(self, now_s: float, seen: State, status: Status, slot: int) -> bool:
        if status.state in ("all_slow", "overload"):
            return now_s - self._machines[slot].since_s >= LEARN_ANYWAY_S
        return seen == "calm" and status.state == "calm"

    # -- words ------------------------------------------------------------------------------------------------------

    def _verdict(
        self,
        row: int,
        sample: Sample,
        status: Status,
        frame: Frame,
        seen: State,
        why: Why,
        estimates: Estimates,
    ) -> Verdict:
        path = list(why(row))
        if seen == "overload":
            path.append(f"its own load explains it: its requests cost {_share(frame.demand[row])} of its CPU when calm")
        elif seen == "all_slow":
            path = thresholds.explain_slow(frame, row) or path
            slow = int((self._seen_slow & self._fresh).sum())
            path.append(f"{slow} of {int(self._fresh.sum())} nodes are slow together: no neighbour")
        if seen != "calm" and seen == status.state:
            self._began[int(frame.slots[row])] = path
        elif status.state != "calm":
            path = self._began.get(int(frame.slots[row]), path)
        elif seen != "calm":
            path = [*path, f"looks like {seen}, but not in {NEEDED} of the last {OF} ticks"]
        if status.said:
            path = [*path, status.said]
        return Verdict(
            v=VERSION,
            node=sample.node,
            pool=self.pool,
            time_unix_s=sample.time_unix_s,
            state=status.state,
            since_unix_s=max(0.0, status.since_unix_s),
            severity=float(estimates.severity[row]),
            path=path,
            model=self.model.name if self.model else "thresholds",
            sample_seq=sample.seq,
            cpu=sample.cpu.utilisation if sample.cpu else None,
            cpu_predicted=_or_none(estimates.predicted[row]),
            capacity_rps=_or_none(estimates.capacity[row]),
            rps=sample.traffic.rps if sample.traffic else None,
            rt_mean_ms=sample.traffic.rt_mean_ms if sample.traffic else None,
            rt_p95_ms=sample.traffic.rt_p95_ms if sample.traffic else None,
        )

    def _lost(self, now_s: float, stale: Stale) -> Verdict:
        self._fresh[stale.slot] = self._in_episode[stale.slot] = self._seen_slow[stale.slot] = False
        label_unix_s = stale.last_unix_s + stale.for_s
        status = self._machines[stale.slot].lost(now_s, label_unix_s, stale.for_s)
        return Verdict(
            v=VERSION,
            node=stale.node,
            pool=self.pool,
            time_unix_s=label_unix_s,
            state=status.state,
            since_unix_s=status.since_unix_s,
            severity=0.0,
            path=[status.said],
            model=self.model.name if self.model else "thresholds",
        )


def _or_none(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _share(value: float) -> str:
    return f"{value:.0%}" if math.isfinite(value) else "an unknown share"
