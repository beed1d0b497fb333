"""A node as the second stage sees it: its signs of a neighbour, and the values that its knobs should have."""

from __future__ import annotations

from collections import deque

from slackwater.core.config import RetuneSettings
from slackwater.core.messages import Change, KnobState, Sample, Verdict
from slackwater.orders.knobs import FREQUENCY, ON_ITS_OWN, RELEASE, Value
from slackwater.orders.node import OrderedNode
from slackwater.retune.cpu_starvation import CpuStarvation
from slackwater.retune.knowledge import MAXCONN, Knowledge, Rule, value_for
from slackwater.retune.search import NodeSearch, Range
from slackwater.retune.stage import Affected, Stage

BY = "retune"
SLACK_FOR_S = 60.0
"""Calm with latency to spare for this long before the frequency may go down."""
ENOUGH = 5
"""Verdicts that make a median of response times."""


class RetunedNode(OrderedNode):
    """All times are monotonic."""

    by = BY

    def __init__(self, name: str, settings: RetuneSettings, knowledge: Knowledge) -> None:
        super().__init__(name)
        self.stage = Stage(settings)
        self.starvation = CpuStarvation()
        self.search = NodeSearch()
        self.next_reload_s = 0.0
        """The next reload is not before then."""
        self.was_taken_up = False
        """An earlier run of ours had set its knobs."""
        self.full_weight_since_s: float | None = None
        """Since when its server has had its baseline weight; None while it has another weight."""
        self._settings, self._knowledge = settings, knowledge
        self._p95s: deque[tuple[float, float]] = deque(maxlen=1000)
        """When each of the last Verdicts came, and its p95 response time in ms."""
        self._calm_since_s: float | None = None
        """Since when it has been calm with latency to spare."""
        self._is_lowered = False
        """Its frequency was lowered since the last episode, because of that."""
        self._cpus = 1
        """CPUs that its web server may run on; 1 where that is not known."""

    def may_set(self, knob: str) -> bool:
        return knob not in self._settings.leave_alone

    # --- messages

    def see_sample(self, sample: Sample, now_s: float) -> None:  # noqa: ARG002
        self.starvation.see(sample)
        if sample.sched is not None:
            self._cpus = sample.sched.cpus or self._cpus

    def see_verdict(self, verdict: Verdict, now_s: float) -> None:
        super().see_verdict(verdict, now_s)
        if verdict.rt_p95_ms is not None:
            self._p95s.append((now_s, verdict.rt_p95_ms))

    def take_up(self, knob: KnobState) -> None:
        """Takes the node for one in the second stage, for the reason of the earlier run."""
        self.was_taken_up = True
        if (rule := self._knowledge.get(knob.name)) is not None:
            severities = [severity for severity in rule.severity if value_for(rule, knob, severity) == knob.value]
            self.stage.adopt(severities[0] if severities else 0.0, "taken over from the run before")

    def see_change(self, change: Change, now_s: float) -> bool:
        was_held = super().see_change(change, now_s)
        if change.cause == "given_back":  # the answer to an Order may come after the drain for it has ended
            return self.held.pop(change.what, None) is not None
        if was_held:
            self.search.settled_s = None
            if change.cause in ON_ITS_OWN:
                self.next_reload_s = max(self.next_reload_s, now_s + self._settings.lease_s / 2)
        return was_held

    # --- decisions

    def entered_or_left(self) -> None:
        """An episode begins or ends: nothing counts any more that was learnt for the last one."""
        self.left_alone_s.clear()
        self._is_lowered = False
        self.search = NodeSearch()

    def affected(self, now_s: float) -> Affected | None:
        """The sign of a neighbour: the detector's Verdict, or the node's own CPU starvation."""
        verdict, starvation = self.fresh_verdict(now_s), self.starvation
        if verdict is not None and verdict.state == "interference":
            first = verdict.path[0] if verdict.path else "no reason given"
            lasted_s = max(0.0, verdict.time_unix_s - verdict.since_unix_s)
            return Affected(verdict.severity, f"interference: {first}", now_s - lasted_s)
        if verdict is None or verdict.state == "unknown" or not starvation.starved:
            return None
        return Affected(
            starvation.severity,
            f"{starvation.waiting:.1f} threads a core wait although its work needs only"
            f" {starvation.used or 0.0:.0%} of its CPU",
        )

    def target_values(self, now_s: float) -> dict[str, Value]:
        return self._episode_values(now_s) if self.stage.entered else self._calm_values(now_s)

    def _episode_values(self, now_s: float) -> dict[str, Value]:
        values: dict[str, Value] = {}
        searches, tried = self._settings.policy == "search", self.search.values or {}
        for name, knob in self.usable(now_s).items():
            value: Value | None = None
            if name in tried:
                value = tried[name] if tried[name] != knob.baseline else None
            elif (rule := self._knowledge.get(name)) is not None and name != MAXCONN and not (searches and rule.factor):
                # What is turned stays so for the episode, whatever becomes of the CPUs.
                may_turn = name in self.held or self._has_enough_cpus(rule)
                value = value_for(rule, knob, self.stage.severity) if may_turn else None
            if value is not None:
                values[name] = value
        return values

    def _calm_values(self, now_s: float) -> dict[str, Value]:
        """A lower frequency, when calm and with latency to spare; off by default."""
        settings, verdict = self._settings, self.fresh_verdict(now_s)
        is_calm = verdict is not None and verdict.state == "calm" and not self.starvation.starved
        p95_ms = verdict.rt_p95_ms if verdict is not None and is_calm else None
        if p95_ms is None or p95_ms >= settings.calm_below_p95_ms:
            self._calm_since_s = None
            return {}
        self._calm_since_s = now_s if self._calm_since_s is None else self._calm_since_s
        frequency = settings.calm_frequency
        if not frequency or now_s - self._calm_since_s < SLACK_FOR_S or FREQUENCY not in self.usable(now_s):
            return {}
        self._is_lowered = True
        return {FREQUENCY: int(frequency) if frequency.isdigit() else frequency}

    def _has_enough_cpus(self, rule: Rule) -> bool:
        return self._cpus >= rule.least_cpus

    def reason(self, knob: str, value: Value) -> str:
        if self.stage.entered:
            search = f"; {self.search.status}" if self.search.status else ""
            return f"{self.stage.why}; severity {self.stage.severity:.0%}{search}"
        if value != RELEASE:
            return "calm, with latency to spare"
        is_lowered = knob == FREQUENCY and self._is_lowered
        over = (
            "a recheck with its own value: is the neighbour still there?"
            if self.stage.on_recheck
            else "the episode is over"
        )
        return "no longer calm with latency to spare" if is_lowered else over

    # --- for a search

    def ranges(self, now_s: float) -> dict[str, Range]:
        """The knobs that can be searched over: numbers that the knowledge base has a factor for."""
        ranges = {}
        for name, knob in self.usable(now_s).items():
            rule = self._knowledge.get(name)
            if rule is None or not rule.factor or knob.lowest is None or knob.highest is None:
                continue
            if isinstance(knob.baseline, int) and knob.lowest <= knob.baseline <= knob.highest:
                expected = 1 if rule.factor[-1] > 1.0 and self._has_enough_cpus(rule) else -1
                ranges[name] = Range(knob.lowest, knob.highest, knob.baseline, expected)
        return ranges

    def known_values(self, names: set[str], severity: float, now_s: float) -> dict[str, int]:
        """The knowledge base's values for these knobs, as far as it has any for such a machine."""
        usable = self.usable(now_s)
        rules = {name: self._knowledge[name] for name in names & usable.keys()}
        values = {
            name: value_for(rule, usable[name], severity) for name, rule in rules.items() if self._has_enough_cpus(rule)
        }
        return {name: value for name, value in values.items() if isinstance(value, int)}

    def cost_ms(self, since_s: float) -> float | None:
        """The median p95 response time of the Verdicts since then, in ms; None: there are too few."""
        p95s_ms = sorted(p95_ms for came_s, p95_ms in self._p95s if came_s >= since_s)
        return p95s_ms[len(p95s_ms) // 2] if len(p95s_ms) >= ENOUGH else None
