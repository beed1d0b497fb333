"""Sets a node's values while it is drained: no requests, nothing in flight, Orders, their answers, the way back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slackwater.core.messages import Change, ChangeCause
from slackwater.orders.access import BusAccess, NotNow
from slackwater.orders.knobs import Value

ANSWER_S = 40.0
"""Test, reload and reading back, and the node's own shortest time between reloads."""
RAMP_S = 15.0
SHOWN_S = 3.0
"""A drain that the balancer does not show by then has been refused by the guard."""


@dataclass
class ApplyOutcome:
    """The wsengine's Changes by knob, and the trouble that kept values from being set, in words."""

    changes: dict[str, Change] = field(default_factory=dict)
    trouble: str = ""


async def drain_and_apply(
    access: BusAccess,
    node: str,
    values: Mapping[str, Value],
    why: str,
    drain_s: float,
    cause: ChangeCause = "second_stage",
) -> ApplyOutcome:
    """Sets values that need a reload, and gives the node its requests back whatever happens."""
    outcome = ApplyOutcome()
    reason = ", ".join(f"{knob} = {value}" for knob, value in values.items())
    before = access.cycles()
    try:
        await access.request("drain", node, reason, for_s=min(60.0, drain_s + ANSWER_S))
    except NotNow as error:
        outcome.trouble = f"it cannot be drained: {error}"
        return outcome
    try:
        # A Cycle from before the request may show a weight of 0 that is long gone.
        if not await access.wait(lambda: access.cycles() > before and _is_drained(access, node), SHOWN_S):
            outcome.trouble = "it cannot be drained: the guard does not allow it now"
            return outcome
        # The Cycle that shows the weight was counted before it was set: the next one counts. Requests that are still
        # in flight after `drain_s` are long. The graceful reload finishes them, as it does those that the other
        # servers could not carry.
        drained = access.cycles()
        await access.wait(
            lambda: access.cycles() > drained and (_keeps_some(access, node) or _is_idle(access, node)), drain_s
        )
        try:
            orders = {knob: await access.order(node, knob, value, why, cause) for knob, value in values.items()}
        except NotNow as error:
            outcome.trouble = str(error)
            return outcome
        await access.wait(
            lambda: all(access.answer(order) or access.is_lost(order) for order in orders.values()), ANSWER_S
        )
        outcome.changes = {knob: made for knob, order in orders.items() if (made := access.answer(order)) is not None}
        if missing := [knob for knob in orders if knob not in outcome.changes]:
            outcome.trouble = f"no answer to the Order for {', '.join(missing)}"
    finally:
        try:
            await access.request("undo", node, reason, what="drain")
        except NotNow as error:
            outcome.trouble = outcome.trouble or f"its drain ends by itself: {error}"
    await access.wait(lambda: _is_back(access, node), RAMP_S)
    return outcome


def _is_drained(access: BusAccess, node: str) -> bool:
    """It has no weight, or no more than the others cannot carry."""
    server = access.server(node)
    return server is not None and (server.weight == 0 or _keeps_some(access, node))


def _keeps_some(access: BusAccess, node: str) -> bool:
    """It is drained as far as the others can carry its load, which is not wholly."""
    server = access.server(node)
    return server is not None and 0 < server.weight == server.wanted and server.cause == "drained"


def _is_idle(access: BusAccess, node: str) -> bool:
    server = access.server(node)
    return server is not None and not server.in_flight and not server.queue


def _is_back(access: BusAccess, node: str) -> bool:
    """It stands where the law wants it; a server that the law itself drains has no weight to come back to."""
    server = access.server(node)
    return server is None or server.weight >= server.baseline or server.weight == server.wanted > 0
