"""The features of a made-up cluster after some ticks."""

from __future__ import annotations

import numpy as np

from detector.features.features import Frame
from detector.features.signals import INDEX, SIGNALS


def frame(peak: float, **signals: float) -> Frame:
    """One node; `signals` are times its calm baseline and times its peers'."""
    values = np.full((1, len(SIGNALS)), np.nan)
    for key, value in signals.items():
        values[0, INDEX[key]] = value
    busy, no, nothing = np.array([peak]), np.zeros(1, dtype=bool), np.full(1, np.nan)
    return Frame(
        slots=np.arange(1),
        values=values,
        baseline=np.where(np.isnan(values), np.nan, 1.0),
        own=values.copy(),
        usual=values.copy(),
        spreads=values * 5.0,
        peers=values.copy(),
        borrowed=no,
        load=busy,
        others=np.zeros(1),
        peak=busy,
        replaced=no,
        bins=np.zeros(1, dtype=np.int64),
        demand=nothing,
        peers_demand=nothing,
        rps=np.array([100.0]),
        utilisation=busy,
        cores=np.full(1, 0.4),
    )
