"""Reads the balancer's weights and requests 20 times a second, whatever the policy is."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Sequence

from slackwater_lab.cluster.background import Background
from slackwater_lab.cluster.balancer import Snapshot
from slackwater_lab.cluster.paths import LabError

PERIOD_S = 0.05


def first_reduction(history: Sequence[Snapshot], server: str, after_mono_s: float) -> float | None:
    """Seconds from an instant until the server's weight was first lowered; None: it never was."""
    for before, after in itertools.pairwise(history):
        if after.mono_s > after_mono_s and after.weight[server] < before.weight[server]:
            return after.mono_s - after_mono_s
    return None


def first_at(history: Sequence[Snapshot], server: str, weight: int, after_mono_s: float) -> float | None:
    """Seconds from an instant, when the server's weight was another, until it was `weight`; None: it never was."""
    before = [snapshot for snapshot in history if snapshot.mono_s <= after_mono_s]
    if not before or before[-1].weight[server] == weight:
        return None
    later = (snapshot for snapshot in history[len(before) :] if snapshot.weight[server] == weight)
    return next((snapshot.mono_s - after_mono_s for snapshot in later), None)


def share(history: Sequence[Snapshot], server: str, begin_mono_s: float, end_mono_s: float) -> float | None:
    """The server's share of the requests between two instants; counters that fall were reset by a reload."""
    times = [snapshot.mono_s for snapshot in history]
    within = history[max(0, bisect.bisect_right(times, begin_mono_s) - 1) : bisect.bisect_right(times, end_mono_s)]
    done: dict[str, int] = {}
    for before, after in itertools.pairwise(within):
        for name, count in after.requests.items():
            step = count - before.requests.get(name, 0)
            done[name] = done.get(name, 0) + (step if step >= 0 else count)
    total = sum(done.values())
    return done.get(server, 0) / total if total else None


class BalancerWatch(Background):
    """Keeps the history while it is entered."""

    def __init__(self, look: Callable[[], Snapshot]) -> None:
        super().__init__("watch")
        self.history: list[Snapshot] = []
        self._look = look

    def _run(self) -> None:
        while not self._end.wait(PERIOD_S):
            try:
                self.history.append(self._look())
            except LabError:  # a reload: the next look tells
                continue
