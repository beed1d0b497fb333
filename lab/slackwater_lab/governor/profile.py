"""Heimdall's offline data set: one iteration of the load in each of the 51 configurations (section 4.1.7)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from slackwater.detector.tail.data import Rows
from slackwater.governor.types import Hardware, whole
from slackwater_lab.governor.heimdall import Server, machine, trace
from slackwater_lab.governor.policies.heimdall import rows

SEED = 1000
"""None of a comparison's."""


@lru_cache
def profile(step_s: int) -> Rows:
    """A row for each second with requests, configuration after configuration; `step_s` is the length of a load step."""
    return _profile(machine("a72"), step_s)  # the power model does not change what is measured


def _profile(processor: Hardware, step_s: int) -> Rows:
    rps, configurations, numbers, p95_ms = [], [], [], []
    for number, configuration in enumerate(processor.configurations()):
        server = Server(processor, SEED + number)
        for wanted_rps in trace(step_s):
            server.new_second()
            _, seen = server.run(1.0, float(wanted_rps), whole(configuration))
            if seen.p95_ms is not None:
                rps.append(seen.rps)
                configurations.append(configuration)
                numbers.append(number)
                p95_ms.append(seen.p95_ms)
    return rows(processor, np.array(rps), configurations, numbers, np.array(p95_ms))
