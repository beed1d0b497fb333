"""Policies of the lab: what reacts to the noise. One table; each is told of the noise, which only oracles listen to."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from lab.cluster.balancer import BASE_WEIGHT
from lab.cluster.controller import Controller
from lab.cluster.hosts import Host
from lab.cluster.lab import Lab
from slackwater.config import Law


class Policy(Protocol):
    """One run's reaction to noise."""

    def begin(self) -> None:
        """While the load warms up, before the first round."""

    def noise_on(self, host: Host) -> None:
        """A neighbour has just begun in this host."""

    def noise_off(self, host: Host) -> None: ...


class Static:
    """Weights stay."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def begin(self) -> None:
        pass

    def noise_on(self, host: Host) -> None:
        pass

    def noise_off(self, host: Host) -> None:
        pass


class Oracle(Static):
    """Knows the noise: drains the host at the onset, takes it back at the end. It never drains the last one."""

    def noise_on(self, host: Host) -> None:
        weights = self.lab.balancer.snapshot().weight
        if any(weight > 0 for name, weight in weights.items() if name != host.name):
            self.lab.balancer.set_weight(host.name, 0)

    def noise_off(self, host: Host) -> None:
        self.lab.balancer.set_weight(host.name, BASE_WEIGHT)


class Slackwater(Static):
    """The real controller in `act` mode, and a monitor in each host."""

    def __init__(self, lab: Lab, law: Law = "optimal") -> None:
        super().__init__(lab)
        self.law = law

    def begin(self) -> None:
        Controller(self.lab, "act", self.law).start()


POLICIES: dict[str, Callable[[Lab], Policy]] = {
    "static": Static,
    "oracle": Oracle,
    "slackwater": Slackwater,
    "tail": partial(Slackwater, law="tail"),
    "equalise": partial(Slackwater, law="equalise"),
    "ice": partial(Slackwater, law="ice"),
}
"""By the name in `--policy`; `slackwater` is the law `optimal`, as by default, the last three are its other laws."""
