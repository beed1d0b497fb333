"""What is known of one node, and which values its knobs should have. Decides without touching anything."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from slackwater.core.messages import PUT_BACK, Change, Knobs, KnobState, Verdict
from slackwater.orders.knobs import FRESH_S, ON_ITS_OWN, Held, Value, can_be_set
from slackwater.retune.cpu_starvation import CpuStarvation
from slackwater.retune.knowledge import MAXCONN, Knowledge, value_for
from slackwater.retune.search import Climb, Range
from slackwater.retune.stage import Affected, Stage

BY = "retune"


@dataclass
class Node:
    """One node. All times are monotonic."""

    name: str
    stage: Stage
    starvation: CpuStarvation = field(default_factory=CpuStarvation)
    verdict: Verdict | None = None
    verdict_s: float = 0.0
    knobs: Knobs | None = None
    knobs_s: float = 0.0
    held: dict[str, Held] = field(default_factory=dict)
    left_alone: dict[str, str] = field(default_factory=dict)
    """Knobs that are left alone until this episode is over, with the reason."""
    noted: dict[str, Value] = field(default_factory=dict)
    """Values that were recorded as intended, where nothing may be changed."""
    next_reload_s: float = 0.0
    """The next reload is not before then."""
    p95_ms: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=1000))
    """(when, p95 response time) of the last Verdicts."""
    taken_over: bool = False
    """An earlier run of ours had set its knobs."""
    not_ours: frozenset[str] = frozenset()
    """Knobs that the settings give to nobody, or to another part of the controller."""
    searches: bool = False
    """Numbers are found by trying, not by the knowledge base."""
    climb: Climb | None = None
    tried: dict[str, int] | None = None
    """What is being measured."""
    settled_s: float | None = None
    """Since when the values that are measured are in force."""
    full_weight_since_s: float | None = None
    """Since when its server has had its baseline weight; None while it has another one."""
    searched_at: float = 0.0
    """The severity at which the search began."""
    search_over: bool = False
    search_status: str = ""
    """Where the search stands, for the reasons of Orders."""
    announce_search_end: bool = False
    """The next Order is the first one after the search."""
    calm_since_s: float | None = None

    @property
    def searching(self) -> bool:
        return self.climb is not None and not self.search_over

    def forget_search(self) -> None:
        """A new episode, a new search."""
        self.climb, self.tried, self.settled_s, self.search_over, self.search_status = None, None, None, False, ""
        self.announce_search_end = False

    def see_verdict(self, verdict: Verdict, now_s: float) -> None:
        self.verdict, self.verdict_s = verdict, now_s
        if verdict.rt_p95_ms is not None:
            self.p95_ms.append((now_s, verdict.rt_p95_ms))

    def see_knobs(self, knobs: Knobs, knowledge: Knowledge, now_s: float, has_sent: Callable[[str], bool]) -> None:
        """Takes up what an earlier run of ours has set, as if the node were in the second stage for the same reason.

        By an Order of this run (`has_sent`) it is in `held`, or it was given back while this message was on its way.
        """
        self.knobs, self.knobs_s = knobs, now_s
        for knob in knobs.knobs:
            ours = knob.order and knob.by == BY and can_be_set(knob) and not has_sent(knob.order)
            if ours and knob.name not in self.held and knob.value is not None:
                self.held[knob.name] = Held(knob.value, knob.order, now_s - 1e6)
                self.taken_over = True
                rule = knowledge.get(knob.name)
                if rule is not None:
                    rows = [at for at in rule.severity if value_for(rule, knob, at) == knob.value]
                    self.stage.adopt(rows[0] if rows else 0.0, "taken over from the run before")

    def see_change(self, change: Change, now_s: float, lease_s: float) -> None:
        """What the node's wsengine did of itself: a lease that ended, an operator who changed it."""
        held = self.held.get(change.what)
        if held is None or change.applied is False or not self._is_put_back(change, held):
            return
        del self.held[change.what]
        self.settled_s = None
        if change.cause == "given_back":
            return
        if change.cause in ON_ITS_OWN:
            self.next_reload_s = max(self.next_reload_s, now_s + lease_s / 2)
        else:
            self.left_alone[change.what] = change.why

    def _is_put_back(self, change: Change, held: Held) -> bool:
        """An older wsengine gives no cause: its value shows it."""
        if change.cause is not None:
            return change.cause in PUT_BACK
        knobs = self.knobs.knobs if self.knobs is not None else []
        return any(knob.name == change.what and change.after == knob.baseline != held.value for knob in knobs)

    def affected(self, now_s: float, fresh_s: float) -> Affected | None:
        """By the detector's Verdict if it is fresher than `fresh_s`, or by the node's own CPU starvation."""
        verdict = self.verdict if self.verdict is not None and now_s - self.verdict_s < fresh_s else None
        if verdict is not None and verdict.state == "interference":
            first = verdict.path[0] if verdict.path else "no reason given"
            lasted_s = max(0.0, verdict.time_unix_s - verdict.since_unix_s)
            return Affected(verdict.severity, f"interference: {first}", now_s - lasted_s)
        if verdict is not None and verdict.state != "unknown" and self.starvation.starved:
            used = self.starvation.used or 0.0
            return Affected(
                self.starvation.severity,
                f"{self.starvation.waiting:.1f} threads a core wait although its work needs only {used:.0%} of its CPU",
            )
        return None

    def usable(self, now_s: float) -> dict[str, KnobState]:
        """The knobs that may be set now, by name."""
        if self.knobs is None or now_s - self.knobs_s > FRESH_S:
            return {}
        return {knob.name: knob for knob in self.knobs.knobs if self._may_set(knob)}

    def _may_set(self, knob: KnobState) -> bool:
        return can_be_set(knob) and knob.name not in self.left_alone and knob.name not in self.not_ours

    def wanted(self, knowledge: Knowledge, now_s: float) -> dict[str, Value]:
        """The values that the knobs should have in the second stage; what is not named is as it is without us."""
        found: dict[str, Value] = {}
        for name, knob in self.usable(now_s).items():
            value: Value | None = None
            if self.tried is not None and name in self.tried:
                value = self.tried[name] if self.tried[name] != knob.baseline else None
            elif name in knowledge and name != MAXCONN and not (self.searches and knowledge[name].factor):
                value = value_for(knowledge[name], knob, self.stage.severity)
            if value is not None:
                found[name] = value
        return found

    def ranges(self, knowledge: Knowledge, now_s: float) -> dict[str, Range]:
        """The knobs that can be searched over: numbers that the knowledge base has a factor for."""
        found = {}
        for name, knob in self.usable(now_s).items():
            rule = knowledge.get(name)
            if rule is None or not rule.factor or knob.lowest is None or knob.highest is None:
                continue
            if isinstance(knob.baseline, int) and knob.lowest <= knob.baseline <= knob.highest:
                expected = 1 if rule.factor[-1] > 1.0 else -1
                found[name] = Range(knob.lowest, knob.highest, knob.baseline, expected)
        return found

    def cost_ms(self, since_s: float) -> float | None:
        """The median p95 response time (ms) of the Verdicts since then; None with too few of them."""
        recent = sorted(ms for at_s, ms in self.p95_ms if at_s >= since_s)
        return recent[len(recent) // 2] if len(recent) >= 5 else None
