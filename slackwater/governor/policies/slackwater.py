"""`slackwater`: our own. The cheapest configuration whose response time, with a margin for what is not known, meets the
target.

- A prediction with its uncertainty (`slackwater.governor.tail_model`), from the work that the service needs per second:
  busy time times clock. A neighbour that slows the cores down makes the same work longer, which counts as demand.
- A fast trigger. When the oldest unanswered request is older than `TOO_OLD` targets, and others are not answered in
  time either, the highest configuration is set at once. When more work comes than was planned for (a CUSUM of the
  difference), a new plan is made at once.
- A reserve for the usual changes of demand from second to second, at most the highest demand of late and its usual
  rises beyond that. A load that is drawn anew within limits comes near the upper limit, and needs no reserve above it.
  A load that grows gets a reserve.
- During interference nothing is lowered. Seconds of it are learnt like all others: work that takes longer is more
  demand, and a miss widens the margin. So cores or clock make up for what the neighbour takes.
- Without requests none can be late: after a second without any the cheapest configuration will do, and the trigger
  brings the rest when they come.
- It begins with the highest configuration, where nothing is known, and goes down as far as the margin allows. Old
  evidence counts for less, so nothing is ruled out for good.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from slackwater.governor.tail_model import HALF_LIFE_S, TailModel
from slackwater.governor.types import Action, Configuration, Hardware, Observation, whole

PLAN_S = 1.0
TOO_OLD = 2.0
DRIFT, ALARM = 0.05, 0.3
"""For the CUSUM: excess demand, relative to the plan, that is tolerated in a period; the sum that makes a new plan."""
FOLLOW = 0.1
"""Weight of the last second in the usual change of demand from second to second."""
SURPRISES, AHEAD_MOST = 0.1, 4.0
"""Share of seconds in which demand may be above the plan; the highest number of usual changes to plan for."""
JUMP = 0.25
"""A larger change is a step of the load, which the trigger is for, and no usual change."""


class Slackwater:
    name = "slackwater"

    def __init__(
        self,
        hardware: Hardware,
        target_ms: float,
        *,
        period_s: float = 0.02,
        candidates: Sequence[Configuration] | None = None,
        cost: Callable[[Configuration, float], float] | None = None,
        tail_of: Callable[[Observation], float | None] = lambda seen: seen.p95_ms,
        miss_share: float = 0.01,
    ) -> None:
        """`cost` of a configuration at a utilisation, by default its power; `tail_of`: the percentile with a target."""
        self.period_s = period_s
        self._hardware, self._target_ms = hardware, target_ms
        self._cost, self._tail_of = cost or hardware.power_w, tail_of
        self._candidates = list(candidates or hardware.configurations())
        self._speeds = np.array([hardware.speed(candidate) for candidate in self._candidates])
        self._cores = np.array([float(candidate.cores) for candidate in self._candidates])
        self._shares = np.array([candidate.clock_mhz / hardware.max_mhz for candidate in self._candidates])
        self._model = TailModel(miss_share)
        self._highest = max(self._candidates, key=hardware.speed)
        self._now = self._highest
        self._planned = 0.0
        """Demand that the present configuration was chosen for."""
        self._expected = 0.0
        """The same when the second began; within it a surprise makes a new plan."""
        self._excess = 0.0
        self._begun_s: float | None = None
        self._seconds: list[tuple[Observation, float]] = []
        """Each Observation of the present second, and the work per second in it."""
        self._before = 0.0
        """Demand of the last second."""
        self._usual = 0.02
        """Usual change of demand from one second to the next, relative."""
        self._peak = 0.0
        """Highest demand of a second; falls to half in `HALF_LIFE_S`."""
        self._rise = 0.02
        """Usual rise of demand beyond it in a second, relative."""
        self._ahead = 1.0
        """Number of usual changes to plan for, or of rises beyond the highest demand where that is less."""
        self._alarm = False
        """The highest configuration is set until the queue is short again."""
        self._steady = False
        """The configuration did not change in this second."""
        self._why = "nothing is known yet"

    def start(self) -> Action:
        return whole(self._now, why=self._why)

    def decide(self, seen: Observation) -> Action:
        begun_s = seen.time_s - self.period_s if self._begun_s is None else self._begun_s
        self._begun_s = begun_s
        speed = self._hardware.speed(seen.in_force or self._now)
        demand = float(np.mean(seen.busy_shares)) * speed if seen.busy_shares else 0.0
        self._seconds.append((seen, demand))
        tail = self._tail_of(seen)
        # A request that stays unanswered while others are answered in time waits for something else than a core.
        queued = tail is None or tail > self._target_ms
        if queued and seen.oldest_ms > TOO_OLD * self._target_ms:
            self._change(self._highest, self._hardware.speed(self._highest))
            self._alarm = True
            self._why = f"the oldest request has waited for {seen.oldest_ms:.3g} ms"
        elif self._alarm:
            self._alarm = False
            self._plan(max(demand, self._before), seen.interference)
        elif self._planned:
            self._excess = max(0.0, self._excess + demand / self._planned - 1.0 - DRIFT)
            if self._excess > ALARM:
                self._plan(max(recent for _, recent in self._seconds[-3:]), seen.interference, lower=False)
        passed_s = seen.time_s - begun_s
        if passed_s >= PLAN_S - 1e-9:
            self._model.forget(passed_s)
            self._peak *= 0.5 ** (passed_s / HALF_LIFE_S)
            self._second(seen)
            self._begun_s = seen.time_s
        return whole(self._now, why=self._why)

    def _second(self, seen: Observation) -> None:
        """A second is over: learn from it and plan the next."""
        tails = [(tail, part.rps) for part, _ in self._seconds if part.rps and (tail := self._tail_of(part))]
        demand = float(np.mean([work for _, work in self._seconds]))
        if self._peak > 0.0 and (rise := max(0.0, demand / self._peak - 1.0)) < JUMP:
            self._rise += FOLLOW * (rise - self._rise)
        self._peak = max(self._peak, demand)
        recent = self._seconds[-max(1, len(self._seconds) // 5) :]
        latest = float(np.mean([work for _, work in recent]))
        in_force = seen.in_force or self._now
        steady = self._steady if seen.in_force is None else all(part.in_force == in_force for part, _ in self._seconds)
        if tails and steady:
            # Percentiles of parts of the second, weighted by their requests.
            tail = sum(part_ms * rps for part_ms, rps in tails) / sum(rps for _, rps in tails) / self._target_ms
            if latest <= self._expected and in_force == self._now:
                self._model.missed(tail > 1.0)
            self._model.learn(
                in_force.cores,
                in_force.clock_mhz / self._hardware.max_mhz,
                demand / self._hardware.speed(in_force),
                tail,
            )
        self._seconds = []
        self._steady = True
        if not self._alarm:
            self._plan(max(demand, latest, self._before if seen.interference else 0.0), seen.interference)
        if self._before > 0.0 and (changed := abs(demand / self._before - 1.0)) < JUMP:
            self._usual += FOLLOW * (changed - self._usual)
            self._ahead = min(AHEAD_MOST, max(0.0, self._ahead + 0.5 * (float(latest > self._expected) - SURPRISES)))
        self._before, self._expected = demand, self._planned

    def _plan(self, demand: float, interference: bool, lower: bool = True) -> None:
        beyond = max(demand, self._peak) * (1.0 + self._ahead * self._rise)
        demand = min(demand * (1.0 + self._ahead * self._usual), beyond)
        utilisations = demand / self._speeds
        upper = self._model.upper(self._cores, self._shares, utilisations) if demand else np.zeros(len(utilisations))
        costs = [
            self._cost(candidate, min(1.0, float(utilisation))) if tail <= 1.0 else np.inf
            for candidate, utilisation, tail in zip(self._candidates, utilisations, upper, strict=True)
        ]
        best = int(np.argmin(costs))
        if np.isfinite(costs[best]):
            wanted = self._candidates[best]
            self._why = f"at most {upper[best] * self._target_ms:.3g} ms predicted for {demand:.3g} cores of work"
        else:
            wanted, self._why = self._highest, f"nothing less is sure to be enough for {demand:.3g} cores of work"
        if (interference or not lower) and self._hardware.speed(wanted) < self._hardware.speed(self._now):
            wanted, self._why = self._now, "interference" if interference else "more work came than was planned for"
        self._change(wanted, demand)

    def _change(self, wanted: Configuration, planned: float) -> None:
        if wanted != self._now:
            self._now, self._steady = wanted, not self._seconds
        self._planned, self._excess = planned, 0.0
