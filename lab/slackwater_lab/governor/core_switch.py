"""The table `core-switch`: Wang, Steiner and Jenny's controller beside batch jobs (ETH 2022, questions 4.3 and 4.4).

A virtual machine with four cores; memcached on one or two of them, six batch jobs one after the other on the rest. The
load is uniform between 5,000 and 100,000 requests/s, drawn anew every 10, 5, 3 or 2 s; target: a 95th percentile of
1.5 ms in each of these intervals.

Left open by the report: how long memcached stands still when it gets a core (`STALL_S`, fitted to the row of 2 s, "over
8%"), and the work of the jobs (fitted to their times at 10 s). The capacity of a core is that of its question 4.1,
above 100,000 requests/s. That canneal and fft kept the use below 95% is not modelled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from slackwater.governor.policies.core_switch import CoreSwitch
from slackwater.governor.policies.slackwater import Slackwater
from slackwater.governor.power import hardware
from slackwater.governor.types import Configuration, Hardware, Observation, Policy
from slackwater_lab.governor.figures import Figure, one_by_one
from slackwater_lab.governor.fluid import FluidServer

TARGET_MS = 1.5
RPS_OF_A_CORE = 105e3
BASE_MS = 0.3
STALL_S = 0.06
STEP_S = 0.02
SAMPLE_S = 0.1
NOISE = 0.02
"""Deviation of a sample of the CPU use."""
LEAST_RPS, MOST_RPS = 5e3, 100e3
LATE_SHARE = 0.05
JOBS = {
    "ferret": (528.20, 3),
    "freqmine": (321.08, 3),
    "canneal": (257.22, 3),
    "blackscholes": (160.42, 3),
    "fft": (125.25, 2),
    "dedup": (43.66, 3),
}
"""Time in s at 10 s, and threads."""
PAPER = {
    10: (".69, 1.41, 0", 1435.84),
    5: (".34, 1.71, .34", 1462.84),
    3: (".62, .42, .21", 1447.45),
    2: ("above 8", None),
}
"""Seconds between loads -> misses in %, and the time of all jobs (at 5 s: "27 s slower")."""


def machine(curve: str) -> Hardware:
    return hardware(curve, 4, (2000.0,), busy_w=5.0, base_w=5.0, idle_w=1.0)


@dataclass(frozen=True)
class JobsResult:
    misses_percent: float
    """Share of the intervals with a p95 above the target."""
    two_cores_percent: float
    """Share of the time in which memcached has two cores."""
    jobs_s: dict[str, float]


def run(
    policy: Policy, processor: Hardware, interval_s: int, seed: int, work_s: dict[str, float] | None = None
) -> JobsResult:
    """Runs until the jobs are done. `work_s`: work of each job with all its threads (default: its time in the
    report)."""
    random = np.random.default_rng([seed, interval_s])
    server = FluidServer(processor, RPS_OF_A_CORE, BASE_MS)
    left = dict(work_s or {name: time_s for name, (time_s, _) in JOBS.items()})
    begun_s = 0.0
    jobs_s: dict[str, float] = {}
    action = policy.start()
    stall_s = time_s = two_s = late = asked = 0.0
    missed: list[bool] = []
    parts, steps = round(interval_s / SAMPLE_S), round(SAMPLE_S / STEP_S)
    while left:
        rps = float(random.uniform(LEAST_RPS, MOST_RPS))
        late = asked = 0.0
        for _ in range(parts):
            cores = len(action.cores)
            now = Configuration(cores, processor.max_mhz)
            busy, oldest_ms, p95_ms = [], 0.0, []
            for _ in range(steps):
                done = server.run(STEP_S, rps, now, stall_s > 1e-9)
                stall_s -= STEP_S
                asked += rps
                late += rps * (done.p95_ms > TARGET_MS)
                busy.append(done.busy_share)
                p95_ms.append(done.p95_ms)
                oldest_ms = done.oldest_ms
            time_s += SAMPLE_S
            two_s += SAMPLE_S * (cores == 2)
            _work(left, jobs_s, cores, processor.cores, time_s, begun_s)
            begun_s = sum(jobs_s.values())
            use = min(1.0, max(0.0, float(np.mean(busy)) + float(random.normal(0.0, NOISE))))
            action = policy.decide(
                Observation(time_s, rps, float(np.mean(p95_ms)), None, 0.0, oldest_ms, (use,) * cores)
            )
            if len(action.cores) > cores:
                stall_s = STALL_S
        missed.append(late > LATE_SHARE * asked)
    return JobsResult(100.0 * float(np.mean(missed)), 100.0 * two_s / time_s, jobs_s)


def _work(
    left: dict[str, float], jobs_s: dict[str, float], taken: int, cores: int, time_s: float, begun_s: float
) -> None:
    """The first job goes on for a sample, on the cores that memcached leaves."""
    if not left:
        return
    name = next(iter(left))
    threads = JOBS[name][1]
    left[name] -= SAMPLE_S * min(1.0, (cores - taken) / threads)
    if left[name] <= 0.0:
        del left[name]
        jobs_s[name] = time_s - begun_s


def fitted_work_s(processor: Hardware, seeds: Sequence[int], progress: Callable[[str], None]) -> dict[str, float]:
    """The work of each job, so that its time at 10 s is the report's in the mean of the seeds."""
    runs = [
        run(CoreSwitch(processor), processor, 10, seed)
        for seed in one_by_one(seeds, "core-switch: work of the jobs", progress)
    ]
    return {
        name: time_s * time_s / float(np.mean([run.jobs_s[name] for run in runs])) for name, (time_s, _) in JOBS.items()
    }


