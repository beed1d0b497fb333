"""The latest Verdict of each node, and when it came by this process's own monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass, field

from slackwater.messages import Verdict

FRESH_S = 1.0
"""An episode that began less than this ago is learnt about with every Verdict."""


def age_s(verdict: Verdict) -> float:
    """How long the node has been in its state, by the node's own clock."""
    return max(0.0, verdict.time_unix_s - verdict.since_unix_s)


@dataclass
class LatestVerdicts:
    """Filled by the bus, read by the engine; a single assignment at a time, so it needs no lock between threads."""

    _newest: dict[str, tuple[Verdict, float]] = field(default_factory=dict)

    def put(self, verdict: Verdict, now_s: float) -> bool:
        """Keeps a Verdict; True when it is news: the node's state is another than before, or an episode is fresh."""
        before = self._newest.get(verdict.node)
        self._newest[verdict.node] = (verdict, now_s)
        if before is None or before[0].state != verdict.state:
            return True
        return verdict.state == "interference" and age_s(verdict) < FRESH_S

    def fresh(self, now_s: float, lease_s: float) -> dict[str, Verdict]:
        """Verdicts by node that came within the last `lease_s`."""
        return {node: verdict for node, (verdict, came_s) in list(self._newest.items()) if now_s - came_s < lease_s}
