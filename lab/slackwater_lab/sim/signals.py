"""The `Sample` that a monitor would send of a simulated server, with the fields that a virtual machine without
hardware counters has, and the one that its balancer's view would send.

A server wants to run while it has requests. Of that time it gets the CPU for what its requests cost, so the run delay
per CPU second is (time spent by all its runnable requests) / (CPU time) - 1, in calm and beside a neighbour alike. The
probe is drawn: beside a neighbour its wall/CPU ratio is 2 to 34 in a third of the Samples and it begins 2 to 30 ms late
in seven tenths, as measured in the lab (notes in `detector/features/signals.py`, docs/decisions/0015).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from slackwater.core.messages import VERSION, Canary, Cpu, Sample, Sched, Traffic
from slackwater.detector.features.columns import Bools, Floats
from slackwater.lbengine.view.counters import Counted
from slackwater.lbengine.view.packets import SnifferLine
from slackwater.lbengine.view.samples import Origin, sample_of

POOL = "simulated"
LOUD_SHARE = 1 / 3
"""Share of a noisy server's Samples in which the probe meets the neighbour."""
LOUDEST = (2.0, 34.0)
"""Wall/CPU ratios of the probe then, log-uniform."""
CALM_SPREAD = 0.02
"""The probe's wall/CPU ratio in calm is 1 plus an exponential of this mean."""
LATE_SHARE = 0.7
"""Share of a noisy server's Samples in which the probe waits for a core before it begins."""
LATEST_MS = (2.0, 30.0)
"""Range of the probe's wait in such a Sample, log-uniform."""
CALM_LATE_MS = 0.1
"""Mean of its delay in calm, which is exponential."""


def probe(dice: np.random.Generator, noisy: Bools) -> tuple[Floats, Floats]:
    """The probe's wall/CPU ratio of each server, and how late it begins (ms): (servers,) each."""
    ratio = _drawn(dice, noisy, LOUD_SHARE, LOUDEST, 1.0 + dice.exponential(CALM_SPREAD, len(noisy)))
    return ratio, _drawn(dice, noisy, LATE_SHARE, LATEST_MS, dice.exponential(CALM_LATE_MS, len(noisy)))


def _drawn(dice: np.random.Generator, noisy: Bools, share: float, loudest: tuple[float, float], calm: Floats) -> Floats:
    """`calm`, or in this share of the noisy ones a value within `loudest`, log-uniform."""
    low, high = (math.log(bound) for bound in loudest)
    met = noisy & (dice.random(len(noisy)) < share)
    return np.where(met, np.exp(dice.uniform(low, high, len(noisy))), calm)


def sample(
    name: str,
    seq: int,
    time_s: float,
    period_s: float,
    *,
    cores: float,
    cpu_s: float,
    waited_s: float,
    requests: int,
    rt_mean_ms: float | None,
    rt_p95_ms: float | None,
    in_flight: int,
    probe_ratio: float,
    probe_late_ms: float,
) -> Sample:
    """A Sample of one period: `cpu_s` used and `waited_s` runnable but not running, of all requests together."""
    used = cpu_s / period_s
    return Sample(
        v=VERSION,
        node=name,
        pool=POOL,
        time_unix_s=time_s,
        boot_id="simulated",
        seq=seq,
        period_s=period_s,
        cpu=Cpu(scope="cgroup", utilisation=used / cores, cores=cores),
        sched=Sched(
            cpu_s_per_s=used,
            run_delay_s_per_s=waited_s / period_s,
            run_delay_per_cpu_s=waited_s / cpu_s if cpu_s > 1e-3 * period_s else None,
        ),
        canary=Canary(wall_cpu_ratio=probe_ratio, late_ms=probe_late_ms),
        traffic=Traffic(rps=requests / period_s, rt_mean_ms=rt_mean_ms, rt_p95_ms=rt_p95_ms, in_flight=in_flight),
    )


def of_balancer(
    name: str,
    seq: int,
    time_s: float,
    period_s: float,
    *,
    answered_s: Sequence[float],
    in_flight: int,
    oldest_unanswered_s: float,
) -> Sample:
    """The Sample of the same period by the balancer's view, from the times of the requests that ended in it."""
    counted = Counted(period_s, in_flight, len(answered_s) / period_s, 0.0, None)
    p50, p95, p99 = (1e3 * np.percentile(answered_s, (50, 95, 99))).tolist() if answered_s else (None, None, None)
    times = SnifferLine(
        exchanges=len(answered_s),
        in_flight=in_flight,
        oldest_unanswered_ms=1e3 * oldest_unanswered_s,
        rt_mean_ms=1e3 * math.fsum(answered_s) / len(answered_s) if answered_s else None,
        rt_p50_ms=p50,
        rt_p95_ms=p95,
        rt_p99_ms=p99,
    )
    origin = Origin(POOL, "simulated", 3 * period_s)
    return sample_of(origin, name, name, seq, time_s, counted, (times, SnifferLine(period_s=period_s)), "")
