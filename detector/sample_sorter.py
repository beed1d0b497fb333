"""Sorts the Samples of one pool that came since the last tick: which are new, there twice, old, late or from a restart.

Durations come from the monotonic clock handed in; a Sample's wall time only orders what its sequence number cannot.
All nodes are looked at in one pass; a node's second Sample of a tick has a pass of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from detector.features.columns import Bools, Floats, Ints, Table, filled
from detector.features.signals import HOLE
from detector.lateness import Timelines
from detector.slot_arrays import SlotArrays

QUEUE = 64
"""Samples of one node that count in a tick; of more, the oldest are dropped (13 s at the default period)."""
OLD_IN_A_ROW = 3
"""So many older Samples, each newer than the one before, are no late ones: a restarted monitor's whose clock was set
back, or the node's own after somebody else spoke in its name."""
FORGET_AFTER_S = 3600.0
"""A node without Samples for this long has left the pool."""
LONGEST_PROMISE_S = 10.0
"""A node is believed that its next Sample comes within this time, and no later."""

Arrival = Literal["new", "restart", "duplicate", "old", "late"]
"""`late`: it waited while the bus was away, so it describes then and not now."""
ARRIVALS: tuple[Arrival, ...] = get_args(Arrival)
_NEW, _RESTART, _DUPLICATE, _OLD, _LATE = range(len(ARRIVALS))


@dataclass(frozen=True)
class Round:
    """At most one Sample of each node, (M,) each: its row in the tick's table, and its node's slot."""

    rows: Ints
    slots: Ints
    first: Bools
    """Nothing of before it counts in the windows: the first of a run, or the first after a hole."""


@dataclass(frozen=True)
class SortedSamples:
    """A tick's Samples, sorted."""

    arrivals: Ints
    """Index in `ARRIVALS` of each row."""
    new_nodes: list[tuple[int, int]]
    """(slot, row) of each node that was not known."""
    rounds: list[Round]


@dataclass(frozen=True)
class Loss:
    """Samples of a node that never came."""

    node: str
    lost: int
    dropped: int
    """Of these, its monitor dropped them while the bus was away."""


@dataclass(frozen=True)
class Stale:
    """A node that has gone quiet."""

    node: str
    slot: int
    for_s: float
    last_unix_s: float
    """Wall time of its last Sample."""


class _NodeState(SlotArrays):
    """What is known of each slot's node, (slots,)."""

    used: Bools
    seq: Ints
    time_unix_s: Floats
    seen_s: Floats
    """When a Sample of it last counted."""
    next_within_s: Floats
    """By its own account the next one comes so long after it; 0 where it says nothing."""
    reported_s: Floats
    """When it was last reported stale."""
    old_run: Ints
    old_seq: Ints
    hole: Bools
    """Too much is missing before the next Sample for a window to reach across."""
    lost: Ints
    dropped: Ints
    reported_loss_s: Floats

    def __init__(self) -> None:
        super().__init__(
            used=False,
            seq=0,
            time_unix_s=0.0,
            seen_s=0.0,
            next_within_s=0.0,
            reported_s=0.0,
            old_run=0,
            old_seq=0,
            hole=False,
            lost=0,
            dropped=0,
            reported_loss_s=0.0,
        )


