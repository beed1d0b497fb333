"""The latest Verdict of each node, and the time when it came by this process's monotonic clock."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from slackwater.core.messages import SLOW_ALONE, DecisionCause, Verdict

OTHERS_AFTER_S = 2.0
"""Verdicts of another controller's detector count when our own detector has sent none of the node for this long. Two
detectors that disagree would move a weight with each Verdict."""
FRESH_S = 1.0
"""In an episode's first second every Verdict is news: the detector still learns about it."""


def age_s(verdict: Verdict) -> float:
    """How long the node has been in its state, by the node's own clock."""
    return max(0.0, verdict.time_unix_s - verdict.since_unix_s)


def cause_of(verdict: Verdict) -> DecisionCause:
    """The cause of a decision that follows from this Verdict."""
    limited = verdict.resource == "own limit" and verdict.state in SLOW_ALONE
    return "own_limit" if limited else verdict.state


def is_failing(verdict: Verdict) -> bool:
    """Whether a server fails well above its peers, so that no load may be moved to it. In an episode of `errors` its
    last requests decide."""
    return verdict.shown if verdict.state == "errors" else verdict.peers_failed_share is not None


@dataclass
class LatestVerdicts:
    """Filled by the bus, read by the engine. It needs no lock between threads, since each step is one assignment."""

    own: str | None = None
    """Id of this lbengine's controller."""
    _newest: dict[str, tuple[Verdict, float]] = field(default_factory=dict)
    _own_s: dict[str, float] = field(default_factory=dict)
    """Node -> the time when our own detector's last Verdict came."""

    def put(self, verdict: Verdict, now_s: float) -> bool:
        """Keeps a Verdict; returns True when it is news, since the node's state has changed or the episode is fresh.

        A Verdict of another controller's detector is left out while our own detector sends Verdicts.
        """
        if verdict.controller in (None, self.own):
            self._own_s[verdict.node] = now_s
        elif now_s - self._own_s.get(verdict.node, -math.inf) < OTHERS_AFTER_S:
            return False
        before = self._newest.get(verdict.node)
        self._newest[verdict.node] = (verdict, now_s)
        if before is None or before[0].state != verdict.state:
            return True
        return verdict.state in SLOW_ALONE and age_s(verdict) < FRESH_S

    def fresh(self, now_s: float, lease_s: float) -> dict[str, Verdict]:
        """Verdicts by node that came within the last `lease_s`."""
        return {node: verdict for node, (verdict, came_s) in list(self._newest.items()) if now_s - came_s < lease_s}
