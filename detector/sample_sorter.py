"""Sorts the Samples of one pool that came since the last tick into new, duplicate, old, late and those of a restart.

Durations come from the monotonic clock of the caller. A Sample's wall time orders Samples only where sequence numbers
cannot. All nodes are sorted in one pass; a node's second Sample of a tick has a pass of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from slackwater.detector.features.columns import Bools, Floats, Ints, Table, filled
from slackwater.detector.features.signals import HOLE
from slackwater.detector.lateness import Timelines
from slackwater.detector.slot_arrays import SlotArrays

QUEUE = 64
"""The most Samples of a node that count in a tick (13 s at the default period). Of more the oldest are dropped."""
OLD_IN_A_ROW = 3
"""This many older Samples in a row, each newer than the last, are not late. They come from a restarted monitor whose
clock was set back, or from the node itself after somebody else sent Samples in its name."""
FORGET_AFTER_S = 3600.0
"""A node without Samples for this long has left the pool."""
LONGEST_PROMISE_S = 10.0
"""The longest time until its next Sample that a node is believed to announce."""

Arrival = Literal["new", "restart", "duplicate", "old", "late"]
"""`late`: the Sample waited while the bus was away, so it does not describe the present."""
ARRIVALS: tuple[Arrival, ...] = get_args(Arrival)
_NEW, _RESTART, _DUPLICATE, _OLD, _LATE = range(len(ARRIVALS))


@dataclass(frozen=True)
class Round:
    """Samples that are judged in one pass: at most one of each node, (M,) each."""

    rows: Ints
    """Row in the tick's table."""
    slots: Ints
    first: Bools
    """Whether the Sample is the first of a run, or after a hole: earlier ones do not count in the windows."""


@dataclass(frozen=True)
class SortedSamples:
    """A tick's Samples, sorted."""

    arrivals: Ints
    """Index in `ARRIVALS` of each row."""
    new_nodes: list[tuple[int, int]]
    """(slot, row) of each node that was not known before."""
    rounds: list[Round]


@dataclass(frozen=True)
class Loss:
    """Samples of a node that never came."""

    node: str
    lost: int
    dropped: int
    """Number of these that its monitor dropped while the bus was away."""


@dataclass(frozen=True)
class Stale:
    """A node that sends no Samples any more."""

    node: str
    slot: int
    for_s: float
    last_unix_s: float
    """Wall time of its last Sample."""


