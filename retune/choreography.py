"""One node's turn: no requests, nothing in flight, the Orders, what came of them, and the ramp back.

The door to the bus is handed in; `retune/service.py` has the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from retune.knowledge import Value
from slackwater.messages import Change, ChangeCause, ServerState

ANSWER_S = 40.0
"""Test, reload and reading back, and the node's own shortest time between reloads."""
RAMP_S = 15.0
SHOWN_S = 3.0
"""A drain that the balancer does not show by then has been refused by the guard."""


class NotNow(Exception):
    """lbengine refused, or nobody answers; the text says what."""


class Door(Protocol):
    """The bus and the clock."""

    async def ask(self, action: str, node: str, why: str, for_s: float = 0.0) -> None:
        """Asks lbengine to `drain`, or to `undo` that; raises NotNow."""

    async def order(self, node: str, knob: str, value: Value, why: str, cause: ChangeCause) -> str:
        """Records and sends an Order; its id. Raises NotNow when it cannot be recorded."""

    def server(self, node: str) -> ServerState | None:
        """The node's server as the last Cycle showed it."""

    def cycles(self) -> int:
        """How many Cycles came so far."""

    def answer(self, order: str) -> Change | None:
        """What the node's wsengine said of an Order."""

    async def wait(self, ready: Callable[[], bool], within_s: float) -> bool:
        """Waits for something to become true; False when it does not in time."""


@dataclass
class Outcome:
    """What came of a turn: the wsengine's Changes by knob, and in words what kept it from being done."""

    changes: dict[str, Change] = field(default_factory=dict)
    trouble: str = ""


async def turn(
    door: Door,
    node: str,
    values: Mapping[str, Value],
    why: str,
    drain_s: float,
    cause: ChangeCause = "second_stage",
) -> Outcome:
    """Retunes one node with reloads, and gives it back its requests whatever happens."""
    outcome = Outcome()
    told = f"{', '.join(f'{knob} = {value}' for knob, value in values.items())}"
    try:
        await door.ask("drain", node, told, min(60.0, drain_s + ANSWER_S))
    except NotNow as error:
        outcome.trouble = f"it cannot be drained: {error}"
        return outcome
    try:
        if not await door.wait(lambda: _is_drained(door, node), SHOWN_S):
            outcome.trouble = "it cannot be drained: the guard does not allow it now"
            return outcome
        # The Cycle that shows the weight was counted before it was set: the next one counts. What is still in flight
        # after `drain_s` is long: the graceful reload finishes it, as it does what the others could not carry.
        drained = door.cycles()
        await door.wait(lambda: door.cycles() > drained and (_keeps_some(door, node) or _is_idle(door, node)), drain_s)
        try:
            orders = {knob: await door.order(node, knob, value, why, cause) for knob, value in values.items()}
        except NotNow as error:
            outcome.trouble = str(error)
            return outcome
        await door.wait(lambda: all(door.answer(order) for order in orders.values()), ANSWER_S)
        outcome.changes = {knob: said for knob, order in orders.items() if (said := door.answer(order)) is not None}
        if missing := [knob for knob in orders if knob not in outcome.changes]:
            outcome.trouble = f"no answer to the Order for {', '.join(missing)} within {ANSWER_S:g} s"
    finally:
        try:
            await door.ask("undo", node, told)
        except NotNow as error:
            outcome.trouble = outcome.trouble or f"its drain ends by itself: {error}"
    await door.wait(lambda: _is_back(door, node), RAMP_S)
    return outcome


def _is_drained(door: Door, node: str) -> bool:
    """It has no weight, or no more than the others cannot carry."""
    server = door.server(node)
    return server is not None and (server.weight == 0 or _keeps_some(door, node))


def _keeps_some(door: Door, node: str) -> bool:
    """It is drained as far as the others can carry its load, which is not wholly."""
    server = door.server(node)
    return server is not None and 0 < server.weight == server.wanted and server.cause == "drained"


def _is_idle(door: Door, node: str) -> bool:
    server = door.server(node)
    return server is not None and not server.in_flight and not server.queue


def _is_back(door: Door, node: str) -> bool:
    """It stands where the law wants it; one that the law itself drains has nothing to come back to."""
    server = door.server(node)
    return server is None or server.weight >= server.baseline or server.weight == server.wanted > 0
