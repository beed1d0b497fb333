"""A scenario's neighbours, which begin and end in time."""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from slackwater.detector.recordings.recording import Label
from slackwater_lab.cluster.balancer import BASE_WEIGHT
from slackwater_lab.cluster.hosts import NEIGHBOUR_WEIGHT
from slackwater_lab.cluster.lab import Lab, PreparedNoise
from slackwater_lab.cluster.noise import Noise
from slackwater_lab.experiment.scenarios import Neighbour

MARGIN_S = 3.0
PREPARED_S = 15.0
"""A neighbour fills its buffers this long before it begins: with a cache of 480 MiB that takes seconds."""


class _Common(NamedTuple):
    """The common settings of neighbours that come together."""

    begin_s: float
    kind: str
    intensity: float
    seconds: float
    weight: int


class Neighbours:
    """Begins and ends neighbours when it is time by `clock`.

    The first fill their buffers from now on, long before they begin.
    """

    def __init__(
        self,
        lab: Lab,
        neighbours: Iterable[Neighbour],
        clock: Callable[[], float] = time.monotonic,
        weights: Mapping[Neighbour, int] | None = None,
    ) -> None:
        """`weights`: of the neighbours' cgroups against the server's 100; of one that is not in it, 100 too."""
        self._lab, self._clock = lab, clock
        self._weights = weights or {}
        self._at_s = math.inf
        alike = itertools.groupby(sorted(neighbours, key=lambda neighbour: neighbour.begin_s), self._common)
        self._left = [(common, list(together)) for common, together in alike][::-1]
        self._waiting: deque[tuple[list[Neighbour], PreparedNoise]] = deque()
        self._now: list[tuple[Neighbour, Noise]] = []
        self.past: list[Noise] = []
        if self._left:
            self._prepare(self._left[-1][0].begin_s)

    def fill(self) -> None:
        """Waits until the first have filled their buffers, so that they begin in time. Raises LabError."""
        for _, prepared in self._waiting:
            prepared.fill()

    def start(self, at_mono_s: float, changed: Callable[[dict[int, float]], None]) -> None:
        """Their times count from then on. `changed` gets the share that is lost now, by host."""
        self._at_s, self._changed = at_mono_s, changed

    def _common(self, neighbour: Neighbour) -> _Common:
        weight = self._weights.get(neighbour, NEIGHBOUR_WEIGHT)
        return _Common(
            neighbour.begin_s,
            neighbour.kind,
            neighbour.intensity,
            neighbour.end_s - neighbour.begin_s + MARGIN_S,
            weight,
        )

    def tend(self) -> None:
        """Call it often after `start`. Raises LabError when a neighbour ended by itself."""
        now_s = self._clock() - self._at_s
        before = self._lost()
        for pair in [pair for pair in self._now if now_s >= pair[0].end_s]:
            self._stop(pair)
        for _, noise in self._now:
            noise.check()
        self._prepare(now_s)
        while self._waiting and now_s >= self._waiting[0][0][0].begin_s:
            together, prepared = self._waiting.popleft()
            self._now += zip(together, prepared.begin(), strict=True)
            self._set_weights(together)
        after = self._lost()
        if after != before:
            self._changed(after)

    def _prepare(self, now_s: float) -> None:
        """Prepares the neighbours that begin soon, but no two beside the same host."""
        while (
            self._left and now_s >= self._left[-1][0].begin_s - PREPARED_S and not self._waits_beside(self._left[-1][1])
        ):
            common, together = self._left.pop()
            hosts = [self._lab.hosts[neighbour.host] for neighbour in together]
            prepared = self._lab.prepare_noise(hosts, common.kind, common.intensity, common.seconds, common.weight)
            self._waiting.append((together, prepared))

    def _waits_beside(self, together: Sequence[Neighbour]) -> bool:
        """Whether another waits beside one of these hosts."""
        taken = {neighbour.host for waiting, _ in self._waiting for neighbour in waiting}
        return any(neighbour.host in taken for neighbour in together)

    def _set_weights(self, begun: Sequence[Neighbour]) -> None:
        for neighbour in begun:
            if neighbour.server_weight != BASE_WEIGHT:
                self._lab.balancer.set_weight(self._lab.hosts[neighbour.host].name, neighbour.server_weight)

    def _lost(self) -> dict[int, float]:
        """Host -> share that is taken now."""
        lost: dict[int, float] = {}
        for neighbour, _ in self._now:
            lost[neighbour.host] = max(lost.get(neighbour.host, 0.0), neighbour.thought_lost)
        return lost

    def _stop(self, pair: tuple[Neighbour, Noise]) -> None:
        neighbour, noise = pair
        noise.stop()
        self._now.remove(pair)
        if neighbour.server_weight != BASE_WEIGHT:
            self._lab.balancer.set_weight(noise.host, BASE_WEIGHT)
        self.past.append(noise)

    def stop(self) -> None:
        """Ends all that are on, or wait."""
        for pair in list(self._now):
            self._stop(pair)
        while self._waiting:
            self._waiting.pop()[1].give_up()

    @property
    def labels(self) -> list[Label]:
        """Labels of all neighbours that have ended."""
        return [
            Label(noise.host, noise.kind, noise.intensity, noise.on_unix_s, noise.off_unix_s or noise.on_unix_s)
            for noise in self.past
        ]

    @property
    def over(self) -> bool:
        return not self._left and not self._waiting and not self._now
