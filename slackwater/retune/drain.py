"""Sets a node's values while it is drained: no requests, nothing in flight, Orders, their answers, the way back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from slackwater.core.messages import Change, ChangeCause
from slackwater.orders.access import BusAccess, NotNow
from slackwater.orders.knobs import Value

ANSWER_S = 40.0
"""Test, reload and reading back, and the node's own shortest time between reloads."""
RAMP_S = 15.0
SHOWN_S = 3.0
"""A drain that the balancer does not show by then has been refused by the guard."""
STOPPED = "the pool is paused, or only observes"


@dataclass
class ApplyOutcome:
    """The wsengine's Changes by knob, and the trouble that kept values from being set, in words."""

    changes: dict[str, Change] = field(default_factory=dict)
    unanswered: dict[str, str] = field(default_factory=dict)
    """Knob -> id of its Order, without an answer."""
    trouble: str = ""


async def drain_and_apply(
    access: BusAccess,
    node: str,
    values: Mapping[str, Value],
    reasons: Mapping[str, str],
    drain_s: float,
    cause: ChangeCause = "second_stage",
    *,
    must_stop: Callable[[], bool] = lambda: False,
) -> ApplyOutcome:
    """Sets values that need a reload, and gives the node its requests back whatever happens.

    `reasons`: of the Orders, by knob. `must_stop`: whether nothing may be set any more; nothing is waited for then.
    """
    outcome = ApplyOutcome()

    async def wait(ready: Callable[[], bool], within_s: float) -> bool:
        return await access.wait(lambda: must_stop() or ready(), within_s) and not must_stop()

    reason = ", ".join(f"{knob} = {value}" for knob, value in values.items())
    before = access.cycles()
    try:
        await access.request("drain", node, reason, for_s=min(60.0, drain_s + ANSWER_S))
    except NotNow as error:
        outcome.trouble = f"it cannot be drained: {error}"
        return outcome
    try:
        # A Cycle from before the request may show a weight of 0 that is long gone.
        if not await wait(lambda: access.cycles() > before and _is_drained(access, node), SHOWN_S):
            outcome.trouble = STOPPED if must_stop() else "it cannot be drained: too many others are drained already"
            return outcome
        # The Cycle that shows the weight was counted before it was set: the next one counts. Requests that are still
        # in flight after `drain_s` are long. The graceful reload finishes them, as it does those that the other
        # servers could not carry.
        drained = access.cycles()
        await wait(lambda: access.cycles() > drained and (_keeps_some(access, node) or _is_idle(access, node)), drain_s)
        orders: dict[str, str] = {}
        try:
            for knob, value in values.items():
                if must_stop():
                    raise NotNow(STOPPED)
                orders[knob] = await access.order(node, knob, value, reasons[knob], cause)
        except NotNow as error:
            outcome.trouble = str(error)
        await wait(lambda: all(access.answer(order) or access.is_lost(order) for order in orders.values()), ANSWER_S)
        for knob, order in orders.items():
            if (made := access.answer(order)) is not None:
                outcome.changes[knob] = made
            else:
                outcome.unanswered[knob] = order
        if outcome.unanswered and not outcome.trouble:
            outcome.trouble = f"no answer to the Order for {', '.join(outcome.unanswered)}"
    finally:
        try:
            await access.request("undo", node, reason, what="drain")
        except NotNow as error:
            outcome.trouble = outcome.trouble or f"its drain ends by itself: {error}"
    await wait(lambda: _is_back(access, node), RAMP_S)
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
    return server is None or server.weight >= server.full_weight or server.weight == server.wanted > 0
