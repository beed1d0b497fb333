"""A node that gets Orders: its last messages, the knobs that may be set, and those that the giver of Orders holds."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from slackwater.core.messages import PUT_BACK, Change, Knobs, KnobState, Sample, Verdict
from slackwater.orders.knobs import FRESH_S, ON_ITS_OWN, RELEASE, Held, Value, can_be_set

VERDICT_FRESH_S = 3.0
"""An older Verdict says nothing of now."""
log = logging.getLogger("slackwater.orders")


class OrderedNode(ABC):
    """One node, for one giver of Orders. All times are monotonic. Nothing is sent from here."""

    by: str
    """`by` of the giver's Orders."""
    rest_s = math.inf
    """How long a knob is left alone after a refusal or somebody else's change; inf: until `left_alone_s` is cleared."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.knobs: Knobs | None = None
        """The node's last report."""
        self.verdict: Verdict | None = None
        self.held: dict[str, Held] = {}
        """By knob."""
        self.left_alone_s: dict[str, float] = {}
        """Knob -> when it may be set again."""
        self._knobs_s = self._verdict_s = -math.inf

    @abstractmethod
    def may_set(self, knob: str) -> bool:
        """Whether the settings give this knob to the giver of Orders."""

    @abstractmethod
    def target_values(self, now_s: float) -> dict[str, Value]:
        """Knob -> the value that it should have; every other knob stays as it is without us."""

    @abstractmethod
    def reason(self) -> str:
        """The reason of `target_values`, in words."""

    @abstractmethod
    def see_sample(self, sample: Sample, now_s: float) -> None:
        """Takes a Sample into account."""

    def see_verdict(self, verdict: Verdict, now_s: float) -> None:
        self.verdict, self._verdict_s = verdict, now_s

    def see_knobs(self, knobs: Knobs, now_s: float, has_sent: Callable[[str], bool]) -> None:
        """Takes up the knobs that an earlier run set. A knob with an Order of this run (`has_sent`) is in `held`, or it
        was given back while this report was on its way."""
        self.knobs, self._knobs_s = knobs, now_s
        for knob in knobs.knobs:
            is_ours = knob.order and knob.by == self.by and can_be_set(knob) and not has_sent(knob.order)
            if is_ours and knob.name not in self.held and knob.value is not None:
                self.held[knob.name] = Held(knob.value, knob.order, -math.inf)
                self.take_up(knob)

    def take_up(self, knob: KnobState) -> None:  # noqa: B027
        """Called for each knob that an earlier run set."""

    def see_change(self, change: Change, now_s: float) -> bool:
        """Whether the node's wsengine put a knob back or refused its Order, so that it is held no more.

        A knob that we give back ourselves is no longer held when that Order is sent.
        """
        held = self.held.get(change.what)
        if held is None or change.cause == "given_back":
            return False
        refused = change.cause == "refused" and change.follows == held.order
        if not refused and not (change.applied and change.cause in PUT_BACK):
            return False
        del self.held[change.what]
        if change.cause not in ON_ITS_OWN:
            self.leave_alone(change.what, change.why, now_s)
        return True

    def leave_alone(self, knob: str, why: str, now_s: float) -> None:
        self.left_alone_s[knob] = now_s + self.rest_s
        log.warning("%s: %s: %s is left alone: %s", self.by, self.name, knob, why)

    def fresh_verdict(self, now_s: float) -> Verdict | None:
        return self.verdict if now_s - self._verdict_s < VERDICT_FRESH_S else None

    def fresh_knobs(self, now_s: float) -> Knobs | None:
        return self.knobs if now_s - self._knobs_s <= FRESH_S else None

    def usable(self, now_s: float) -> dict[str, KnobState]:
        """The knobs that may be set now, by name: none in somebody else's lease, none that is left alone."""
        knobs = self.fresh_knobs(now_s)
        return {
            knob.name: knob
            for knob in (knobs.knobs if knobs is not None else [])
            if can_be_set(knob)
            and self.may_set(knob.name)
            and knob.by in ("", self.by)
            and now_s >= self.left_alone_s.get(knob.name, -math.inf)
        }

    def value(self, knob: str) -> Value | None:
        """Its value by our last Order, or else by the node's report."""
        if knob in self.held:
            return self.held[knob].value
        states = self.knobs.knobs if self.knobs is not None else []
        return next((state.value for state in states if state.name == knob), None)

    def due(self, target: Mapping[str, Value], now_s: float) -> dict[str, Value]:
        """Knob -> the value to order now; `baseline` gives it back."""
        values = {
            knob: value for knob, value in target.items() if knob not in self.held or self.held[knob].value != value
        }
        usable = self.usable(now_s)
        return values | {knob: RELEASE for knob in self.held if knob not in target and knob in usable}
