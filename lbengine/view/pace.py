"""How often a server has a Sample: with each look while it is busy, once a second while it is quiet. Pure."""

from __future__ import annotations

from slackwater.lbengine.view.counters import Counted
from slackwater.lbengine.view.packets import SnifferLine

QUIET_S = 1.0
"""A quiet server has a Sample this often, as from a quiet monitor."""
FAVOUR_S = 0.1
"""A look that is early by this much counts as in time: otherwise the next look would be late."""


class SamplePace:
    """When each server had its last Sample. `quiet_s`: from a quiet server's Sample to its next."""

    def __init__(self, quiet_s: float = QUIET_S) -> None:
        self.quiet_s = quiet_s
        self._last: dict[str, tuple[float, bool]] = {}
        """Server -> monotonic time of its last Sample, and whether it was busy."""
        self._skipped_s: dict[str, float] = {}
        """Server -> time that its looks without a Sample covered since its last Sample."""

    def is_due(self, server: str, now_s: float, period_s: float, *, busy: bool) -> bool:
        """Whether the server should have a Sample of a look that covers `period_s`. A server that stopped being busy
        has its next Sample at once too. A Sample counts as made once `take_skipped_s` is called."""
        last_s, was_busy = self._last.get(server, (0.0, True))
        due = busy or was_busy or now_s - last_s >= self.quiet_s - FAVOUR_S
        if due:
            self._last[server] = now_s, busy
        else:
            self._skipped_s[server] = self._skipped_s.get(server, 0.0) + period_s
        return due

    def take_skipped_s(self, server: str) -> float:
        """The time before the look that has no Sample. The server was quiet in it, and its next Sample covers it too: a
        detector adds up the periods of Samples to know how late they are."""
        return self._skipped_s.pop(server, 0.0)


def is_busy(line: SnifferLine | None, counted: Counted | None) -> bool:
    """Whether a server had anything to do, by its packets' look or by the balancer's newest counters. None: neither is
    new."""
    if line is not None and (line.exchanges or line.in_flight or line.unmatched):
        return True
    return counted is not None and bool(counted.count or counted.in_flight or counted.errors_per_s)