def ours(processor: Hardware) -> Slackwater:
    """Fewest cores; a change of cores costs, so it is not made more often than every interval of planning."""
    candidates = [Configuration(cores, processor.max_mhz) for cores in (1, 2)]
    return Slackwater(
        processor,
        TARGET_MS,
        period_s=SAMPLE_S,
        candidates=candidates,
        cost=lambda configuration, _: float(configuration.cores),
    )


def compare(seeds: Sequence[int], curve: str, progress: Callable[[str], None] = lambda _: None) -> list[Figure]:
    """The table's figures; the power model plays no part in them."""
    processor = machine(curve)
    work_s = fitted_work_s(processor, seeds, progress)
    figures: list[Figure] = []
    makes: dict[str, Callable[[], Policy]] = {
        "core-switch": lambda: CoreSwitch(processor),
        "slackwater": lambda: ours(processor),
    }
    for interval_s, (misses, total_s) in PAPER.items():
        for name, make in makes.items():
            case, is_ours = f"{interval_s} s", name == "slackwater"
            runs = [
                run(make(), processor, interval_s, seed, work_s)
                for seed in one_by_one(seeds, f"core-switch: {case}, {name}", progress)
            ]
            allowed = (None, 1.0 if is_ours else 1.5) if interval_s > 2 else (None, None) if is_ours else (3.0, None)
            figures += [
                Figure(
                    case, name, "misses %", [run.misses_percent for run in runs], "" if is_ours else misses, *allowed
                ),
                Figure(case, name, "time with two cores %", [run.two_cores_percent for run in runs]),
            ]
            near = (None, None) if total_s is None else (round(0.95 * total_s, 1), round(1.05 * total_s, 1))
            paper = "" if total_s is None else f"{total_s:g}"
            totals = [sum(run.jobs_s.values()) for run in runs]
            figures.append(Figure(case, name, "batch total s", totals, paper, *near))
            if interval_s == 10:
                for job, (time_s, _) in JOBS.items():
                    limits = (round(0.95 * time_s, 1), round(1.05 * time_s, 1))
                    figures.append(
                        Figure(case, name, f"{job} s", [run.jobs_s[job] for run in runs], f"{time_s:g}", *limits)
                    )
    return figures
