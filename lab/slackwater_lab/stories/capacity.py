"""Records hosts in known states, and measures what each can then carry: the truth for `slackwater.detector.capacity`.

A state is a pool's load and a neighbour's share of one host's CPU. The truth is how many requests per second that host
answers to a closed loop that asks it directly while the neighbour goes on. The Samples of the states are kept, those of
the closed loops are not: an estimator that saw the loops would have seen the answers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from slackwater.core.messages import Sample
from slackwater.detector.recordings.recording import Label, Recording, write
from slackwater_lab.cluster import machine
from slackwater_lab.cluster.controller import monitored, start_bus
from slackwater_lab.cluster.hosts import Host
from slackwater_lab.cluster.lab import Lab
from slackwater_lab.cluster.load import Demand, Load
from slackwater_lab.cluster.noise import Noise
from slackwater_lab.cluster.paths import LabError
from slackwater_lab.experiment.steady import SETTLE_S, stay

CLIENTS = 8
"""Clients of the closed loop: more than a host's workers, so that a request always waits."""
RAMP_S = 0.8
"""First seconds of a closed loop, not counted."""
BIN_S = 0.5
"""The truth's own error comes from how much its rate varies over bins of this length."""
RECOVERY_S = 3.0
"""Load after a neighbour has gone, before the next begins."""
LONG_S = 3600.0


@dataclass(frozen=True)
class CapacityTest:
    """The measurement: each load with each share, in this order."""

    loads: Sequence[float]
    """Loads as shares of the pool's calm capacity."""
    taken: Sequence[float]
    """Shares of the host's CPU that a neighbour is due by its weight while both want all they can get; 0 is calm."""
    noise: str = "cpu"
    calm_s: float = 20.0
    """Calm load before the first neighbour of each load."""
    state_s: float = 10.0
    truth_s: float = 4.0


@dataclass(frozen=True)
class State:
    """One state and its truth. Instants are Unix seconds, rates requests per second."""

    host: str
    load: float
    taken_wanted: float
    taken_in_state: float
    """Share of the host's CPU that the neighbour took in the second half of the state."""
    taken: float
    """The same while the truth was measured."""
    begin_unix_s: float
    end_unix_s: float
    truth_rps: float
    truth_stderr_rps: float
    calm_rps: float
    """The calm truth that was measured last before this state's."""

    @property
    def lost(self) -> float:
        """Share of the calm capacity that is lost."""
        return 1.0 - self.truth_rps / self.calm_rps


class _Truth:
    """Closed loops against one host, and the spans in which they ran."""

    def __init__(self, lab: Lab, seconds: float) -> None:
        self._lab, self._host, self._seconds = lab, lab.noisy, seconds
        self.spans: list[tuple[float, float]] = []

    def loop(self, seconds: float) -> Load:
        return self._lab.load(Demand(clients=CLIENTS), seconds, f"http://{self._host.address}")

    def taken(self, seconds: float) -> float:
        """Share of the host's CPU that the neighbour takes in the next `seconds`."""
        cgroups, host = self._lab.cgroups, self._host
        before_s, begin_s = cgroups.cpu_s(host.neighbour), time.monotonic()
        stay(self._lab, begin_s + seconds)
        available_s = self._lab.settings.quota_cores * (time.monotonic() - begin_s)
        return (cgroups.cpu_s(host.neighbour) - before_s) / available_s

    def measure(self) -> tuple[float, float, float]:
        """(requests per second, their standard error, share of the CPU that a neighbour took).

        The loop waits for its turn behind requests that the host still works on: their clients may be gone.
        """
        begin_unix_s = time.time()
        self._lab.wait_for_page(f"http://{self._host.address}{self._lab.app.paths[0]}")
        loop = self.loop(RAMP_S + self._seconds)
        stay(self._lab, loop.begin_mono_s + RAMP_S)
        taken = self.taken(self._seconds - 0.2)
        requests = loop.finish()
        self.spans.append((begin_unix_s, time.time()))
        ended = requests.due_mono_s + requests.seconds - loop.begin_mono_s
        bins = np.histogram(ended, np.arange(RAMP_S, RAMP_S + self._seconds + 1e-6, BIN_S))[0] / BIN_S
        if not bins.sum():
            raise LabError(f"{self._host.name} answered nobody in {self._seconds:g} s")
        return float(bins.mean()), float(bins.std(ddof=1) / math.sqrt(len(bins))), taken