class SampleSorter:
    """What is known of the pool's nodes. Each has a slot, its row in the detector's arrays; slots are used again.

    A node is stale when its next Sample is `stale_after_s` later than it said.
    """

    def __init__(self, pool: str, stale_after_s: float) -> None:
        self.pool = pool
        self.stale_after_s = stale_after_s
        self.slots = 0
        self._slot: dict[str, int] = {}
        self._name: list[str] = []
        self._boot_id: list[str] = []
        self._past_boot_id: list[str] = []
        self._free: list[int] = []
        self._at = _NodeState()
        self._timelines = Timelines()

    def sort(self, table: Table, now_s: float) -> SortedSamples:
        """Takes a tick's Samples in.

        `now_s` is monotonic seconds. Duplicates, older and late Samples are left out. After a restart and after a hole
        of `HOLE` Samples nothing of before counts in the windows.
        """
        known = list(map(self._slot.get, table.nodes))
        new_nodes = self._find_slots(table) if None in known else []
        if new_nodes:
            known = list(map(self._slot.get, table.nodes))
        slots: Ints = np.array(known, dtype=np.int64)
        arrivals: Ints = np.zeros(len(table), dtype=np.int64)
        fresh = np.zeros(len(table), dtype=bool)
        for _, row in new_nodes:
            fresh[row] = True
        rounds = []
        for rows, counts in _one_of_each(slots):
            arrivals[rows], first = self._sort(table, rows, slots[rows], fresh[rows], now_s)
            taken = (arrivals[rows] <= _RESTART) & counts
            if taken.any():
                rounds.append(Round(rows[taken], slots[rows][taken], first[taken]))
        return SortedSamples(arrivals, new_nodes, rounds)

    def losses(self, now_s: float, every_s: float = 60.0) -> list[Loss]:
        """What was lost since the last report, of each node at most every `every_s` seconds."""
        at = self._at
        if not at.lost.any():
            return []
        due = np.flatnonzero(at.used & (at.lost > 0) & (now_s - at.reported_loss_s >= every_s))
        found = [Loss(self._name[slot], int(at.lost[slot]), int(at.dropped[slot])) for slot in due.tolist()]
        at.lost[due], at.dropped[due], at.reported_loss_s[due] = 0, 0, now_s
        return found

    def stale(self, now_s: float, every_s: float = 1.0) -> list[Stale]:
        """Stale nodes, each at most every `every_s` seconds. Drops nodes that have left (`FORGET_AFTER_S`)."""
        at = self._at
        quiet_s = now_s - at.seen_s
        stale = at.used & (quiet_s >= at.next_within_s + self.stale_after_s)
        if not stale.any():
            return []
        for slot in np.flatnonzero(stale & (quiet_s >= FORGET_AFTER_S)).tolist():
            del self._slot[self._name[slot]]
            self._free.append(slot)
            stale[slot] = at.used[slot] = False
        due = np.flatnonzero(stale & ((at.reported_s < at.seen_s) | (now_s - at.reported_s >= every_s)))
        at.reported_s[due] = now_s
        return [
            Stale(self._name[slot], slot, float(quiet_s[slot]), float(at.time_unix_s[slot])) for slot in due.tolist()
        ]

    def due_s(self, every_s: float = 1.0) -> float:
        """When `stale` next has something to report, unless Samples come before; infinite without nodes."""
        at = self._at
        again_s = np.where(at.reported_s < at.seen_s, -np.inf, at.reported_s + every_s)
        due_s = np.maximum(at.seen_s + at.next_within_s + self.stale_after_s, again_s)[at.used]
        return float(due_s.min(initial=np.inf))

    def slot(self, node: str) -> int | None:
        """A node's slot; None for one that is not known."""
        return self._slot.get(node)

    @property
    def nodes(self) -> dict[str, int]:
        """Slot of each known node, stale ones too."""
        return dict(self._slot)

    def _find_slots(self, table: Table) -> list[tuple[int, int]]:
        """Gives a slot to each node that has none; (slot, row of its first Sample)."""
        found = []
        for row, node in enumerate(table.nodes):
            if node in self._slot:
                continue
            slot = self._free.pop() if self._free else self.slots
            if slot == self.slots:
                self.slots += 1
                for names in (self._name, self._boot_id, self._past_boot_id):
                    names.append("")
            self._slot[node], self._name[slot] = slot, node
            found.append((slot, row))
        if self.slots > len(self._at.used):
            room = max(self.slots, 2 * len(self._at.used))
            self._at.resize(room)
            self._timelines.resize(room)
        return found

    def _sort(self, table: Table, rows: Ints, slots: Ints, fresh: Bools, now_s: float) -> tuple[Ints, Bools]:
        """Sorts at most one Sample of each node: what each is, and whether nothing of before counts, (M,)."""
        at = self._at
        seq, time_unix_s = table.seq[rows], table.time_unix_s[rows]
        period_s = table.columns["period_s"][rows]
        if fresh.any():
            self._begin(table, rows[fresh], slots[fresh], now_s)

        another_boot, past_boot = self._boots(table, rows, slots)
        again = ~another_boot & (seq == at.seq[slots]) & (time_unix_s == at.time_unix_s[slots]) & ~fresh
        behind = ~another_boot & ~again & (seq <= at.seq[slots]) & ~fresh
        # A restarted monitor counts from 0 again, later than what we have; a late Sample is earlier than that.
        older = past_boot | (behind & (time_unix_s <= at.time_unix_s[slots]))
        if older.any():
            runs = slots[older]
            at.old_run[runs] = np.where(seq[older] == at.old_seq[runs] + 1, at.old_run[runs] + 1, 1)
            at.old_seq[runs] = seq[older]
        old = older & (at.old_run[slots] < OLD_IN_A_ROW)
        restarted = (another_boot | behind) & ~old
        at.seen_s[slots[again]] = now_s

        taken = ~(again | old)
        arrivals = np.where(again, _DUPLICATE, np.where(old, _OLD, np.where(restarted, _RESTART, _NEW)))
        booted = taken & another_boot
        for row, slot in zip(rows[booted].tolist(), slots[booted].tolist(), strict=True):
            self._past_boot_id[slot], self._boot_id[slot] = self._boot_id[slot], table.boot_ids[row]
        missing = np.where(restarted | fresh, 0, np.maximum(seq - at.seq[slots] - 1, 0))
        late = np.zeros(len(rows), dtype=bool)
        goes_on = taken & ~restarted & ~fresh
        late[goes_on] = (
            self._timelines.late_s(slots[goes_on], now_s, period_s[goes_on], missing[goes_on], self.stale_after_s)
            > self.stale_after_s
        )
        if restarted.any():
            self._timelines.start(slots[restarted], now_s, period_s[restarted])

        kept = slots[taken]
        at.seq[kept], at.time_unix_s[kept] = seq[taken], time_unix_s[taken]
        at.old_run[kept], at.old_seq[kept] = 0, -1
        at.lost[kept] += missing[taken]
        at.dropped[kept] += np.minimum(table.samples_dropped[rows][taken], missing[taken])
        at.hole[kept] |= (restarted | late | (missing >= HOLE))[taken]
        first = at.hole[slots].copy()
        counts = taken & ~late
        judged, promised_s = slots[counts], table.columns["next_within_s"][rows[counts]]
        at.seen_s[judged], at.hole[judged] = now_s, False
        at.next_within_s[judged] = np.minimum(filled(promised_s, 0.0), LONGEST_PROMISE_S)
        return np.where(late, _LATE, arrivals), first

    def _begin(self, table: Table, rows: Ints, slots: Ints, now_s: float) -> None:
        """The first Samples of these nodes."""
        at = self._at
        at.used[slots], at.hole[slots] = True, True
        at.seq[slots], at.time_unix_s[slots] = table.seq[rows], table.time_unix_s[rows]
        at.lost[slots], at.dropped[slots] = 0, 0
        at.reported_s[slots], at.reported_loss_s[slots] = -np.inf, -np.inf
        for row, slot in zip(rows.tolist(), slots.tolist(), strict=True):
            self._boot_id[slot], self._past_boot_id[slot] = table.boot_ids[row], ""
        self._timelines.start(slots, now_s, table.columns["period_s"][rows])

    def _boots(self, table: Table, rows: Ints, slots: Ints) -> tuple[Bools, Bools]:
        """(M,) which Samples are of another boot than the last, and which of these of the one before that."""
        now = map(table.boot_ids.__getitem__, rows.tolist())
        another = np.fromiter(map(str.__ne__, now, map(self._boot_id.__getitem__, slots.tolist())), bool, len(rows))
        past = np.zeros(len(rows), dtype=bool)
        for number in np.flatnonzero(another).tolist():
            past[number] = table.boot_ids[rows[number]] == self._past_boot_id[slots[number]]
        return another, past


def _one_of_each(slots: Ints) -> list[tuple[Ints, Bools]]:
    """The rows' numbers in rounds of at most one of each slot, in order; True for those that count (`QUEUE`)."""
    counts = np.bincount(slots)
    if counts.max() == 1:
        return [(np.arange(len(slots)), np.ones(len(slots), dtype=bool))]
    order = np.argsort(slots, kind="stable")
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    turn = np.empty(len(slots), dtype=np.int64)
    turn[order] = np.arange(len(slots)) - starts[slots[order]]
    keeps = counts[slots] - turn <= QUEUE
    found = []
    for number in range(int(counts.max())):
        rows = np.flatnonzero(turn == number)
        found.append((rows, keeps[rows]))
    return found
