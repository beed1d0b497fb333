"""The messages on the bus, as msgspec structs. Their written form is `schema/*.json`, with golden examples beside it.

Unknown fields are tolerated (an older part reads what a newer one sends); a wrong type is refused with the field's
name. A value that cannot be had is `None` and its dotted name stands in `Sample.absent` with the reason: never zero.
"""

from __future__ import annotations

from typing import TypeGuard

import msgspec

from slackwater.core.messages.balancing import LONGEST_ASK_S, Ask, Cycle, Evenness, ServerState, Weight
from slackwater.core.messages.causes import (
    PUT_BACK,
    REPLACE_ENDS,
    SLOW_ALONE,
    SLOW_CAUSES,
    TAKES_REQUESTS,
    WARM_UP,
    ChangeCause,
    CycleOutage,
    DecisionCause,
    EpisodeMark,
    EvennessOutcome,
    Mode,
    Resource,
    ServerCondition,
    State,
    Switchable,
    WeightsMean,
)
from slackwater.core.messages.change import GOVERNOR, PARTS, WSENGINE, Change, is_of_wsengine
from slackwater.core.messages.fields import (
    MAX_NAME,
    NAME_PATTERN,
    SERVER_PATTERN,
    VERSION,
    MessageError,
    Name,
    ServerName,
    UnixTime,
    is_name,
    is_server_name,
    shortened,
)
from slackwater.core.messages.governed import Governed
from slackwater.core.messages.knobs import Knobs, KnobState, Order
from slackwater.core.messages.plain_text import plain_json, plain_text
from slackwater.core.messages.sample import (
    Canary,
    Counters,
    Cpu,
    Disk,
    Frequency,
    Gaps,
    Memory,
    Network,
    Pressure,
    ResponseTimes,
    RouteTraffic,
    Sample,
    Sched,
    Traffic,
)
from slackwater.core.messages.verdict import Verdict

Message = Sample | Verdict | Order | Weight | Ask | Change | Cycle | Knobs | Governed
KINDS: dict[str, type[Message]] = {
    "sample": Sample,
    "verdict": Verdict,
    "order": Order,
    "weight": Weight,
    "ask": Ask,
    "change": Change,
    "cycle": Cycle,
    "knobs": Knobs,
    "governed": Governed,
}
_DECODERS = {kind: msgspec.json.Decoder(struct) for kind, struct in KINDS.items()}
_BINARY_DECODERS = {kind: msgspec.msgpack.Decoder(struct) for kind, struct in KINDS.items()}
_ENCODER = msgspec.json.Encoder()
_FIRST_BINARY = 0x80
"""Bytes from here on begin a map in MessagePack, and no JSON."""
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are no message."""


def encode(message: Message) -> bytes:
    """The message as JSON; absent values are left out."""
    return _ENCODER.encode(message)


def is_binary(data: bytes | str) -> TypeGuard[bytes]:
    """Whether a message is MessagePack, as monitors send it; else it is JSON, as all others are."""
    return isinstance(data, bytes) and bool(data) and data[0] >= _FIRST_BINARY


def decode(kind: str, data: bytes | str) -> Message:
    """Reads a message of this kind (a key of `KINDS`), JSON or MessagePack, with its texts made plain.

    Raises MessageError naming the field that is wrong.
    """
    try:
        # By way of JSON, in which texts are made plain, and which has no infinite numbers.
        text = _ENCODER.encode(_BINARY_DECODERS[kind].decode(data)) if is_binary(data) else data
        return _DECODERS[kind].decode(plain_json(text))
    except UNREADABLE as error:
        raise refusal(kind, data, error) from None


def refusal(kind: str, data: bytes | str, error: Exception) -> MessageError:
    """The refusal of a message that could not be read for one of `UNREADABLE`."""
    if isinstance(error, msgspec.ValidationError):
        return MessageError(f"{kind}: {error}")
    return MessageError(f"{kind}: not {'MessagePack' if is_binary(data) else 'JSON'}: {error}")
