"""The lab with Slackwater acting on it, under load that runs on: what stories on the real lab begin with."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from slackwater_lab.cluster.balancer import BASE_WEIGHT
from slackwater_lab.cluster.controller import Controller
from slackwater_lab.cluster.lab import Lab
from slackwater_lab.cluster.load import Demand
from slackwater_lab.cluster.noise import Noise
from slackwater_lab.experiment.steady import at_baseline
from tests.support.real_lab import eventually

MITIGATED_WITHIN_S = 60.0
BACK_WITHIN_S = 120.0
"""Deadlines, not goals: the machine that runs the tests may be busy with other things."""

REDUCED = BASE_WEIGHT // 2


class StageLoad:
    """Load that runs on, in pieces, from `start` to `stop`; what failed is known afterwards."""

    def __init__(self, lab: Lab, rate_rps: float) -> None:
        self.lab, self.rate_rps = lab, rate_rps
        self.answered = 0
        self.failed: list[str] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="steady-load", daemon=True)

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                requests = self.lab.load(Demand(rate_rps=self.rate_rps), 4.0).finish()
            except Exception as error:
                self.failed.append(f"the generator: {error}")
                return
            self.answered += len(requests.seconds)
            self.failed += [f"status {status}" for status in requests.status.tolist() if status >= 400]
            self.failed += [f"{count} x {why}" for why, count in requests.lost.items()]

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join(60.0)


class Stage:
    """The lab, Slackwater acting on it, and load."""

    def __init__(self, lab: Lab, rate_rps: float) -> None:
        self.lab = lab
        self.name = lab.noisy.name
        self.load = StageLoad(lab, rate_rps)
        self.controller = Controller(lab, "act")

    def weight(self) -> int:
        return self.lab.balancer.snapshot().weight[self.name]

    def back(self) -> float:
        """Waits until all weights are at the baseline and all nodes are calm again."""

        def settled() -> bool:
            calm = all(verdict.state == "calm" for verdict in self.controller.verdicts().values())
            return calm and at_baseline(self.lab)

        return eventually("all weights at the baseline and all nodes calm", settled, BACK_WITHIN_S)

    def mitigated(self) -> float:
        return eventually(f"{self.name} is reduced", lambda: self.weight() < REDUCED, MITIGATED_WITHIN_S)

    def state(self) -> str:
        """What the detector thinks of the noisy host."""
        return self.controller.verdicts()[self.name].state

    @contextlib.contextmanager
    def neighbour(self) -> Iterator[Noise]:
        """A neighbour, and the weight down because of it."""
        self.back()
        noise = self.lab.noise(self.lab.noisy, "llcprobe", 1.0, 600.0)
        try:
            self.mitigated()
            yield noise
        finally:
            noise.stop()
