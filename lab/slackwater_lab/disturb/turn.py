"""A disturbance that goes on in a thread of its own, so that the load does not wait for it."""

from __future__ import annotations

import contextlib
import time

from slackwater.detector.recordings.recording import Label
from slackwater_lab.cluster.background import Background
from slackwater_lab.cluster.hosts import Host
from slackwater_lab.cluster.paths import LabError
from slackwater_lab.disturb.disturb import DISTURBERS, DisturbableCluster
from slackwater_lab.disturb.timetable import Disturbance

AFTER_S = 3.0
"""So much longer than the disturbance lasts its label: caches warm up, queues drain."""


class Turn(Background):
    """Begins as it is entered and ends by itself, or when it is left. Loads are the generator's: then it only waits."""

    def __init__(self, site: DisturbableCluster | None, one: Disturbance, host: Host | None, end_mono_s: float) -> None:
        """`host`: the one that it is done to, or whose pool."""
        super().__init__(one.kind)
        self.one = one
        self._site, self._host, self._end_mono_s = site, host, end_mono_s
        self._failed: Exception | None = None
        self.begun_unix_s, self.begun_mono_s = time.time(), time.monotonic()
        self.ended_unix_s: float | None = None
        self.ended_mono_s: float | None = None

    def _run(self) -> None:
        try:
            with self._done():
                self._end.wait(max(0.0, self._end_mono_s - time.monotonic()))
        except Exception as error:
            self._failed = error
        self.ended_mono_s, self.ended_unix_s = time.monotonic(), time.time()

    def _done(self) -> contextlib.AbstractContextManager[None]:
        if self._site is None or self.one.kind not in DISTURBERS:
            return contextlib.nullcontext()
        return DISTURBERS[self.one.kind](self._site, self._host, self.one.size)

    def check(self) -> bool:
        """Whether it has ended. Raises LabError when it could not be done."""
        if self._failed is not None:
            where = f" on {self._host.name}" if self._host else ""
            raise LabError(f"{self.one.kind}{where}: {self._failed}")
        return self.ended_mono_s is not None

    def label(self, node: str) -> Label:
        """For a recording; it has ended."""
        assert self.ended_unix_s is not None
        one = self.one
        after_s = 0.0 if one.kind == "overload" else AFTER_S
        return Label(node, one.kind, one.size, self.begun_unix_s, self.ended_unix_s + after_s)