class _NodeState(SlotArrays):
    """The state of each slot's node, (slots,)."""

    used: Bools
    seq: Ints
    time_unix_s: Floats
    seen_s: Floats
    """Time when a Sample last counted."""
    next_within_s: Floats
    """The time until the next Sample that the node announced; 0 where it did not."""
    reported_s: Floats
    """Time when the node was last reported stale."""
    old_run: Ints
    """Number of older Samples in a row."""
    old_seq: Ints
    hole: Bools
    """Whether too many Samples are missing before the next one for a window to reach across."""
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
    """Knows the pool's nodes. Each has a slot, its row in the detector's arrays; slots are used again.

    A node is stale when its next Sample is `stale_after_s` later than announced.
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
        """Sorts a tick's Samples. `now_s` is monotonic seconds.

        Duplicates, older and late Samples are in no round. After a restart and after a hole of `HOLE` Samples earlier
        Samples do not count in the windows (`Round.first`).
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
        for rows, counts in _in_rounds(slots):
            arrivals[rows], first = self._sort(table, rows, slots[rows], fresh[rows], now_s)
            taken = (arrivals[rows] <= _RESTART) & counts
            if taken.any():
                rounds.append(Round(rows[taken], slots[rows][taken], first[taken]))
        return SortedSamples(arrivals, new_nodes, rounds)

    def losses(self, now_s: float, every_s: float = 60.0) -> list[Loss]:
        """The losses since the last report, for each node at most every `every_s` seconds."""
        state = self._at
        if not state.lost.any():
            return []
        due = np.flatnonzero(state.used & (state.lost > 0) & (now_s - state.reported_loss_s >= every_s))
        losses = [Loss(self._name[slot], int(state.lost[slot]), int(state.dropped[slot])) for slot in due.tolist()]
        state.lost[due], state.dropped[due], state.reported_loss_s[due] = 0, 0, now_s
        return losses

    def stale(self, now_s: float, every_s: float = 1.0) -> list[Stale]:
        """Stale nodes, each at most every `every_s` seconds. Drops nodes that have left (`FORGET_AFTER_S`)."""
        state = self._at
        quiet_s = now_s - state.seen_s
        stale = state.used & (quiet_s >= state.next_within_s + self.stale_after_s)
        if not stale.any():
            return []
        for slot in np.flatnonzero(stale & (quiet_s >= FORGET_AFTER_S)).tolist():
            del self._slot[self._name[slot]]
            self._free.append(slot)
            stale[slot] = state.used[slot] = False
        due = np.flatnonzero(stale & ((state.reported_s < state.seen_s) | (now_s - state.reported_s >= every_s)))
        state.reported_s[due] = now_s
        return [
            Stale(self._name[slot], slot, float(quiet_s[slot]), float(state.time_unix_s[slot])) for slot in due.tolist()
        ]

    def due_s(self, every_s: float = 1.0) -> float:
        """Time when `stale` next has something to report, unless Samples come before; infinite without nodes."""
        state = self._at
        again_s = np.where(state.reported_s < state.seen_s, -np.inf, state.reported_s + every_s)
        due_s = np.maximum(state.seen_s + state.next_within_s + self.stale_after_s, again_s)[state.used]
        return float(due_s.min(initial=np.inf))

    def slot(self, node: str) -> int | None:
        """A node's slot; None for an unknown node."""
        return self._slot.get(node)

    @property
    def nodes(self) -> dict[str, int]:
        """Slot of each known node; stale nodes are among them."""
        return dict(self._slot)

    def _find_slots(self, table: Table) -> list[tuple[int, int]]:
        """Gives a slot to each node that has none; returns (slot, row of the first Sample) of each."""
        new_nodes = []
        for row, node in enumerate(table.nodes):
            if node in self._slot:
                continue
            slot = self._free.pop() if self._free else self.slots
            if slot == self.slots:
                self.slots += 1
                for names in (self._name, self._boot_id, self._past_boot_id):
                    names.append("")
            self._slot[node], self._name[slot] = slot, node
            new_nodes.append((slot, row))
        if self.slots > len(self._at.used):
            room = max(self.slots, 2 * len(self._at.used))
            self._at.resize(room)
            self._timelines.resize(room)
        return new_nodes

    def _sort(self, table: Table, rows: Ints, slots: Ints, fresh: Bools, now_s: float) -> tuple[Ints, Bools]:
        """Sorts at most one Sample of each node; returns (M,) the index in `ARRIVALS`, and (M,) `Round.first`."""
        state = self._at
        seq, time_unix_s = table.seq[rows], table.time_unix_s[rows]
        period_s = table.columns["period_s"][rows]
        if fresh.any():
            self._begin(table, rows[fresh], slots[fresh], now_s)

        another_boot, past_boot = self._boots(table, rows, slots)
        again = ~another_boot & (seq == state.seq[slots]) & (time_unix_s == state.time_unix_s[slots]) & ~fresh
        behind = ~another_boot & ~again & (seq <= state.seq[slots]) & ~fresh
        # A restarted monitor counts from 0 again, at a later time than the last Sample; a late Sample is earlier.
        older = past_boot | (behind & (time_unix_s <= state.time_unix_s[slots]))
        if older.any():
            runs = slots[older]
            state.old_run[runs] = np.where(seq[older] == state.old_seq[runs] + 1, state.old_run[runs] + 1, 1)
            state.old_seq[runs] = seq[older]
        old = older & (state.old_run[slots] < OLD_IN_A_ROW)
        restarted = (another_boot | behind) & ~old
        state.seen_s[slots[again]] = now_s

        taken = ~(again | old)
        arrivals = np.where(again, _DUPLICATE, np.where(old, _OLD, np.where(restarted, _RESTART, _NEW)))
        booted = taken & another_boot
        for row, slot in zip(rows[booted].tolist(), slots[booted].tolist(), strict=True):
            self._past_boot_id[slot], self._boot_id[slot] = self._boot_id[slot], table.boot_ids[row]
        missing = np.where(restarted | fresh, 0, np.maximum(seq - state.seq[slots] - 1, 0))
        late = np.zeros(len(rows), dtype=bool)
        goes_on = taken & ~restarted & ~fresh
        late[goes_on] = (
            self._timelines.late_s(slots[goes_on], now_s, period_s[goes_on], missing[goes_on], self.stale_after_s)
            > self.stale_after_s
        )
        if restarted.any():
            self._timelines.start(slots[restarted], now_s, period_s[restarted])

        kept = slots[taken]
        state.seq[kept], state.time_unix_s[kept] = seq[taken], time_unix_s[taken]
        state.old_run[kept], state.old_seq[kept] = 0, -1
        state.lost[kept] += missing[taken]
        state.dropped[kept] += np.minimum(table.samples_dropped[rows][taken], missing[taken])
        state.hole[kept] |= (restarted | late | (missing >= HOLE))[taken]
        first = state.hole[slots].copy()
        counts = taken & ~late
        judged, promised_s = slots[counts], table.columns["next_within_s"][rows[counts]]
        state.seen_s[judged], state.hole[judged] = now_s, False
        state.next_within_s[judged] = np.minimum(filled(promised_s, 0.0), LONGEST_PROMISE_S)
        return np.where(late, _LATE, arrivals), first

    def _begin(self, table: Table, rows: Ints, slots: Ints, now_s: float) -> None:
        """Starts the state of these nodes with their first Samples."""
        state = self._at
        state.used[slots], state.hole[slots] = True, True
        state.seq[slots], state.time_unix_s[slots] = table.seq[rows], table.time_unix_s[rows]
        state.lost[slots], state.dropped[slots] = 0, 0
        state.reported_s[slots], state.reported_loss_s[slots] = -np.inf, -np.inf
        for row, slot in zip(rows.tolist(), slots.tolist(), strict=True):
            self._boot_id[slot], self._past_boot_id[slot] = table.boot_ids[row], ""
        self._timelines.start(slots, now_s, table.columns["period_s"][rows])

    def _boots(self, table: Table, rows: Ints, slots: Ints) -> tuple[Bools, Bools]:
        """(M,) whether a Sample is of another boot than the last one, and (M,) whether that is the boot before it."""
        boots = map(table.boot_ids.__getitem__, rows.tolist())
        another = np.fromiter(map(str.__ne__, boots, map(self._boot_id.__getitem__, slots.tolist())), bool, len(rows))
        past = np.zeros(len(rows), dtype=bool)
        for number in np.flatnonzero(another).tolist():
            past[number] = table.boot_ids[rows[number]] == self._past_boot_id[slots[number]]
        return another, past


def _in_rounds(slots: Ints) -> list[tuple[Ints, Bools]]:
    """Rounds of rows, in order, with at most one row of each slot: (row numbers, whether each counts by `QUEUE`)."""
    counts = np.bincount(slots)
    if counts.max() == 1:
        return [(np.arange(len(slots)), np.ones(len(slots), dtype=bool))]
    order = np.argsort(slots, kind="stable")
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    turn = np.empty(len(slots), dtype=np.int64)
    turn[order] = np.arange(len(slots)) - starts[slots[order]]
    keeps = counts[slots] - turn <= QUEUE
    rounds = []
    for number in range(int(counts.max())):
        rows = np.flatnonzero(turn == number)
        rounds.append((rows, keeps[rows]))
    return rounds
