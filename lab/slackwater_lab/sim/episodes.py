"""When a neighbour is loud beside which server, in simulated time; drawn from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slackwater.detector.features.columns import Floats


@dataclass(frozen=True)
class Episode:
    """A neighbour beside one server. `taken` is the share of the server's speed that is gone meanwhile, 0..1."""

    server: int
    begin_s: float
    end_s: float
    taken: float


def steady(servers: Sequence[int], begin_s: float, end_s: float, taken: float) -> list[Episode]:
    """The same servers are noisy from begin to end."""
    return [Episode(server, begin_s, end_s, taken) for server in servers]


def coming_and_going(
    dice: np.random.Generator, servers: int, begin_s: float, end_s: float, share: float, mean_s: float, taken: float
) -> list[Episode]:
    """Each server on its own is noisy `share` of the time, in episodes that last `mean_s` on average.

    Lengths of episodes and of the calm between them are exponential, so at any time each server is noisy with
    probability `share`. Raises ValueError when that is not a share below 1.
    """
    if not 0.0 <= share < 1.0:
        raise ValueError(f"share of noisy servers {share:g}: expected 0 or more and less than 1")
    if share == 0.0:
        return []
    drawn = []
    calm_s = mean_s * (1.0 - share) / share
    for server in range(servers):
        loud = bool(dice.random() < share)
        at_s = begin_s
        while at_s < end_s:
            length = float(dice.exponential(mean_s if loud else calm_s))
            if loud:
                drawn.append(Episode(server, at_s, min(at_s + length, end_s), taken))
            at_s += length
            loud = not loud
    return drawn


class Timeline:
    """The share that is taken from each server at a time; times only grow."""

    def __init__(self, servers: int, episodes: Sequence[Episode]) -> None:
        self.now: Floats = np.zeros(servers)
        """(servers,) share that is taken from each."""
        begins = [(episode.begin_s, episode.server, episode.taken) for episode in episodes]
        ends = [(episode.end_s, episode.server, 0.0) for episode in episodes]
        self._moves = sorted([*begins, *ends], reverse=True)

    def advance(self, now_s: float) -> list[int]:
        """Goes on to a time; gives the servers whose share changed on the way."""
        changed = []
        while self._moves and self._moves[-1][0] <= now_s:
            _, server, taken = self._moves.pop()
            self.now[server] = taken
            changed.append(server)
        return changed

    @property
    def next_s(self) -> float:
        """When the next change comes; infinity after the last."""
        return self._moves[-1][0] if self._moves else float("inf")
