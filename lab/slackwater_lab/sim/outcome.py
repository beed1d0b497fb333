"""What a simulation found: what users felt, when the policy answered, and how calmly."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from slackwater.detector.features.columns import Floats
from slackwater_lab.sim.control import BASE_WEIGHT, Turns
from slackwater_lab.sim.episodes import Episode
from slackwater_lab.sim.setup import Setup
from slackwater_lab.sim.tally import Felt

SETTLE_S = 5.0
"""A weight may still move for this time after its neighbour came or went."""
LEFT_S = 15.0
"""A way back is measured if this much time was left for it."""


@dataclass(frozen=True)
class Outcome:
    """The result of one setup under one policy."""

    setup: Setup
    policy: str
    felt: Felt
    detection_s: list[float]
    """Time from the begin of each answered episode to the first lower weight."""
    back_s: list[float]
    """Of each episode that was answered and after which its server's next one, or the end, left `LEFT_S`: from its end
    until all balancers had the server at its baseline to stay. Infinite where they did not."""
    episodes: int
    missed: int
    """Episodes that ended without an answer."""
    false_reductions: int
    """Times that a server without a neighbour got less than its baseline."""
    moves: int
    """Changes of weights, all balancers together."""
    turns: int
    """Moves in the opposite direction of the server's last one, later than `SETTLE_S` after its neighbour changed."""

    def as_json(self) -> dict[str, Any]:
        """The outcome for `--json`, with times as percentiles."""
        result = asdict(self)
        result["detection_s"] = _spread(self.detection_s)
        back_s = [seconds for seconds in self.back_s if math.isfinite(seconds)]
        result["back_s"] = _spread(back_s) | {"never": len(self.back_s) - len(back_s)}
        result["turns_per_server_hour"] = 3600 * self.turns / (self.setup.servers * self.setup.seconds)
        return result


def _spread(values: Sequence[float]) -> dict[str, float | int | None]:
    if not len(values):
        return {"count": 0, "p50": None, "p95": None, "max": None}
    p50, p95 = np.percentile(values, [50, 95]).tolist()
    return {"count": len(values), "p50": p50, "p95": p95, "max": float(max(values))}


class Score:
    """Watches the weights of all balancers and notes how they answer the episodes."""

    def __init__(self, setup: Setup, episodes: Sequence[Episode]) -> None:
        self._weights = np.full((setup.balancers, setup.servers), BASE_WEIGHT)
        self._turns = [Turns(setup.servers, SETTLE_S) for _ in range(setup.balancers)]
        self._open: dict[int, Episode] = {}
        self._begins_s: defaultdict[int, list[float]] = defaultdict(list)
        for episode in episodes:
            self._begins_s[episode.server].append(episode.begin_s)
        self._left = sorted(episodes, key=lambda episode: episode.begin_s, reverse=True)
        self._episodes = len(self._left)
        self._ended: Floats = np.full(setup.servers, -np.inf)
        self._answered: set[Episode] = set()
        self._moves: defaultdict[int, list[tuple[float, bool]]] = defaultdict(list)
        """Server -> times of its moves, and whether it is below its baseline from then on."""
        self._over: list[Episode] = []
        self.detection_s: list[float] = []
        self.missed = 0
        self.false_reductions = 0

    def advance(self, now_s: float) -> None:
        """Episodes begin and end; call it before the weights of that time."""
        for server in [s for s, episode in self._open.items() if episode.end_s <= now_s]:
            episode = self._open.pop(server)
            self.missed += episode not in self._answered
            self._changed(server, now_s)
            self._ended[server] = now_s
            self._over += [episode] * (episode in self._answered)
        while self._left and self._left[-1].begin_s <= now_s:
            episode = self._left.pop()
            if episode.end_s <= now_s:
                self.missed += 1
                continue
            self._open[episode.server] = episode
            self._changed(episode.server, now_s)
            if (self._weights[:, episode.server] < BASE_WEIGHT).any():
                self._answer(episode, now_s)

    def _changed(self, server: int, now_s: float) -> None:
        for turns in self._turns:
            turns.neighbour_changed(server, now_s)

    def _answer(self, episode: Episode, now_s: float) -> None:
        if episode not in self._answered:
            self._answered.add(episode)
            self.detection_s.append(max(0.0, now_s - episode.begin_s))

    def moved(self, balancer: int, server: int, weight: int, now_s: float) -> None:
        """A weight was set."""
        before = int(self._weights[balancer, server])
        self._turns[balancer].moved(server, before, weight, now_s)
        self._weights[balancer, server] = weight
        self._moves[server].append((now_s, bool((self._weights[:, server] < BASE_WEIGHT).any())))
        if weight >= before:
            return
        if server in self._open:
            self._answer(self._open[server], now_s)
        elif before == BASE_WEIGHT and now_s - self._ended[server] > SETTLE_S:
            self.false_reductions += 1

    def back_s(self, end_s: float) -> list[float]:
        """The values of `Outcome.back_s`."""
        times_s = []
        for episode in self._over:
            until_s = min(
                [begin_s for begin_s in self._begins_s[episode.server] if begin_s >= episode.end_s], default=end_s
            )
            if until_s - episode.end_s < LEFT_S:
                continue
            since_s = episode.end_s
            for at_s, is_low in self._moves[episode.server]:
                if at_s < until_s:
                    since_s = math.inf if is_low else min(since_s, at_s)
            times_s.append(max(since_s - episode.end_s, 0.0))
        return times_s

    def outcome(self, setup: Setup, policy: str, felt: Felt) -> Outcome:
        """The outcome at the end. Open episodes without an answer count as missed."""
        return Outcome(
            setup=setup,
            policy=policy,
            felt=felt,
            detection_s=self.detection_s,
            back_s=self.back_s(setup.end_s),
            episodes=self._episodes,
            missed=self.missed + sum(episode not in self._answered for episode in self._open.values()),
            false_reductions=self.false_reductions,
            moves=sum(turns.moves for turns in self._turns),
            turns=sum(turns.counted for turns in self._turns),
        )
