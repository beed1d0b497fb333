"""A node that gets Orders: its last messages, the knobs that may be set, and those that the giver of Orders holds.

The node's report decides what is in force. What we remember of our own Orders decides only which reports are older than
the last of them, and are left out. So an Order whose answer was lost is held, and so is the Order before a refused one.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from slackwater.core.messages import PUT_BACK, Change, Knobs, KnobState, Sample, Verdict
from slackwater.orders.knobs import FRESH_S, ON_ITS_OWN, REACHES_S, RELEASE, Held, Value, can_be_set

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
        """Knob -> what is in force by our Orders, or will be."""
        self._in_force: dict[str, Held] = {}
        """By knob: what is in force by our Orders, as the node's last report or answer has it."""
        self._over_s: dict[str, float] = {}
        """Knob that is not held -> no Order of ours that was sent until then is in force any more."""
        self._released: dict[str, Held] = {}
        """Knob -> the Order that gives it back, until the node says that it has."""
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
    def reason(self, knob: str, value: Value) -> str:
        """The reason of an Order that `target_values` led to, in words."""

    @abstractmethod
    def see_sample(self, sample: Sample, now_s: float) -> None:
        """Takes a Sample into account."""

    def see_verdict(self, verdict: Verdict, now_s: float) -> None:
        self.verdict, self._verdict_s = verdict, now_s

    def see_knobs(self, knobs: Knobs, now_s: float, sent_s: Callable[[str], float | None]) -> None:
        """Holds what the report shows in force by our Orders. `sent_s`: when an Order was sent; -inf: by an earlier
        run; None: it is not to be held."""
        self.knobs, self._knobs_s, self._in_force = knobs, now_s, {}
        for knob in knobs.knobs:
            order_s = sent_s(knob.order) if knob.order and knob.by == self.by else None
            if order_s is None or knob.value is None:
                continue
            reported, held = Held(knob.value, knob.order, order_s), self.held.get(knob.name)
            self._in_force[knob.name] = reported
            last_s = held.sent_s if held is not None else self._over_s.get(knob.name)
            is_known = last_s is not None and (order_s <= last_s or (held is not None and held.order == knob.order))
            if is_known and not self._release_is_lost(knob.name, knobs, now_s):
                continue  # the report was on its way when we sent the last Order, or shows that Order
            self.held[knob.name] = reported
            if order_s == -math.inf:
                self.take_up(knob)

    def _release_is_lost(self, knob: str, knobs: Knobs, now_s: float) -> bool:
        """Whether a report that shows the knob in force is too late for the Order that gives it back to be on its way.
        The knob is held again then, so that another such Order is sent."""
        released = self._released.get(knob)
        is_late = released is not None and now_s >= released.sent_s + REACHES_S
        return released is not None and is_late and released.order not in (knobs.waiting or ())

    def hold(self, knob: str, value: Value, order: str, now_s: float, *, is_carried_out: bool = False) -> None:
        """An Order was sent. `is_carried_out`: the node has answered that it did so."""
        if value == RELEASE:
            self.held.pop(knob, None)
            self._over_s[knob] = now_s
            if not is_carried_out:
                self._released[knob] = Held(value, order, now_s)
        else:
            self.held[knob] = Held(value, order, now_s)
            self._over_s.pop(knob, None)
            self._released.pop(knob, None)

    def take_up(self, knob: KnobState) -> None:  # noqa: B027
        """Called for each knob that an earlier run set."""

    def see_change(self, change: Change, now_s: float) -> bool:
        """Whether the node's wsengine put a knob back or refused its Order, so that this Order is held no more. After a
        refusal the Order that was in force before is held again.

        A knob that we give back ourselves is no longer held when that Order is sent.
        """
        held = self.held.get(change.what)
        if change.applied and change.cause in PUT_BACK:
            self._in_force.pop(change.what, None)
            self._released.pop(change.what, None)
        elif change.applied and change.cause == "ordered" and held is not None and change.follows == held.order:
            self._in_force[change.what] = held
        if held is None or change.cause == "given_back":
            return False
        refused = change.cause == "refused" and change.follows == held.order
        if not refused and not (change.applied and change.cause in PUT_BACK):
            return False
        del self.held[change.what]
        if change.what in self._in_force:
            self.held[change.what] = self._in_force[change.what]
        elif not refused and change.follows in ("", held.order):
            self._over_s[change.what] = held.sent_s
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

    def _not_theirs(self, now_s: float) -> dict[str, KnobState]:
        """The knobs that nobody else holds now, by name."""
        knobs = self.fresh_knobs(now_s)
        return {knob.name: knob for knob in (knobs.knobs if knobs is not None else []) if knob.by in ("", self.by)}

    def is_left_alone(self, knob: str, now_s: float) -> bool:
        return now_s < self.left_alone_s.get(knob, -math.inf)

    def usable(self, now_s: float) -> dict[str, KnobState]:
        """The knobs that may be set now, by name: none in somebody else's lease, none that is left alone."""
        return {
            name: knob
            for name, knob in self._not_theirs(now_s).items()
            if can_be_set(knob) and self.may_set(name) and not self.is_left_alone(name, now_s)
        }

    def value(self, knob: str) -> Value | None:
        """Its value by our last Order, or else by the node's report."""
        if knob in self.held:
            return self.held[knob].value
        states = self.knobs.knobs if self.knobs is not None else []
        return next((state.value for state in states if state.name == knob), None)

    def due(self, target: Mapping[str, Value], now_s: float) -> dict[str, Value]:
        """Knob -> the value to order now; `baseline` gives it back, also where the knob is to be left alone."""
        values = {
            knob: value for knob, value in target.items() if knob not in self.held or self.held[knob].value != value
        }
        releasable = self._not_theirs(now_s)
        return values | {knob: RELEASE for knob in self.held if knob not in target and knob in releasable}
