"""Sets one node's values while it is drained: no requests, nothing in flight, Orders, their answers, the way back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from slackwater.core.messages import Change, ChangeCause, ServerState
from slackwater.orders.access import NotNow, OrderAccess
from slackwater.orders.knobs import Value

ANSWER_S = 40.0
"""Test, reload and reading back, and the node's own shortest time between reloads."""
RAMP_S = 15.0
SHOWN_S = 3.0
"""A drain that the balancer does not show by then has been refused by the guard."""


class ClusterAccess(OrderAccess, Protocol):
    """What the second stage of a pool needs of lbengine, the nodes' wsengines and the clock.

    `slackwater.orders.access.BusAccess` has it over the bus.
    """

    async def request(self, action: str, node: str, why: str, **fields: float | str) -> None:
        """Asks lbengine for something (`drain`, `limit`, `hold`, `undo`, with its fields). Raises NotNow."""

    def server(self, node: str) -> ServerState | None:
        """The node's server as the last Cycle showed it."""

    def cycles(self) -> int:
        """How many Cycles came so far."""

    def answer(self, order: str) -> Change | None:
        """The Change by which the node's wsengine answered an Order."""

    def is_lost(self, order: str) -> bool:
        """Whether the node's wsengine reports that this Order neither waits nor is in force."""

    async def wait(self, ready: Callable[[], bool], within_s: float) -> bool:
        """Waits for something to become true; False when it does not in time."""


@dataclass
class ApplyOutcome:
    """What came of it: the wsengine's Changes by knob, and in words what kept it from being done."""

    changes: dict[str, Change] = field(default_factory=dict)
    trouble: str = ""


async def drain_and_apply(
    cluster: ClusterAccess,
    node: str,
    values: Mapping[str, Value],
    why: str,
    drain_s: float,
    cause: ChangeCause = "second_stage",
) -> ApplyOutcome:
    """Sets values that need a reload, and gives the node its requests back whatever happens."""
    outcome = ApplyOutcome()
    reason = ", ".join(f"{knob} = {value}" for knob, value in values.items())
    before = cluster.cycles()
    try:
        await cluster.request("drain", node, reason, for_s=min(60.0, drain_s + ANSWER_S))
    except NotNow as error:
        outcome.trouble = f"it cannot be drained: {error}"
        return outcome
    try:
        # A Cycle from before the request may show a weight of 0 that is long gone.
        if not await cluster.wait(lambda: cluster.cycles() > before and _is_drained(cluster, node), SHOWN_S):
            outcome.trouble = "it cannot be drained: the guard does not allow it now"
            return outcome
        # The Cycle that shows the weight was counted before it was set: the next one counts. What is still in flight
        # after `drain_s` is long: the graceful reload finishes it, as it does what the others could not carry.
        drained = cluster.cycles()
        await cluster.wait(
            lambda: cluster.cycles() > drained and (_keeps_some(cluster, node) or _is_idle(cluster, node)), drain_s
        )
        try:
            orders = {knob: await cluster.order(node, knob, value, why, cause) for knob, value in values.items()}
        except NotNow as error:
            outcome.trouble = str(error)
            return outcome
        await cluster.wait(
            lambda: all(cluster.answer(order) or cluster.is_lost(order) for order in orders.values()), ANSWER_S
        )
        outcome.changes = {knob: made for knob, order in orders.items() if (made := cluster.answer(order)) is not None}
        if missing := [knob for knob in orders if knob not in outcome.changes]:
            outcome.trouble = f"no answer to the Order for {', '.join(missing)}"
    finally:
        try:
            await cluster.request("undo", node, reason, what="drain")
        except NotNow as error:
            outcome.trouble = outcome.trouble or f"its drain ends by itself: {error}"
    await cluster.wait(lambda: _is_back(cluster, node), RAMP_S)
    return outcome


def _is_drained(cluster: ClusterAccess, node: str) -> bool:
    """It has no weight, or no more than the others cannot carry."""
    server = cluster.server(node)
    return server is not None and (server.weight == 0 or _keeps_some(cluster, node))


def _keeps_some(cluster: ClusterAccess, node: str) -> bool:
    """It is drained as far as the others can carry its load, which is not wholly."""
    server = cluster.server(node)
    return server is not None and 0 < server.weight == server.wanted and server.cause == "drained"


def _is_idle(cluster: ClusterAccess, node: str) -> bool:
    server = cluster.server(node)
    return server is not None and not server.in_flight and not server.queue


def _is_back(cluster: ClusterAccess, node: str) -> bool:
    """It stands where the law wants it; one that the law itself drains has nothing to come back to."""
    server = cluster.server(node)
    return server is None or server.weight >= server.baseline or server.weight == server.wanted > 0
