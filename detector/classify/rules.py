"""From features to each node's state: the tree judges each Sample, and its evidence adds up."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from slackwater.detector.classify.episodes import CALM, INTERFERENCE, OVERLOAD, Signs, StateMachines, TickStates
from slackwater.detector.classify.own_limit import HOLD_S, Limits
from slackwater.detector.classify.pool_correlation import FULL, MORE_THAN_PEERS, PoolCorrelation, PoolCorrelator
from slackwater.detector.classify.tree import Answers, Model
from slackwater.detector.features.columns import Bools, Floats, Ints, Table, filled
from slackwater.detector.features.features import Frame
from slackwater.detector.features.signals import IDLE, INDEX, RESPONSES, SCALES, SIGNALS
from slackwater.detector.slot_arrays import SlotArrays

SIGNAL_WORDS = tuple(SIGNALS[column].words for column in IDLE.tolist())
FELT_SLOW = 1.0
"""An answer is slow from this excess on, in units of a response time's scale."""
MOMENTS_PER_S = 20.0
"""Rate of random moments of a monitor that does not count them."""
LIMITED = 0.98
"""Probability that a server still gets no more than its level, while its calm looks prove nothing."""
STANDS_OUT = 1.0
"""A Sample with a feature of at least this is not fit for a node's first baseline."""


@dataclass(frozen=True)
class Outcome:
    """The rules' result for a tick of M nodes."""

    answers: Answers
    pool: PoolCorrelation
    steps: TickStates
    by_tree: Bools
    """(M,) whether the tree's answer counts, since the tick looks neither overloaded nor as slow as the whole pool."""
    stands_out: Bools
    """(M,) whether a feature deviates, so that the tick is not fit for a node's first baseline."""
    excused: Bools
    """(M,) whether the tick looks calm only because an overloaded peer is as slow: against the node's own calm alone it
    looks like a neighbour. So it is no sign of calm."""

    @property
    def shows(self) -> Bools:
        """(M,) whether the tick looks like a neighbour's."""
        return np.asarray(self.pool.looks == INTERFERENCE)

    @property
    def quiet(self) -> Bools:
        """(M,) whether the tick looks calm, and the node is in no episode."""
        return np.asarray((self.pool.looks == CALM) & (self.steps.state == CALM))


