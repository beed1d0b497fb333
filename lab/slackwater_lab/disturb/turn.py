"""Disturbances that go on in threads of their own, so that the load does not wait for them."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence

from slackwater.detector.recordings.recording import Label
from slackwater_lab.cluster.background import Background
from slackwater_lab.cluster.hosts import Host
from slackwater_lab.cluster.lab import Lab
from slackwater_lab.disturb.disturb import DISTURBERS, DisturbableCluster
from slackwater_lab.disturb.timetable import OF_ONE_NODE, Disturbance

AFTER_S = 3.0
"""The label ends later than the disturbance by this time: caches warm up, queues drain."""


class Turn(Background):
    """Begins as it is entered and ends by itself, or when it is left. Loads are the generator's: then it only waits."""

    def __init__(
        self, site: DisturbableCluster | None, disturbance: Disturbance, host: Host | None, end_mono_s: float
    ) -> None:
        """`host`: the one that it is done to, or whose pool."""
        super().__init__(f"{disturbance.kind} on {host.name}" if host else disturbance.kind)
        self.disturbance = disturbance
        self._site, self._host, self._end_mono_s = site, host, end_mono_s
        self.begun_unix_s, self.begun_mono_s = time.time(), time.monotonic()
        self.ended_unix_s: float | None = None
        self.ended_mono_s: float | None = None

    def _run(self) -> None:
        try:
            with self._done():
                self._end.wait(max(0.0, self._end_mono_s - time.monotonic()))
        finally:
            self.ended_mono_s, self.ended_unix_s = time.monotonic(), time.time()

    def _done(self) -> contextlib.AbstractContextManager[None]:
        if self._site is None or self.disturbance.kind not in DISTURBERS:
            return contextlib.nullcontext()
        return DISTURBERS[self.disturbance.kind](self._site, self._host, self.disturbance.size)

    @property
    def over(self) -> bool:
        """Whether it has ended. Raises LabError when it could not be done."""
        ended = not self._thread.is_alive()
        self.check()
        return ended

    def label(self, node: str) -> Label:
        """The label for a recording, when the disturbance has ended."""
        assert self.ended_unix_s is not None
        disturbance = self.disturbance
        after_s = 0.0 if disturbance.kind == "overload" else AFTER_S
        return Label(node, disturbance.kind, disturbance.size, self.begun_unix_s, self.ended_unix_s + after_s)


def touched(disturbance: Disturbance, hosts: Sequence[Host]) -> list[str]:
    """The nodes that a disturbance is done to; `*` where it has no host: all."""
    if disturbance.host is None:
        return ["*"]
    host = hosts[disturbance.host]
    return [
        other.name
        for other in hosts
        if other is host or (other.pool == host.pool and disturbance.kind not in OF_ONE_NODE)
    ]


class Turns:
    """The disturbances of a lab: each is begun when it is time."""

    def __init__(self, lab: Lab, site: DisturbableCluster | None) -> None:
        self._lab, self._site = lab, site
        self._turns: list[tuple[Turn, list[str]]] = []
        self.labels: list[Label] = []
        """Labels of the disturbances that are over and forgotten."""

    def begin(self, disturbance: Disturbance, end_mono_s: float) -> None:
        """Begins one, which ends by itself."""
        hosts = self._lab.hosts
        turn = Turn(self._site, disturbance, None if disturbance.host is None else hosts[disturbance.host], end_mono_s)
        self._turns.append((turn.__enter__(), touched(disturbance, hosts)))

    def check(self) -> None:
        """Raises LabError when one could not be done."""
        for turn, _ in self._turns:
            turn.check()

    def beside(self, node: str, mono_s: float) -> str | None:
        """The kind of a disturbance that was done to a node at a time, or shortly before; None: there was none."""

        def reaches(turn: Turn) -> bool:
            ended_s = turn.ended_mono_s
            return turn.begun_mono_s <= mono_s and (ended_s is None or mono_s < ended_s + AFTER_S)

        return next((turn.disturbance.kind for turn, nodes in self._turns if node in nodes and reaches(turn)), None)

    def forget(self, before_mono_s: float) -> None:
        """Turns disturbances that ended before an instant into labels."""
        for turn, nodes in list(self._turns):
            if turn.ended_mono_s is not None and turn.ended_mono_s < before_mono_s:
                self._turns.remove((turn, nodes))
                self.labels += [turn.label(node) for node in nodes]

    def finish(self) -> None:
        """Ends all disturbances. Raises LabError when one could not be done."""
        for turn, _ in self._turns:
            turn.__exit__()
        self.check()
        self.forget(math.inf)
