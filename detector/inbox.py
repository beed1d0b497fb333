"""Keeps the newest Samples of one pool's nodes and says which are new, there twice, old, late or from a restart.

Durations come from the monotonic clock handed in; a Sample's wall time only orders what its sequence number cannot.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from detector.lateness import Timeline
from detector.signals import WINDOW
from slackwater.messages import Sample

QUEUE = 64
"""Samples of one node that may wait for a tick; of more, the oldest are dropped (13 s at the default period)."""
OLD_IN_A_ROW = 3
"""So many older Samples, each newer than the one before, are a restarted monitor whose clock was set back."""
FORGET_AFTER_S = 3600.0
"""A node without Samples for this long has left the pool."""

Arrival = Literal["new", "restart", "duplicate", "old", "late"]
"""`late`: it waited while the bus was away, so it tells of then and not of now."""


@dataclass
class _Node:
    slot: int
    boot_id: str
    seq: int
    time_unix_s: float
    seen_s: float
    timeline: Timeline
    waiting: deque[tuple[Sample, bool]] = field(default_factory=lambda: deque(maxlen=QUEUE))
    said_s: float = 0.0
    old_run: int = 0
    old_seq: int = -1
    past_boot_id: str = ""
    hole: bool = False
    """Too much is missing before the next Sample for a window to reach across."""
    lost: int = 0
    dropped: int = 0
    said_lost_s: float = -math.inf


@dataclass(frozen=True)
class Loss:
    """Samples of a node that never came."""

    node: str
    lost: int
    dropped: int
    """Of these: its monitor says that it dropped them while the bus was away."""


@dataclass(frozen=True)
class Stale:
    """A node that has gone quiet."""

    node: str
    slot: int
    for_s: float
    last_unix_s: float
    """Wall time of its last Sample."""


class Inbox:
    """The pool's waiting Samples. Each node has a slot, its row in the detector's arrays; slots are used again."""

    def __init__(self, pool: str, stale_after_s: float) -> None:
        self.pool = pool
        self.stale_after_s = stale_after_s
        self.slots = 0
        self._nodes: dict[str, _Node] = {}
        self._free: list[int] = []

    def offer(self, sample: Sample, now_s: float) -> Arrival:
        """Takes a Sample in. Raises ValueError for one of another pool.

        A duplicate, an older and a late one are left out. After a restart and after a hole of `WINDOW` Samples nothing
        of before counts in the windows.
        """
        if sample.pool != self.pool:
            raise ValueError(f"a Sample of pool {sample.pool} was handed to the inbox of pool {self.pool}")
        node = self._nodes.get(sample.node)
        if node is None:
            slot = self._free.pop() if self._free else self.slots
            self.slots = max(self.slots, slot + 1)
            timeline = Timeline(now_s, sample.period_s)
            node = _Node(slot, sample.boot_id, sample.seq, sample.time_unix_s, now_s, timeline)
            self._nodes[sample.node] = node
            node.waiting.append((sample, True))
            return "new"
        restarted = sample.boot_id != node.boot_id
        if restarted and sample.boot_id == node.past_boot_id:
            return "old"
        if not restarted and sample.seq == node.seq and sample.time_unix_s == node.time_unix_s:
            node.seen_s = now_s
            return "duplicate"
        if not restarted and sample.seq <= node.seq:
            # A restarted monitor counts from 0 again, later than what we have; a late Sample is earlier than that.
            restarted = sample.time_unix_s > node.time_unix_s
            if not restarted:
                node.old_run = node.old_run + 1 if sample.seq == node.old_seq + 1 else 1
                node.old_seq = sample.seq
                if node.old_run < OLD_IN_A_ROW:
                    return "old"
                restarted = True
        if sample.boot_id != node.boot_id:
            node.past_boot_id, node.boot_id = node.boot_id, sample.boot_id
        missing = 0 if restarted else sample.seq - node.seq - 1
        node.seq, node.time_unix_s = sample.seq, sample.time_unix_s
        node.old_run, node.old_seq = 0, -1
        node.lost += missing
        node.dropped += min(sample.samples_dropped, missing)
        node.hole |= restarted or missing >= WINDOW
        if restarted:
            node.timeline = Timeline(now_s, sample.period_s)
        elif node.timeline.late_s(now_s, sample.period_s, missing, self.stale_after_s) > self.stale_after_s:
            node.hole = True
            return "late"
        node.seen_s = now_s
        node.waiting.append((sample, node.hole))
        node.hole = False
        return "restart" if restarted else "new"

    def take(self) -> list[tuple[int, Sample, bool]] | None:
        """The oldest waiting Sample of each node as (slot, Sample, first of a run), None when none waits.

        Called until it gives None, so that two Samples that came in one tick count as two.
        """
        batch = [(node.slot, *node.waiting.popleft()) for node in self._nodes.values() if node.waiting]
        return batch or None

    def losses(self, now_s: float, every_s: float = 60.0) -> list[Loss]:
        """What was lost since it was last told, of each node at most every `every_s` seconds."""
        told = []
        for name, node in self._nodes.items():
            if node.lost and now_s - node.said_lost_s >= every_s:
                told.append(Loss(name, node.lost, node.dropped))
                node.lost, node.dropped, node.said_lost_s = 0, 0, now_s
        return told

    def stale(self, now_s: float, every_s: float = 1.0) -> list[Stale]:
        """Stale nodes, each at most every `every_s` seconds. Drops nodes that have left (`FORGET_AFTER_S`)."""
        due = []
        for name, node in list(self._nodes.items()):
            quiet_s = now_s - node.seen_s
            if quiet_s < self.stale_after_s:
                continue
            if quiet_s >= FORGET_AFTER_S:
                del self._nodes[name]
                self._free.append(node.slot)
            elif node.said_s < node.seen_s or now_s - node.said_s >= every_s:
                node.said_s = now_s
                due.append(Stale(name, node.slot, quiet_s, node.time_unix_s))
        return due

    @property
    def nodes(self) -> dict[str, int]:
        """Slot of each known node, stale ones too."""
        return {name: node.slot for name, node in self._nodes.items()}
