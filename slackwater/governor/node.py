"""A node as the governor sees it: its load, and the configuration that it should have. Touches nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

from slackwater.core.config import GovernorSettings
from slackwater.core.messages import (
    GOVERNOR,
    PUT_BACK,
    SLOW_ALONE,
    VERSION,
    Change,
    Governed,
    Knobs,
    Mode,
    Sample,
    Traffic,
)
from slackwater.governor.levers import Levers, levers
from slackwater.governor.policies.table import POLICIES, Conditions
from slackwater.governor.types import Action, Configuration, Observation, Policy, mean
from slackwater.orders.knobs import FREQUENCY, Value
from slackwater.orders.node import OrderedNode

STALE_S = 3.0
"""Without a Sample for this long the node gets back what it has without us."""
SETTLED_S = 3.0
"""After a change the Samples show what the node may use now."""
SAME_S = 0.5
"""Two Samples' ages of one request agree within this."""
REST_S = 60.0
"""A knob that was refused, or that somebody else set, is left alone for this time."""


class GovernedNode(OrderedNode):
    """All times are monotonic."""

    by = GOVERNOR
    rest_s = REST_S

    def __init__(self, name: str, pool: str, settings: GovernorSettings, target_ms: float) -> None:
        super().__init__(name)
        self.levers: Levers | None = None
        self.wanted: Configuration | None = None
        """None: as it is without us."""
        self.why = "no Sample yet"
        self._pool, self._settings, self._target_ms = pool, settings, target_ms
        self._policy: Policy | None = None
        self._batch_may_run = True
        self._levers_of: Knobs | None = None
        """The report that `levers` was made of."""
        self._values: dict[str, Value] = {}
        """The values in force by Orders, by knob."""
        self._last: tuple[str, int] | None = None
        """Boot and number of the last Sample."""
        self._seen_s = self._changed_s = -math.inf
        self._sampled_s = 0.0
        """Sum of the Samples' periods: the policy's clock."""
        self._lost_s = -math.inf
        """A request that is older, by the policy's clock, will never be answered."""
        self._gathered: list[Observation] = []
        """Since the policy's last decision."""
        self._gathered_s = 0.0
        self._second_s = 0.0
        """When the present second began."""
        self._tails: list[tuple[float, float]] = []
        """The p95 in ms and the requests per second of each Sample in the present second."""
        self._seconds = self._misses = 0
        self._shown = Observation(0.0)
        self._busy_cores: float | None = None

    def may_set(self, knob: str) -> bool:
        return knob in self._settings.may_set

    # --- messages

    def see_knobs(self, knobs: Knobs, now_s: float, sent_s: Callable[[str], float | None]) -> None:
        super().see_knobs(knobs, now_s, sent_s)
        self._values = {knob.name: knob.value for knob in knobs.knobs if knob.order and knob.value is not None}

    def see_change(self, change: Change, now_s: float) -> bool:
        if change.cause == "ordered" and change.applied and change.after is not None:
            self._values[change.what] = change.after
        elif change.cause in PUT_BACK and change.applied:
            self._values.pop(change.what, None)
        return super().see_change(change, now_s)

    def see_sample(self, sample: Sample, now_s: float) -> None:
        """Decides by a Sample. One that lacks a value that the policy needs does not count."""
        if (sample.boot_id, sample.seq) == self._last:
            return
        self._last = (sample.boot_id, sample.seq)
        cpu, traffic = sample.cpu, sample.traffic
        if traffic is None or traffic.rps is None or cpu is None or cpu.utilisation is None or not cpu.cores:
            self.why = "unknown: the Sample has no requests per second, or no CPU utilisation"
            return
        self._seen_s = now_s
        self._count_second(now_s, traffic.rps, traffic.rt_p95_ms)
        self._busy_cores = cpu.utilisation * cpu.cores
        self._decide(sample.period_s, traffic, cpu.cores, now_s)

    def _decide(self, period_s: float, traffic: Traffic, cores: float, now_s: float) -> None:
        """`cores`: CPU time per second that the node may use."""
        levers_now, policy, busy_cores = self._levers_now(cores, now_s), self._policy, self._busy_cores or 0.0
        if levers_now is None or policy is None:
            self.wanted, self.why = None, "the node's wsengine lists no knob of the governor's"
            return
        self._sampled_s += period_s
        in_force = levers_now.in_force(self._values)
        capacity_cores = levers_now.capacity_cores(in_force)
        if now_s - self._changed_s > SETTLED_S:  # a quota that is not ours may bind; the monitor reads it once a second
            capacity_cores = min(capacity_cores, cores)
        self._shown = Observation(
            self._sampled_s,
            traffic.rps or 0.0,
            traffic.rt_p95_ms,
            traffic.rt_p99_ms,
            oldest_ms=self._oldest_ms(traffic),
            busy_shares=(min(1.0, busy_cores / capacity_cores),) * in_force.cores,
            power_w=levers_now.watts(in_force, busy_cores),
            interference=self._interference(now_s),
            in_force=in_force,
        )
        self._gathered.append(self._shown)
        self._gathered_s += period_s
        if self._gathered_s >= policy.period_s - 1e-9:
            action = policy.decide(together(self._gathered))
            self._gathered, self._gathered_s = [], 0.0
            self._choose(levers_now, action, now_s)

    # --- decisions

    def _levers_now(self, cores: float, now_s: float) -> Levers | None:
        """The node's levers. When its knobs have changed they are made anew, with a policy that knows nothing."""
        knobs = self.fresh_knobs(now_s)
        if knobs is None:
            return None
        if knobs is not self._levers_of:
            self._levers_of = knobs
            count = max(1, round(cores)) if self.levers is None else self.levers.hardware.cores
            new = levers(self._settings, knobs, count)
            if new is not None and new != self.levers:
                given = Conditions(new.hardware, self._target_ms, new.candidates)
                self._policy = POLICIES[self._settings.policy](given)
                self._gathered, self._gathered_s, self.wanted = [], 0.0, None
            self.levers = new
        return self.levers

    def _oldest_ms(self, traffic: Traffic) -> float:
        """Age of the oldest request that waits for a core. A request that stayed unanswered while others were answered
        in time waits for something else: without others it would look like a queue for ever."""
        oldest_ms = traffic.oldest_unanswered_ms or 0.0
        began_s = self._sampled_s - oldest_ms / 1000.0
        if traffic.rt_p95_ms is None:
            return 0.0 if began_s <= self._lost_s else oldest_ms
        if traffic.rt_p95_ms <= self._target_ms < oldest_ms:
            self._lost_s = max(self._lost_s, began_s + SAME_S)
        return oldest_ms

    def _interference(self, now_s: float) -> bool:
        verdict = self.fresh_verdict(now_s)
        return verdict is not None and verdict.state in SLOW_ALONE

    def _choose(self, levers_now: Levers, action: Action, now_s: float) -> None:
        hardware, before = levers_now.hardware, self.wanted
        wanted = levers_now.nearest(Configuration(len(action.cores), action.clocks_mhz[0]))
        if before is not None and hardware.speed(wanted) == hardware.speed(before):
            wanted = before
        lower = hardware.speed(wanted) < hardware.speed(before or hardware.highest)
        if lower and self._interference(now_s):
            wanted, why = before or hardware.highest, "interference: nothing is lowered"
        elif lower and self.fresh_verdict(now_s) is None:
            wanted, why = before or hardware.highest, "no Verdict: nothing is lowered"
        elif lower and now_s - self._changed_s < self._settings.lower_every_s:
            return
        else:
            why = action.why or f"chosen by {self._settings.policy}"
        if wanted != before:
            self._changed_s = now_s
        self.wanted, self.why, self._batch_may_run = wanted, why, action.batch

    def _count_second(self, now_s: float, rps: float, p95_ms: float | None) -> None:
        if p95_ms is not None and rps > 0.0:
            self._tails.append((p95_ms, rps))
        if now_s - self._second_s < 1.0:
            return
        if (mean_p95_ms := weighted(self._tails)) is not None:
            self._seconds += 1
            self._misses += mean_p95_ms > self._target_ms
        self._second_s, self._tails = now_s, []

    def target_values(self, now_s: float) -> dict[str, Value]:
        if now_s - self._seen_s > STALE_S:
            self.wanted, self.why = None, "no Samples: as it is without the governor"
        if self.levers is None or self.wanted is None:
            return {}
        values: dict[str, Value] = {**self.levers.values(self.wanted)}
        if self.levers.batch is not None:
            values |= self.levers.batch.values(self.wanted.cores, self._batch_may_run)
        usable = self.usable(now_s)
        return {knob: value for knob, value in values.items() if knob in usable}

    @property
    def decision(self) -> str:
        """A text that differs where the decision differs."""
        return f"{self.wanted} {self.levers is None}"

    def reason(self, knob: str, value: Value) -> str:  # noqa: ARG002
        """The policy's reason, and the figures that it was decided by."""
        seen = self._shown
        p95 = "no p95" if seen.p95_ms is None else f"p95 {seen.p95_ms:.3g} ms"
        busy = "" if self._busy_cores is None else f", {self._busy_cores:.2f} cores busy"
        return f"{self.why}; {p95} of {self._target_ms:g} ms, {seen.rps:.3g} requests/s{busy}"

    def message(self, mode: Mode, now_unix_s: float, now_s: float) -> Governed:
        """The message of each second."""
        message = Governed(
            v=VERSION,
            node=self.name,
            pool=self._pool,
            time_unix_s=now_unix_s,
            mode=mode,
            policy=self._settings.policy,
            target_p95_ms=self._target_ms,
            why=self.why,
            interference=self._interference(now_s),
            seconds=self._seconds,
            misses=self._misses,
        )
        if now_s - self._seen_s <= STALE_S:
            message.rps, message.rt_p95_ms = self._shown.rps, self._shown.p95_ms
            message.busy_cores = self._busy_cores
        if self.levers is None:
            return message
        hardware, in_force = self.levers.hardware, self.levers.in_force(self._values)
        wanted = self.wanted or hardware.highest
        message.cores, message.most_cores, message.wanted_cores = in_force.cores, hardware.cores, wanted.cores
        message.clock_knob = self.levers.clock_knob
        if self.levers.batch is not None:
            message.batch_cores = self.levers.batch.in_force(self._values)
        if message.clock_knob:
            message.clock_share = in_force.clock_mhz / hardware.max_mhz
            message.wanted_clock_share = wanted.clock_mhz / hardware.max_mhz
        if message.clock_knob == FREQUENCY:
            message.clock_mhz = in_force.clock_mhz
        if message.busy_cores is not None:
            message.watts = self.levers.watts(in_force, message.busy_cores)
            work = message.busy_cores * (
                in_force.clock_mhz / hardware.max_mhz if message.clock_mhz is not None else 1.0
            )
            message.most_watts, message.power_model = self.levers.watts(hardware.highest, work), self._settings.curve
        return message


def together(observations: list[Observation]) -> Observation:
    """Several Samples as one Observation; percentiles are weighted by their requests."""
    last = observations[-1]
    if len(observations) == 1:
        return last
    tails = [(seen.p95_ms, seen.rps) for seen in observations if seen.p95_ms is not None and seen.rps > 0.0]
    return Observation(
        last.time_s,
        mean([seen.rps for seen in observations]),
        weighted(tails),
        last.p99_ms,
        oldest_ms=max(seen.oldest_ms for seen in observations),
        busy_shares=(mean([mean(seen.busy_shares) for seen in observations]),) * len(last.busy_shares),
        power_w=mean([seen.power_w for seen in observations]),
        interference=any(seen.interference for seen in observations),
        in_force=last.in_force,
    )


def weighted(tails: list[tuple[float, float]]) -> float | None:
    """The mean of p95s, weighted by the requests per second of each; None of none."""
    return sum(p95_ms * rps for p95_ms, rps in tails) / sum(rps for _, rps in tails) if tails else None
