"""What a policy would choose over a given load: steps of requests per second on a simulated server with pinned threads.

Requests come in a Poisson stream and wait in one queue for each core; their work is exponential. The policies are those
that need no data from before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from slackwater.governor.policies.static import Static
from slackwater.governor.policies.table import POLICIES, Conditions, Make
from slackwater.governor.types import Action, Hardware, Observation, Policy
from slackwater_lab.governor.policies.heracles import Heracles
from slackwater_lab.governor.queues import Floats, PinnedQueues


class Service(msgspec.Struct, frozen=True):
    """A service and its target."""

    work_ms: float
    """CPU time of a request at the highest clock, mean."""
    target_ms: float
    """Target of the p95 of each second."""
    base_ms: float = 0.0
    """Part of the response time that is not the server's CPU."""


PLANNED: dict[str, Make] = {
    **POLICIES,
    "heracles": lambda given: Heracles(given.hardware, given.target_ms, given.most_rps),
}
"""The policies that need no data from before."""


class Step(msgspec.Struct):
    """One step of the load."""

    rps: float
    cores: int
    """Cores and clock are those that were set for the longest time."""
    clock_mhz: float
    share: float
    """Share of the time with this setting."""
    p95_ms: float | None
    """p95 of all requests of the step; None without requests."""
    within_target_percent: float
    """Share of the seconds; one without requests is within."""
    watts: float
    static_watts: float
    """Power for the same requests with all cores at the highest clock."""


def plan(
    policy: str, processor: Hardware, service: Service, load_rps: Sequence[float], step_s: int, seed: int = 1
) -> list[Step]:
    """Runs the policy through the steps of the load, each of `step_s` seconds."""
    given = Conditions(processor, service.target_ms, seed=seed, most_rps=max(load_rps))
    ours = _run(PLANNED[policy](given), processor, service, load_rps, step_s, seed)
    static = _run(Static(processor), processor, service, load_rps, step_s, seed)
    return [msgspec.structs.replace(step, static_watts=other.watts) for step, other in zip(ours, static, strict=True)]


def _run(
    policy: Policy, processor: Hardware, service: Service, load_rps: Sequence[float], step_s: int, seed: int
) -> list[Step]:
    queues = PinnedQueues(service.work_ms / 1e3, random=np.random.default_rng(seed))
    action, steps = policy.start(), []
    parts = max(1, round(1.0 / policy.period_s))
    for number, rps in enumerate(load_rps):
        times: Counter[tuple[int, float]] = Counter()
        seconds: list[list[Floats]] = []
        watts = []
        for part in range(step_s * parts):
            if part % parts == 0:
                seconds.append([])
            times[len(action.cores), action.clocks_mhz[0]] += 1
            done = queues.run(1.0 / parts, rps, [clock_mhz / processor.max_mhz for clock_mhz in action.clocks_mhz])
            took_ms = done.answered_s * 1e3 + service.base_ms
            seconds[-1].append(took_ms)
            watts.append(_watts(processor, action, done.busy_shares))
            p95_ms, p99_ms = np.percentile(took_ms, (95, 99)) if len(took_ms) else (None, None)
            action = policy.decide(
                Observation(
                    number * step_s + (part + 1) / parts,
                    len(took_ms) * parts,
                    p95_ms,
                    p99_ms,
                    float(done.waited_s.max(initial=0.0)) * 1e3,
                    done.oldest_s * 1e3,
                    done.busy_shares,
                    watts[-1],
                )
            )
        per_second = [np.concatenate(times) for times in seconds]
        late = [bool(len(times) and np.percentile(times, 95) > service.target_ms) for times in per_second]
        answered = np.concatenate(per_second)
        (cores, clock_mhz), most = times.most_common(1)[0]
        steps.append(
            Step(
                rps,
                cores,
                clock_mhz,
                most / (step_s * parts),
                float(np.percentile(answered, 95)) if len(answered) else None,
                100.0 * (1.0 - float(np.mean(late))),
                float(np.mean(watts)),
                0.0,
            )
        )
    return steps


def _watts(processor: Hardware, action: Action, busy_shares: Sequence[float]) -> float:
    cores = zip(action.clocks_mhz, busy_shares, strict=True)
    return processor.base_w + sum(processor.core_w(clock_mhz, busy) for clock_mhz, busy in cores)
