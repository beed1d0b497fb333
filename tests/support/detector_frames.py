"""Frames of features made by hand."""

from __future__ import annotations

import numpy as np

from slackwater.detector.features.columns import Columns
from slackwater.detector.features.features import Frame
from slackwater.detector.features.signals import INDEX, SIGNALS


def frame(rps: list[float], utilisation: list[float], **signals: float) -> Frame:
    """A frame of nodes that differ in these alone; `signals` are value over a calm baseline of 1."""
    count = len(rps)
    values = np.full((count, len(SIGNALS)), np.nan)
    for key, value in signals.items():
        values[:, INDEX[key]] = value
    nothing = np.full(count, np.nan)
    busy = np.array(utilisation)
    return Frame(
        slots=np.arange(count),
        values=values,
        baseline=np.where(np.isnan(values), np.nan, 1.0),
        own=values.copy(),
        usual=values.copy(),
        spreads=values - 1.0,
        peers=values.copy(),
        own_excess=np.maximum(np.nan_to_num(values, nan=1.0), 1.0),
        excess=np.maximum(np.nan_to_num(values, nan=1.0), 1.0),
        borrowed=np.zeros(count, dtype=bool),
        load=busy,
        others=np.zeros(count),
        peak=busy,
        replaced=np.zeros(count, dtype=bool),
        returned=np.zeros(count, dtype=bool),
        bins=np.zeros(count, dtype=np.int64),
        demand=nothing,
        peers_demand=nothing,
        rps=np.array(rps),
        answers=0.2 * np.array(rps),
        unanswered_s=np.zeros(count),
        tail_alone=np.zeros(count, dtype=bool),
        utilisation=busy,
        cores=np.full(count, 0.4),
        outside=np.zeros(count, dtype=bool),
    )


def columns(
    rps: list[float],
    utilisation: list[float],
    *,
    time_unix_s: float,
    rt_mean_ms: float = 1.0,
    run_delay_per_cpu: float = 0.0,
    cores: float = 0.4,
    rps_error_share: float = 0.0,
    steal: float = np.nan,
) -> Columns:
    """The fields of Samples of 0.2 s that `slackwater.detector.capacity` reads."""
    count, busy = len(rps), np.array(utilisation)
    return {
        "time_unix_s": np.full(count, time_unix_s),
        "period_s": np.full(count, 0.2),
        "traffic.rps": np.array(rps),
        "traffic.rps_error": rps_error_share * np.array(rps),
        "traffic.rt_mean_ms": np.where(np.array(rps) > 0, rt_mean_ms, np.nan),
        "traffic.in_flight": np.zeros(count),
        "cpu.utilisation": busy,
        "cpu.cores": np.full(count, cores),
        "cpu.steal": np.full(count, steal),
        "sched.cpu_s_per_s": busy * cores,
        "sched.run_delay_s_per_s": busy * cores * run_delay_per_cpu,
    }