class Rules(SlotArrays):
    """The rules, with every slot's state."""

    def __init__(self, calm_dwell_s: float, model: Model, false_episodes_per_node_day: float) -> None:
        self.model = model
        self._correlator = PoolCorrelator()
        self._machines = StateMachines(calm_dwell_s, SIGNAL_WORDS)
        thresholds = [tree.calm.threshold(false_episodes_per_node_day) for tree in model.trees]
        self._thresholds: Floats = np.array(thresholds)
        """(kinds,) the sum at which an episode begins."""
        super().__init__(self._correlator, self._machines)

    def add_node(self, slot: int, now_s: float, label_unix_s: float, *, is_lowered: bool = False) -> None:
        """Puts a new node into a slot: calm, without history. Where its server `is_lowered` the node is in an episode,
        the reason why it was lowered."""
        self._machines.add_node(slot, now_s, label_unix_s)
        if is_lowered:
            self._machines.take_up(slot, now_s, label_unix_s)

    def since_s(self, slots: Ints) -> Floats:
        """(M,) times when these slots' states began, in monotonic seconds."""
        return self._machines.since_s[slots]

    def lost(self, slot: int, now_s: float, label_unix_s: float) -> tuple[int, float]:
        """Notes that the node sends no Samples any more; returns its state and when that began (Unix seconds)."""
        self._machines.mark_unknown(slot, now_s, label_unix_s)
        return int(self._machines.state[slot]), float(self._machines.since_unix_s[slot])

    def reword(self, outcome: Outcome, slots: Ints, renamed: Bools, label_unix_s: Floats) -> Outcome:
        """The outcome of a tick in which the episodes of some slots get another word, whose time begins now. Arrays are
        (M,)."""
        if not renamed.any():
            return outcome
        since_unix_s = np.where(renamed, label_unix_s, outcome.steps.since_unix_s)
        self._machines.since_unix_s[slots] = since_unix_s
        return dataclasses.replace(outcome, steps=dataclasses.replace(outcome.steps, since_unix_s=since_unix_s))

    def step(
        self, now_s: float, table: Table, frame: Frame, fresh: Bools, in_episode: Bools, limits: Limits
    ) -> Outcome:
        """Steps the frame's nodes by one tick, all in one pass.

        `fresh`, `in_episode`: (slots,) whether a node is heard of, and whether it is in an episode.
        """
        answers = self.model.judge(frame)
        pool = self._correlator.classify(frame, answers.says > 0.0, fresh, in_episode)
        # A server that gets no more than its level, with more to do than its peers, which have room, is slow by itself.
        with np.errstate(invalid="ignore"):
            more = (frame.demand > MORE_THAN_PEERS * frame.peers_demand) & (frame.peers_demand < FULL)
            busy = (pool.looks == OVERLOAD) | ((pool.looks == CALM) & (frame.utilisation >= FULL) & frame.users_wait)
        limited = limits.full & more & (busy | (pool.looks == INTERFERENCE))
        pool = dataclasses.replace(pool, looks=np.where(limited, INTERFERENCE, pool.looks))
        # Looks of overload, of a limit, or of a pool that is slow together, are believed after two Samples.
        by_tree: Bools = ((pool.looks == INTERFERENCE) | (pool.looks == CALM)) & ~limited
        excused = self._excused(frame, pool.looks) | (limits.holds & (pool.looks == CALM))
        threshold = self._thresholds[answers.kind]
        steps = self._machines.step(
            frame.slots,
            now_s,
            table.time_unix_s,
            pool.looks,
            says=np.where(by_tree, answers.says, np.maximum(threshold / 2.0, answers.says * limited)),
            quiet=answers.quiet,
            threshold=threshold,
            period_s=table.columns["period_s"],
            low_traffic=~pool.has_requests,
            signs=_signs(frame, table, excused),
        )
        held = limits.holds & (steps.state == INTERFERENCE)
        if held.any():
            steps = dataclasses.replace(
                steps,
                waits=steps.waits & ~held,
                probability=np.where(held, np.maximum(steps.probability, LIMITED), steps.probability),
                calm_shows_within_s=np.where(held, HOLD_S, steps.calm_shows_within_s),
            )
        stands_out = np.asarray((frame.matrix >= STANDS_OUT).any(axis=1))
        return Outcome(answers, pool, steps, by_tree, stands_out, excused)

    def _excused(self, frame: Frame, looks: Ints) -> Bools:
        """`Outcome.excused`."""
        overloaded = self._machines.state == OVERLOAD
        beside: Bools = overloaded.sum() - overloaded[frame.slots] > 0
        # Only where the peers changed something can the tree say otherwise, and it seldom has to be asked.
        excused: Bools = beside & (looks == CALM) & (frame.own_excess != frame.excess).any(axis=1)
        if excused.any():
            excused &= self.model.judge(dataclasses.replace(frame, excess=frame.own_excess)).says > 0.0
        return excused


def _signs(frame: Frame, table: Table, excused: Bools) -> Signs:
    """The signs of a neighbour that a tick shows without requests."""
    share = frame.values[:, INDEX["kept_waiting"]]
    counted = table.columns["gaps.moments"]
    moments = np.where(np.isnan(counted), MOMENTS_PER_S * table.columns["period_s"], counted)
    moments = np.where(np.isnan(share), 0.0, moments)
    return Signs(
        rps=filled(table.columns["traffic.rps"], 0.0),
        moments=moments,
        waited=filled(share, 0.0) * moments,
        loud=frame.excess[:, IDLE] >= SCALES[IDLE],
        known=~np.isnan(frame.values[:, IDLE]),
        answered=np.asarray(~np.isnan(frame.values[:, RESPONSES]).all(axis=1)),
        slow=frame.felt(frame.own_excess) >= FELT_SLOW,
        excused=excused,
    )