def run(
    lab: Lab, test: CapacityTest, out: Path | None, progress: Callable[[str], None]
) -> tuple[dict[str, Any], Recording, list[State]]:
    """Plays the states; gives the result as for JSON, the Samples outside the closed loops, and the states.

    `out`: also written there as a recording, the result beside it as JSON. Raises LabError.
    """
    host = lab.noisy
    truth = _Truth(lab, test.truth_s)
    start_bus(lab)
    states: list[State] = []
    labels: list[Label] = []
    with monitored(lab) as listener:
        lab.load(Demand(rate_rps=lab.app.rate_rps / 2), SETTLE_S).finish()
        calm_rps, *_ = truth.measure()
        progress(f"calm: {host.name} answers {calm_rps:.0f} requests/s")
        for load in test.loads:
            rate_rps = load * calm_rps * len(lab.hosts)
            for share in [0.0, *(share for share in test.taken if share > 0)]:
                state, loud = _state(lab, test, truth, rate_rps, load, share, calm_rps)
                calm_rps = state.truth_rps if share == 0 else calm_rps
                states.append(state)
                labels += [] if loud is None else [_label(host, loud)]
                progress(
                    f"load {load:.0%}, neighbour {share:.0%} (measured {state.taken_in_state:.0%}, {state.taken:.0%}): "
                    f"{state.truth_rps:.0f} ± {state.truth_stderr_rps:.0f} requests/s, {state.lost:.0%} lost"
                )
                listener.check()
            # After each load, so that a run that is broken off has kept what it measured.
            samples, received_unix_s = without(listener.heard, listener.received_unix_s, truth.spans)
            result = {
                "machine": machine.describe(lab),
                "test": asdict(test),
                "recording": str(out) if out else None,
                "states": [asdict(state) for state in states],
            }
            if out is not None:
                note = f"states and their capacities, {lab.app.name}, {test.noise}"
                write(out, samples, labels, note, received_unix_s)
                out.with_suffix(".json").write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    nodes = sorted({sample.node for sample in samples})
    return result, Recording(samples, labels, "", "", nodes, received_unix_s), states


def _state(
    lab: Lab,
    test: CapacityTest,
    truth: _Truth,
    rate_rps: float,
    load: float,
    share: float,
    calm_rps: float,
) -> tuple[State, Noise | None]:
    """Load and neighbour for a while, then the truth while the neighbour goes on, then load without it."""
    seconds = test.calm_s if share == 0 else test.state_s
    asked = lab.load(Demand(rate_rps=rate_rps), seconds + (2.0 if share else 0.0))
    stay(lab, time.monotonic() + (2.0 if share else 0.0), asked)
    begin_unix_s = time.time()
    weight = round(100.0 * share / (1.0 - share))
    loud = lab.noise(lab.noisy, test.noise, 1.0, LONG_S, weight) if share else None
    stay(lab, asked.begin_mono_s + asked.seconds - seconds / 2, asked)
    in_state = truth.taken(max(asked.begin_mono_s + asked.seconds - time.monotonic(), 0.1))
    end_unix_s = time.time()
    asked.stop()
    truth_rps, stderr_rps, taken = truth.measure()
    if loud is not None:
        loud.stop()
        lab.load(Demand(rate_rps=rate_rps), RECOVERY_S).finish()
    before = truth_rps if share == 0 else calm_rps
    state = State(lab.noisy.name, load, share, in_state, taken, begin_unix_s, end_unix_s, truth_rps, stderr_rps, before)
    return state, loud


def _label(host: Host, loud: Noise) -> Label:
    assert loud.off_unix_s is not None
    return Label(host.name, loud.kind, loud.intensity, loud.on_unix_s, loud.off_unix_s)


def without(
    samples: Sequence[Sample], received_unix_s: Sequence[float], spans: Sequence[tuple[float, float]]
) -> tuple[list[Sample], list[float]]:
    """The Samples that no span has a part of, and when each was received.

    Their `seq` and times stay as they were, so there are gaps where spans were left out.
    """
    kept = [
        (sample, received_s)
        for sample, received_s in zip(samples, received_unix_s, strict=False)
        if not any(begin < sample.time_unix_s and sample.time_unix_s - sample.period_s < end for begin, end in spans)
    ]
    return [sample for sample, _ in kept], [received_s for _, received_s in kept]
