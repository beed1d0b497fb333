"""The small steps of every experiment: capacity, waiting while load runs, weights, programs that end."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence

from slackwater_lab.cluster.applications import APPLICATIONS
from slackwater_lab.cluster.balancer import BASE_WEIGHT
from slackwater_lab.cluster.lab import Lab, LabSettings
from slackwater_lab.cluster.load import Demand, Load, Stream
from slackwater_lab.cluster.noise import Noise
from slackwater_lab.cluster.paths import LabError

SETTLE_S = 3.0
"""Load that is not counted before a phase: connections are opened, caches filled."""

WARM_UP_S = 10.0
"""Load before a run; a controller learns what calm looks like."""

CALIBRATION_S = 5.0
LOOK_S = 0.05


VM_LOAD = 0.4
"""Share of its capacity that a pool of virtual machines is asked for unless said otherwise."""


def default_demand(settings: LabSettings) -> tuple[float | None, float | None]:
    """The load unless said otherwise: requests per second, or a share of the measured capacity."""
    return (None, VM_LOAD) if settings.kind != "cgroup" else (APPLICATIONS[settings.app].rate_rps, None)


def capacity_rps(lab: Lab) -> float:
    """Requests per second at which the hosts' quotas are full, by the CPU time that a request takes in calm."""
    demand = Demand(rate_rps=lab.app.rate_rps / 2)
    lab.load(demand, SETTLE_S).finish()
    before_s = lab.vm_cpu_s()
    requests = lab.load(demand, CALIBRATION_S).finish()
    if not len(requests.seconds):
        raise LabError("no request was answered, so the capacity is not known")
    cpu_s = (lab.vm_cpu_s() - before_s) / len(requests.seconds)
    return lab.settings.quota_cores * len(lab.hosts) / cpu_s


def wait_for(
    lab: Lab,
    happened: Callable[[], bool],
    within_s: float,
    load: Load | Stream | None = None,
    noises: Sequence[Noise] = (),
) -> bool:
    """Whether it happened in time. Raises LabError as soon as something has ended that should run."""
    end_s = time.monotonic() + within_s
    while not happened():
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            return False
        lab.check()
        for running in (*([load] if load else []), *noises):
            running.check()
        time.sleep(min(left_s, LOOK_S))
    return True


def stay(lab: Lab, until_mono_s: float, load: Load | Stream | None = None, noises: Sequence[Noise] = ()) -> None:
    """Waits for an instant; raises LabError as soon as something has ended that should run."""
    wait_for(lab, lambda: False, until_mono_s - time.monotonic(), load, noises)


def at_baseline(lab: Lab) -> bool:
    return all(weight == BASE_WEIGHT for weight in lab.balancer.snapshot().weight.values())


def set_weights(lab: Lab, weights: dict[str, int]) -> None:
    """Sets the weights that differ from these. Raises LabError."""
    now = lab.balancer.snapshot().weight
    for server, weight in weights.items():
        if now[server] != weight:
            lab.balancer.set_weight(server, weight)


def stop_programs(lab: Lab, prefix: str, wait_s: float = 5.0) -> None:
    """Ends the lab's programs of this name, all at a time."""
    matching = [program for program in lab.programs if program.name.startswith(prefix)]
    for program in matching:
        program.signal(signal.SIGTERM)
    for program in matching:
        program.stop(wait_s)
        lab.programs.remove(program)
