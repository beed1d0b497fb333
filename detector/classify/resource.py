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

from slackwater.core.messages import Resource
from slackwater.detector.features.columns import Floats, Ints
from slackwater.detector.features.features import Frame
from slackwater.detector.features.signals import SIGNALS

RESOURCES: tuple[Resource, ...] = get_args(Resource)
UNCLEAR = RESOURCES.index("unclear")
CLEARLY = 1.25

_OF_RESOURCE = [np.flatnonzero([signal.resource == resource for signal in SIGNALS]) for resource in RESOURCES[:UNCLEAR]]
_LIMITS: Floats = np.array([signal.resource_limit for signal in SIGNALS])


def excess_by_resource(frame: Frame) -> Floats:
    """(M, resources but `unclear`) excess of each resource's strongest signal over its limit, as a ratio; 0: none."""
    excess = np.fmin(frame.own, frame.peers) / _LIMITS
    excesses = np.column_stack([np.fmax.reduce(excess[:, columns], axis=1, initial=0.0) for columns in _OF_RESOURCE])
    cache, bandwidth = RESOURCES.index("cache"), RESOURCES.index("memory bandwidth")
    excesses[:, bandwidth] = np.where(excesses[:, cache] >= 1.0, 0.0, excesses[:, bandwidth])
    return excesses


def resource_of(frame: Frame) -> Ints:
    """(M,) index in `RESOURCES` of the resource that each row lacks."""
    excess = excess_by_resource(frame)
    counted = np.sort(np.where(excess >= 1.0, excess, 0.0), axis=1)
    clear = (counted[:, -1] > 0.0) & (counted[:, -1] >= CLEARLY * counted[:, -2])
    return np.where(clear, excess.argmax(axis=1), UNCLEAR)
