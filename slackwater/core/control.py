"""Operators' commands to lbengine over the bus: one request, checked in one place for the command line and the web.

Subject: `slackwater.control.<pool>`; the answer is `{"sentence": ...}` or `{"error": ...}`.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from slackwater.core.bus.bus import Bus
from slackwater.core.config import BusSettings, in_words
from slackwater.core.messages import LONGEST_ASK_S, PARTS, EpisodeMark, Mode, ServerName, UnixTime, is_name

MOST_PIN_S = 86400.0
WAIT_S = 2.0
ANSWERS_WITHIN_S = 3.0
Action = Literal["pause", "resume", "mode", "pin", "unpin", "end_episode", "acknowledge", "mark_episode", "ask_samples"]
ACTIONS: dict[Action, str] = {
    "pause": "Set the baseline weights and change nothing until `resume`",
    "resume": "Balance again after `pause`",
    "mode": "observe or act, until the configuration changes it",
    "pin": "Hold a server at a weight for a time",
    "unpin": "End a pin before its time",
    "end_episode": "Treat a node as calm until its present episode is over",
    "acknowledge": "Record that an operator has seen it; changes nothing",
    "mark_episode": "Record what an episode was; changes nothing",
    "ask_samples": "Ask a node's monitor for Samples as often as in an event, for a time; changes no weight",
}
NEEDS: dict[Action, tuple[str, ...]] = {
    "mode": ("mode",),
    "pin": ("target", "weight", "for_s"),
    "unpin": ("target",),
    "end_episode": ("target",),
    "acknowledge": ("target",),
    "mark_episode": ("target", "mark", "since_unix_s"),
    "ask_samples": ("target", "for_s"),
}
"""Required fields besides `action` and `by`."""


class Refused(Exception):
    """lbengine refused; the text has its reason."""


ServerWeight = Annotated[int, Meta(ge=0, le=65535)]
"""A weight that one of the balancers can have: HAProxy up to 256, IPVS up to 65535."""


class Request(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One command of one person. Raises ValueError for one that lacks a field."""

    action: Action
    by: Annotated[str, Meta(min_length=1, max_length=200)]
    """The sender's name, for the Change."""
    why: Annotated[str, Meta(max_length=500)] = ""
    target: ServerName | None = None
    """A server by the balancer's name (`pin`, `unpin`), or a node (the others)."""
    weight: ServerWeight | None = None
    """`pin`: the weight to hold, at most the server's baseline."""
    for_s: Annotated[float, Meta(gt=0, le=MOST_PIN_S)] | None = None
    """`pin`, `ask_samples`: how long."""
    mode: Mode | None = None
    mark: EpisodeMark | None = None
    """`mark_episode`: what it was."""
    since_unix_s: UnixTime | None = None
    """`mark_episode`: when it began."""

    def __post_init__(self) -> None:
        if self.by in PARTS:
            raise ValueError(f"`by` is {self.by!r}, which is a part of Slackwater; expected a person's name")
        if self.target is not None and self.action not in ("pin", "unpin") and not is_name(self.target):
            raise ValueError(f"`target` is {self.target!r}; `{self.action}` expects the name of a node")
        missing = [name for name in NEEDS.get(self.action, ()) if getattr(self, name) is None]
        if self.action == "ask_samples" and (self.for_s or 0.0) > LONGEST_ASK_S:
            raise ValueError(f"`for_s` is {self.for_s:g}; a monitor is asked for at most {LONGEST_ASK_S:g} s")
        if missing:
            raise ValueError(f"`{self.action}` needs {', '.join(f'`{name}`' for name in missing)}")


def request_of(question: Any) -> Request:
    """The request that a question in JSON's types asks; raises ValueError with the field and what was expected."""
    action = question.get("action") if isinstance(question, dict) else "pause"
    if action not in ACTIONS:
        raise ValueError(f"action {action!r} is not known; expected {', '.join(f'`{name}`' for name in ACTIONS)}")
    try:
        return msgspec.convert(question, Request)
    except msgspec.ValidationError as error:
        raise ValueError(in_words(str(error))) from None


async def send(bus: Bus, pool: str, request: Request) -> str:
    """Has lbengine carry it out; returns its answer, a sentence. Raises Refused, BusError."""
    subject, question = f"slackwater.control.{pool}", msgspec.to_builtins(request)
    answer = await bus.request(subject, question, timeout_s=ANSWERS_WITHIN_S)
    if "error" in answer:
        raise Refused(f"lbengine refused: {answer['error']}")
    return str(answer.get("sentence", f"{pool}: {request.action} done"))


def send_once(settings: BusSettings, pool: str, request: Request) -> str:
    """Does what `send` does, with its own connection, for callers without an event loop."""

    async def once() -> str:
        bus = await Bus.connect(settings, f"slackwater-{request.action}", wait_s=WAIT_S)
        try:
            return await send(bus, pool, request)
        finally:
            await bus.close()

    return asyncio.run(once())
