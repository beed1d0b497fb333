"""Knobs of nodes: their values, which of them may be set, and which we hold."""

from __future__ import annotations

from dataclasses import dataclass

from slackwater.core.messages import ChangeCause, Knobs, KnobState

Value = int | float | str
"""The value of a knob; messages check its bounds (`slackwater.core.messages.fields.Value`)."""
FREQUENCY = "cpu.frequency"
RELEASE = "baseline"
"""The value that ends a lease."""
FRESH_S = 15.0
"""A wsengine without messages for this long is not there."""
REACHES_S = 2.0
"""A published Order has reached its node by then, or never will."""
RENEW_AT = 1 / 3
"""A lease is renewed when this share of it has passed: two renewals may get lost."""
ON_ITS_OWN: frozenset[ChangeCause] = frozenset(("lease_ended", "engine_ended", "engine_died"))
"""Causes of putting a knob back that are not about the knob: it may be set again in the same episode."""


@dataclass
class Held:
    """A knob that we have set, or are setting."""

    value: Value
    order: str
    """Id of the last Order."""
    sent_s: float
    """When it was sent, on a monotonic clock."""


def can_be_set(knob: KnobState) -> bool:
    """Whether the node's wsengine can set it: a reason in words alone counts as a cause."""
    return knob.cause is None and not knob.why


def allows(knob: KnobState, lowest: int, highest: int) -> bool:
    """Whether the node lets Orders set the numbers from `lowest` to `highest`."""
    return knob.lowest is not None and knob.highest is not None and knob.lowest <= lowest <= highest <= knob.highest


def reloads(knobs: Knobs | None, name: str) -> bool:
    """Whether setting a knob makes the node's web server reload; true where the node has not reported yet."""
    return knobs is None or any(knob.name == name and knob.reloads for knob in knobs.knobs)
