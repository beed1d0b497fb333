"""A Cycle of a large pool in several messages, each no larger than the broker takes, and whole again for readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from slackwater.core import messages
from slackwater.core.messages import Cycle, Message, MessageError, ServerState

MOST_PARTS = 10_000
"""The most parts of a Cycle, of any size."""


def payloads(message: Message, subject: str, most_bytes: int) -> list[bytes]:
    """What is sent of a message: the whole message, or a Cycle in parts of at most `most_bytes` each.

    Raises MessageError for a message that cannot be encoded, is too large even in parts, or is about a node whose name
    cannot stand in a subject.
    """
    if "" in subject.split("."):
        raise MessageError("expected names without a dot at their ends, or two together")
    try:
        payload = messages.encode(message)
        if len(payload) <= most_bytes:
            return [payload]
        if isinstance(message, Cycle):
            return [messages.encode(part) for part in _parts(message, most_bytes)]
    except (msgspec.EncodeError, OverflowError, UnicodeEncodeError) as error:
        raise MessageError(str(error)) from None
    raise MessageError(f"{len(payload)} bytes, expected at most {most_bytes}, the broker's `max_payload`")


def _parts(cycle: Cycle, most_bytes: int) -> list[Cycle]:
    head = msgspec.structs.replace(cycle, servers=[], last_known=[], part=MOST_PARTS, parts=MOST_PARTS)
    room_bytes = most_bytes - len(messages.encode(head)) - len(b'"last_known":,')
    groups = [("servers", group) for group in _groups(cycle.servers, room_bytes, most_bytes)]
    groups += [("last_known", group) for group in _groups(cycle.last_known, room_bytes, most_bytes)]
    return [
        msgspec.structs.replace(head, **{name: group}, part=number, parts=len(groups))
        for number, (name, group) in enumerate(groups)
    ]


def _groups(servers: Sequence[ServerState], room_bytes: int, most_bytes: int) -> Iterator[list[ServerState]]:
    """Groups of as many servers as have room together, in their order. Raises MessageError."""
    group: list[ServerState] = []
    left_bytes = room_bytes
    for server in servers:
        size = len(msgspec.json.encode(server)) + len(b",")
        if size > room_bytes:
            raise MessageError(f"server {server.server}: {size} bytes do not fit into the broker's {most_bytes}")
        if size > left_bytes:
            yield group
            group, left_bytes = [], room_bytes
        group.append(server)
        left_bytes -= size
    if group:
        yield group


class WholeCycles:
    """Calls `handle` with each Cycle when all of its parts are there. A Cycle that lacks a part is left out: the next
    one comes soon."""

    def __init__(self, handle: Callable[[Cycle], None]) -> None:
        self._handle = handle
        self._begun: dict[tuple[str, str], list[Cycle]] = {}
        """(Pool, controller) -> the parts of its newest Cycle so far, in their order."""

    def __call__(self, cycle: Cycle) -> None:
        key = cycle.pool, cycle.controller
        parts = self._begun.pop(key, [])
        if cycle.parts == 1:
            self._handle(cycle)
            return
        if parts and (parts[0].time_unix_s, parts[0].parts) != (cycle.time_unix_s, cycle.parts):
            parts = []
        if cycle.part != len(parts):
            return
        parts.append(cycle)
        if len(parts) < cycle.parts:
            self._begun[key] = parts
            return
        servers = [server for part in parts for server in part.servers]
        last_known = [server for part in parts for server in part.last_known]
        self._handle(msgspec.structs.replace(cycle, servers=servers, last_known=last_known, part=0, parts=1))
