"""Which resource a neighbour takes away, as a pure function of the features.

1. A signal is evidence for its resource by its excess over its limit: value over calm baseline over limit. The same is
   computed against its peers. The lower of the two counts, or the one that is known.
2. A resource is as strong as its strongest signal, and counts from 1 on.
3. Cache misses explain cycles. So `memory bandwidth` counts only where cycles per instruction (or per load of the
   probe) are beyond their limit while the miss rate is not.
4. The strongest resource is the answer when it is `CLEARLY` times as strong as the next one. Otherwise, and when none
   counts, the answer is `unclear`.
"""

from __future__ import annotations

from typing import get_args

import numpy as np

from detector.features.columns import Floats, Ints
from detector.features.features import Frame
from detector.features.signals import INDEX
from slackwater.messages import Resource

RESOURCES: tuple[Resource, ...] = get_args(Resource)
UNCLEAR = RESOURCES.index("unclear")
CLEARLY = 1.25

EVIDENCE_OF: dict[str, tuple[tuple[str, float], ...]] = {
    "cpu": (
        ("run_delay_per_cpu", 2.5),
        ("canary_ratio", 1.5),
        ("canary_ratio_max", 2.0),
        ("late", 3.0),
        ("late_max", 3.0),
        ("steal", 2.5),
        ("cpu_pressure", 2.0),
        ("probe_alu", 1.3),
    ),
    "cache": (("cache_miss_rate", 1.5), ("probe_misses", 1.5)),
    "memory bandwidth": (("cpi", 1.4), ("probe_cycles", 1.4)),
    "network": (("net_saturation", 2.0), ("retransmits", 3.0), ("net_drops", 3.0)),
    "disk": (("io_pressure", 2.0), ("disk_wait", 2.5), ("major_faults", 3.0)),
}
"""Resource -> signals that are evidence for it, each with its limit: times the calm baseline, and times the peers'."""


def excess_by_resource(frame: Frame) -> Floats:
    """(M, resources but `unclear`) excess of each resource's strongest signal over its limit, as a ratio; 0: none."""
    excesses = np.zeros((len(frame.slots), UNCLEAR))
    for number, resource in enumerate(RESOURCES[:UNCLEAR]):
        for key, limit in EVIDENCE_OF[resource]:
            column = INDEX[key]
            excess = np.fmin(frame.own[:, column], frame.peers[:, column]) / limit
            excesses[:, number] = np.fmax(excesses[:, number], excess)
    cache, bandwidth = RESOURCES.index("cache"), RESOURCES.index("memory bandwidth")
    excesses[:, bandwidth] = np.where(excesses[:, cache] >= 1.0, 0.0, excesses[:, bandwidth])
    return excesses


def resource_of(frame: Frame) -> Ints:
    """(M,) index in `RESOURCES` of the resource that each row lacks."""
    excess = excess_by_resource(frame)
    counted = np.sort(np.where(excess >= 1.0, excess, 0.0), axis=1)
    clear = (counted[:, -1] > 0.0) & (counted[:, -1] >= CLEARLY * counted[:, -2])
    return np.where(clear, excess.argmax(axis=1), UNCLEAR)
