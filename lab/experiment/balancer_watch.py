"""Watches the balancer 20 times a second, whatever the policy is: when weights changed and who got the requests."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Sequence

from lab.cluster.background import Background
from lab.cluster.balancer import Snapshot
from lab.cluster.paths import LabError

PERIOD_S = 0.05


def first_reduction(history: Sequence[Snapshot], server: str, after_mono_s: float) -> float | None:
    """Seconds from an instant until the server's weight was first lowered; None: it never was."""
    for before, after in itertools.pairwise(history):
        if after.mono_s > after_mono_s and after.weight[server] < before.weight[server]:
            return after.mono_s - after_mono_s
    return None


def first_at(history: Sequence[Snapshot], server: str, weight: int, after_mono_s: float) -> float | None:
    """Seconds from an instant, when the server's weight was another, until it was `weight`; None: it never was."""
    before = [one for one in history if one.mono_s <= after_mono_s]
    if not before or before[-1].weight[server] == weight:
        return None
    later = (one for one in history[len(before) :] if one.weight[server] == weight)
    return next((one.mono_s - after_mono_s for one in later), None)


def weights_at(history: Sequence[Snapshot], mono_s: float) -> dict[str, int]:
    """Each server's weight at an instant: as it was last seen by then; empty when nothing had been seen."""
    seen = bisect.bisect_right([one.mono_s for one in history], mono_s)
    return dict(history[seen - 1].weight) if seen else {}


def first_rise(history: Sequence[Snapshot], server: str, after_mono_s: float) -> float | None:
    """Seconds from an instant until the server's weight was above what it was at that instant; None: it never was."""
    begin = weights_at(history, after_mono_s).get(server)
    higher = (one for one in history if begin is not None and one.mono_s > after_mono_s and one.weight[server] > begin)
    return next((one.mono_s - after_mono_s for one in higher), None)


def lowered(history: Sequence[Snapshot], begin_mono_s: float, end_mono_s: float) -> list[str]:
    """Servers whose weight was lowered after the first instant and not after the second."""
    falls = {
        name
        for before, after in itertools.pairwise(history)
        if begin_mono_s < after.mono_s <= end_mono_s
        for name, weight in after.weight.items()
        if weight < before.weight.get(name, weight)
    }
    return sorted(falls)


def back_for_good(history: Sequence[Snapshot], weight: int, after_mono_s: float, stay_s: float) -> float | None:
    """Seconds from an instant until every server has this weight and keeps it for `stay_s`; None: that was not seen.

    0 when all had it at that instant already, and kept it.
    """
    since = after_mono_s if set(weights_at(history, after_mono_s).values()) == {weight} else None
    for one in history:
        if one.mono_s <= after_mono_s:
            continue
        if set(one.weight.values()) != {weight}:
            since = None
            continue
        since = one.mono_s if since is None else since
        if one.mono_s - since >= stay_s:
            return since - after_mono_s
    return None


def steps(history: Sequence[Snapshot]) -> list[Snapshot]:
    """The first, and each in which a weight is another than before."""
    changed = (after for before, after in itertools.pairwise(history) if after.weight != before.weight)
    return [*history[:1], *changed]


def share(history: Sequence[Snapshot], server: str, begin_mono_s: float, end_mono_s: float) -> float | None:
    """The server's share of the requests between two instants; counters that fall were reset by a reload."""
    times = [one.mono_s for one in history]
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
