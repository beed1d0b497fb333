"""One node under the governor: what is known of it, and the configuration that it should have. Touches nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from slackwater.core.config import GovernorSettings
from slackwater.core.messages import (
    GOVERNOR,
    PUT_BACK,
    VERSION,
    Change,
    Governed,
    Knobs,
    KnobState,
    Mode,
    Sample,
    Traffic,
    Verdict,
)
from slackwater.governor.levers import Levers, levers
from slackwater.governor.policies.table import ACTING
from slackwater.governor.types import Action, Configuration, Observation, Policy, mean
from slackwater.orders.knobs import FRESH_S, ON_ITS_OWN, Held, Value, can_be_set

STALE_S = 3.0
"""Without a Sample for this long the node gets back what it has without us; without a Verdict nothing is lowered."""
SETTLED_S = 3.0
"""After a change the Samples show what the node may use now."""
SAME_S = 0.5
"""Two Samples' ages of one request agree within this."""
REST_S = 60.0
"""A knob that was refused, or that somebody else set, is left alone for so long."""


@dataclass
class Second:
    """What was seen since the last second was counted."""

    began_s: float
    tails: list[tuple[float, float]] = field(default_factory=list)
    """p95 in ms, and the requests per second that it is of."""


class GovernedNode:
    """All times are monotonic."""

    def __init__(self, name: str, pool: str, settings: GovernorSettings, target_ms: float) -> None:
        self.name, self._pool, self._settings, self._target_ms = name, pool, settings, target_ms
        self.levers: Levers | None = None
        self.wanted: Configuration | None = None
        """None: as it is without us."""
        self.why = "no Sample yet"
        self._batch_may_run = True
        self.held: dict[str, Held] = {}
        """Knobs that we have set, or are setting."""
        self.noted: dict[str, Value] = {}
        """Values that were recorded as intended, where nothing may be changed."""
        self._policy: Policy | None = None
        self._knobs: Knobs | None = None
        self._knobs_s = 0.0
        self._levers_of: Knobs | None = None
        """The report that `levers` was made of."""
        self._values: dict[str, Value] = {}
        """In force, by Orders."""
        self._left_alone_s: dict[str, float] = {}
        """Knob -> until then."""
        self._verdict: Verdict | None = None
        self._verdict_s = 0.0
        self._last: tuple[str, int] | None = None
        """Boot and number of the last Sample."""
        self._seen_s = float("-inf")
        self._changed_s = float("-inf")
        self._sampled_s = 0.0
        """Sum of the Samples' periods: the policy's clock."""
        self._lost_s = float("-inf")
        """By the policy's clock: requests of before then that are unanswered never will be."""
        self._gathered: list[Observation] = []
        self._gathered_s = 0.0
        self._second = Second(0.0)
        self._seconds = self._misses = 0
        self._shown = Observation(0.0)
        self._busy_cores: float | None = None

    # --- what comes in

    def see_verdict(self, verdict: Verdict, now_s: float) -> None:
        self._verdict, self._verdict_s = verdict, now_s

    def see_knobs(self, knobs: Knobs, now_s: float, has_sent: Callable[[str], bool]) -> None:
        """What an earlier run of ours set is in force, and taken up: the first decision puts it back or keeps it."""
        self._knobs, self._knobs_s = knobs, now_s
        self._values = {knob.name: knob.value for knob in knobs.knobs if knob.order and knob.value is not None}
        for knob in knobs.knobs:
            ours = knob.order and knob.by == GOVERNOR and can_be_set(knob) and not has_sent(knob.order)
            if ours and knob.name not in self.held and knob.value is not None:
                self.held[knob.name] = Held(knob.value, knob.order, float("-inf"))

    def see_change(self, change: Change, now_s: float) -> None:
        """What the node's wsengine did: an Order carried out or refused, a lease that ended."""
        knob, held = change.what, self.held.get(change.what)
        if change.cause == "ordered" and change.applied and change.after is not None:
            self._values[knob] = change.after
        elif change.cause in PUT_BACK and change.applied:
            self._values.pop(knob, None)
            if change.cause == "given_back":
                return
            if self.held.pop(knob, None) and change.cause not in ON_ITS_OWN:
                self._left_alone_s[knob] = now_s + REST_S
        elif change.cause == "refused" and held is not None and change.follows == held.order:
            del self.held[knob]
            self._left_alone_s[knob] = now_s + REST_S

    def see_sample(self, sample: Sample, now_s: float) -> None:
        """Decides. What was not measured is not nothing: such a Sample does not count."""
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
        self._decide(sample, now_s)

    def _decide(self, sample: Sample, now_s: float) -> None:
        cpu, traffic = sample.cpu, sample.traffic
        assert cpu is not None
        assert traffic is not None
        assert traffic.rps is not None
        assert self._busy_cores is not None
        assert cpu.cores is not None
        if not self._has_levers(max(1, round(cpu.cores)), now_s):
            self.wanted, self.why = None, "the node's wsengine lists no knob of the governor's"
            return
        assert self.levers is not None
        assert self._policy is not None
        self._sampled_s += sample.period_s
        in_force = self.levers.in_force(self._values)
        capacity_cores = self.levers.capacity_cores(in_force)
        if now_s - self._changed_s > SETTLED_S:  # a quota that is not ours may bind; the monitor reads it once a second
            capacity_cores = min(capacity_cores, cpu.cores)
        busy_share = min(1.0, self._busy_cores / capacity_cores)
        self._shown = Observation(
            self._sampled_s,
            traffic.rps,
            traffic.rt_p95_ms,
            traffic.rt_p99_ms,
            oldest_ms=self._oldest_ms(traffic),
            busy_shares=(busy_share,) * in_force.cores,
            power_w=self.levers.watts(in_force, self._busy_cores),
            interference=self._interference(now_s),
            in_force=in_force,
        )
        self._gathered.append(self._shown)
        self._gathered_s += sample.period_s
        if self._gathered_s >= self._policy.period_s - 1e-9:
            action = self._policy.decide(together(self._gathered))
            self._gathered, self._gathered_s = [], 0.0
            self._choose(action, now_s)

    # --- what follows from it

    def _has_levers(self, cores: int, now_s: float) -> bool:
        """Made anew, with a policy that knows nothing, when the node's knobs are others."""
        if self._knobs is None or now_s - self._knobs_s > FRESH_S:
            return False
        if self._knobs is self._levers_of:
            return self.levers is not None
        self._levers_of = self._knobs
        of = levers(self._settings, self._knobs, self.levers.hardware.cores if self.levers is not None else cores)
        if of is None:
            self.levers = None
            return False
        if of != self.levers:
            self.levers = of
            self._policy = ACTING[self._settings.policy](of.hardware, self._target_ms, of.candidates)
            self._gathered, self._gathered_s, self.wanted = [], 0.0, None
        return True

    def _oldest_ms(self, traffic: Traffic) -> float:
        """Age of the oldest unanswered request that waits for us: not of one that stayed unanswered while others were
        answered in time. When there are no others it would look like a queue for ever."""
        oldest_ms = traffic.oldest_unanswered_ms or 0.0
        began_s = self._sampled_s - oldest_ms / 1000.0
        if traffic.rt_p95_ms is None:
            return 0.0 if began_s <= self._lost_s else oldest_ms
        if traffic.rt_p95_ms <= self._target_ms < oldest_ms:
            self._lost_s = max(self._lost_s, began_s + SAME_S)
        return oldest_ms

    def _interference(self, now_s: float) -> bool:
        fresh = self._verdict if now_s - self._verdict_s < STALE_S else None
        return fresh is not None and fresh.state == "interference"

    def _choose(self, action: Action, now_s: float) -> None:
        assert self.levers is not None
        of = self.levers.hardware
        wanted, before = self.levers.nearest(Configuration(len(action.cores), action.clocks_mhz[0])), self.wanted
        if before is not None and of.speed(wanted) == of.speed(before):
            wanted = before
        lower = of.speed(wanted) < of.speed(before or of.highest)
        if lower and self._interference(now_s):
            wanted, why = before or of.highest, "interference: nothing is lowered"
        elif lower and now_s - self._verdict_s >= STALE_S:
            wanted, why = before or of.highest, "no Verdict: nothing is lowered"
        elif lower and now_s - self._changed_s < self._settings.lower_every_s:
            return
        else:
            why = action.why or f"chosen by {self._settings.policy}"
        if wanted != before:
            self._changed_s = now_s
        self.wanted, self.why, self._batch_may_run = wanted, why, action.batch

    def _count_second(self, now_s: float, rps: float, p95_ms: float | None) -> None:
        second = self._second
        if p95_ms is not None and rps > 0.0:
            second.tails.append((p95_ms, rps))
        if now_s - second.began_s < 1.0:
            return
        if second.tails:
            self._seconds += 1
            p95 = sum(ms * weight for ms, weight in second.tails) / sum(weight for _, weight in second.tails)
            self._misses += p95 > self._target_ms
        self._second = Second(now_s)

    def target_values(self, now_s: float) -> dict[str, Value]:
        """Knob -> the value that it should have; what is not in it is as it is without us."""
        if now_s - self._seen_s > STALE_S:
            self.wanted, self.why = None, "no Samples: as it is without the governor"
        if self.levers is None or self.wanted is None:
            return {}
        values: dict[str, Value] = {**self.levers.values(self.wanted)}
        if self.levers.batch is not None:
            values |= self.levers.batch.values(self.wanted.cores, self._batch_may_run)
        return {knob: value for knob, value in values.items() if knob in self.usable(now_s)}

    def usable(self, now_s: float) -> dict[str, KnobState]:
        """The knobs that may be set now: not one of somebody else's lease, nor one that is left alone."""
        if self._knobs is None or now_s - self._knobs_s > FRESH_S:
            return {}
        return {
            knob.name: knob
            for knob in self._knobs.knobs
            if knob.name in self._settings.may_set
            and can_be_set(knob)
            and knob.by in ("", GOVERNOR)
            and now_s >= self._left_alone_s.get(knob.name, float("-inf"))
        }

    @property
    def knows_its_knobs(self) -> bool:
        """What it would set can be told."""
        return self.levers is not None

    @property
    def decision(self) -> str:
        """Differs when another decision was made."""
        return f"{self.wanted} {self.levers is None}"

    def reason(self) -> str:
        """For the record: the policy's reason, and what it was decided by."""
        seen = self._shown
        p95 = "no p95" if seen.p95_ms is None else f"p95 {seen.p95_ms:.3g} ms"
        busy = "" if self._busy_cores is None else f", {self._busy_cores:.2f} cores busy"
        return f"{self.why}; {p95} of {self._target_ms:g} ms, {seen.rps:.3g} requests/s{busy}"

    def message(self, mode: Mode, now_unix_s: float, now_s: float) -> Governed:
        """What is published each second."""
        said = Governed(
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
            said.rps, said.rt_p95_ms, said.busy_cores = self._shown.rps, self._shown.p95_ms, self._busy_cores
        if self.levers is None:
            return said
        of, in_force = self.levers.hardware, self.levers.in_force(self._values)
        wanted = self.wanted or of.highest
        said.cores, said.most_cores, said.wanted_cores = in_force.cores, of.cores, wanted.cores
        said.clock_knob = self.levers.clock_knob
        if self.levers.batch is not None:
            said.batch_cores = self.levers.batch.in_force(self._values)
        if said.clock_knob:
            said.clock_share = in_force.clock_mhz / of.max_mhz
            said.wanted_clock_share = wanted.clock_mhz / of.max_mhz
        if said.clock_knob == "cpu.frequency":
            said.clock_mhz = in_force.clock_mhz
        if said.busy_cores is not None:
            said.watts = self.levers.watts(in_force, said.busy_cores)
            work = said.busy_cores * (in_force.clock_mhz / of.max_mhz if said.clock_mhz is not None else 1.0)
            said.most_watts, said.power_model = self.levers.watts(of.highest, work), self._settings.curve
        return said


def together(gathered: list[Observation]) -> Observation:
    """Several Samples as one Observation; percentiles are weighted by their requests."""
    last = gathered[-1]
    if len(gathered) == 1:
        return last
    tails = [(one.p95_ms, one.rps) for one in gathered if one.p95_ms is not None and one.rps > 0.0]
    weight = sum(rps for _, rps in tails)
    return Observation(
        last.time_s,
        mean([one.rps for one in gathered]),
        sum(ms * rps for ms, rps in tails) / weight if tails else None,
        last.p99_ms,
        oldest_ms=max(one.oldest_ms for one in gathered),
        busy_shares=(mean([mean(one.busy_shares) for one in gathered]),) * len(last.busy_shares),
        power_w=mean([one.power_w for one in gathered]),
        interference=any(one.interference for one in gathered),
        in_force=last.in_force,
    )
