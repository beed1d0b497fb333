"""When a node is in the second stage. Pure: each node has a `Stage`, which steps twice a second."""

from __future__ import annotations

from dataclasses import dataclass

from slackwater.core.config import RetuneSettings

RETURNS_WITHIN = 10.0
"""A node that comes back within this many times `leave_after_s` must look well for twice as long next time."""
LONGEST_LEAVE_S = 300.0
RECHECK_AFTER_S = 120.0
"""A node with the knowledge base's values gets its own back after this time, so that its signs are those of its own
again: more children may make requests as dear as a neighbour does. Each recheck of an episode waits twice as long."""
LONGEST_RECHECK_S = 1920.0
RECHECK_S = 15.0
"""In this time a node gets its own values back, and its signs follow."""


@dataclass(frozen=True)
class Affected:
    """Somebody takes away from this node; `severity` is the share of its capacity that is lost."""

    severity: float
    why: str
    since_s: float | None = None
    """Since when; None: since the first step with it."""


@dataclass
class Stage:
    """One node's second stage. `now_s` is a monotonic clock."""

    settings: RetuneSettings
    entered: bool = False
    severity: float = 0.0
    """The highest of this episode: values follow it up, never down, so that a knob does not change to and fro."""
    why: str = ""
    since_s: float | None = None
    """Since when the node has been affected; None while it is not."""
    on_recheck: bool = False
    """It left with a sign of a neighbour, to see whether that is still there with the node's own values."""
    _entered_s: float | None = None
    _recheck_after_s: float = RECHECK_AFTER_S
    _well_since_s: float | None = None
    _left_s: float | None = None
    _leave_after_s: float = 0.0

    def step(self, now_s: float, affected: Affected | None, room: bool) -> bool:
        """Whether the node enters or leaves the second stage at `now_s`. `affected`: its sign of a neighbour, if any.

        `room`: the rest of the pool could carry this node's load.
        """
        if affected is None:
            return self._well(now_s)
        self._well_since_s = None
        since_s = now_s if affected.since_s is None else min(now_s, affected.since_s)
        if self.on_recheck and self._left_s is not None:
            since_s = max(since_s, self._left_s + RECHECK_S)
        self.since_s = since_s if self.since_s is None else min(self.since_s, since_s)
        if self.entered:
            self.severity = max(self.severity, affected.severity)
            self._entered_s = now_s if self._entered_s is None else self._entered_s
            is_due = self.settings.policy == "knowledge" and now_s - self._entered_s >= self._recheck_after_s
            return is_due and self._leave(now_s, on_recheck=True)
        lasted_s = now_s - self.since_s
        if lasted_s >= self.settings.long_after_s:
            return self._enter(now_s, affected, f"for {lasted_s:.0f} s")
        if not room and lasted_s >= self.settings.no_room_after_s:
            return self._enter(now_s, affected, "and the rest of the pool has no room")
        return False

    def adopt(self, severity: float, why: str) -> None:
        """Enters the stage for an earlier run of ours, which changed the node's knobs."""
        self.entered, self.severity, self.why = True, max(self.severity, severity), self.why or why

    def _enter(self, now_s: float, affected: Affected, how_long: str) -> bool:
        settings, left_s = self.settings, self._left_s
        again = left_s is not None and now_s - left_s < RETURNS_WITHIN * settings.leave_after_s
        longer_s = min(LONGEST_LEAVE_S, max(settings.leave_after_s, 2.0 * self._leave_after_s))
        self._leave_after_s = longer_s if again else settings.leave_after_s
        self._recheck_after_s = min(LONGEST_RECHECK_S, 2.0 * self._recheck_after_s) if again else RECHECK_AFTER_S
        self.on_recheck, self._entered_s = False, now_s
        self.entered, self.severity = True, affected.severity
        self.why = f"{affected.why}, {how_long}"
        return True

    def _well(self, now_s: float) -> bool:
        if not self.entered:
            self.since_s, self.on_recheck = None, False
            return False
        self._well_since_s = now_s if self._well_since_s is None else self._well_since_s
        if now_s - self._well_since_s < max(self._leave_after_s, self.settings.leave_after_s):
            return False
        return self._leave(now_s, on_recheck=False)

    def _leave(self, now_s: float, *, on_recheck: bool) -> bool:
        self.entered, self.severity, self.since_s, self._well_since_s = False, 0.0, None, None
        self._left_s, self._entered_s, self.on_recheck = now_s, None, on_recheck
        return True


def has_room(total_rps: float | None, capacities_rps: list[float | None], u_threshold: float) -> bool:
    """Whether the servers that are well, of these capacities, can carry the load of the pool.

    Unknown numbers count as room, except where there is no well server at all.
    """
    if not capacities_rps:
        return False
    known = [capacity for capacity in capacities_rps if capacity is not None]
    if total_rps is None or len(known) < len(capacities_rps):
        return True
    return total_rps <= u_threshold * sum(known)
