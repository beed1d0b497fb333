"""The messages on the bus, as msgspec structs. Their written form is `schema/*.json`, with golden examples beside it.

Unknown fields are tolerated (an older part reads what a newer one sends); a wrong type is refused with the field's
name. A value that cannot be had is `None` and its dotted name stands in `Sample.absent` with the reason: never zero.
"""

from __future__ import annotations

import msgspec

from slackwater.messages.balancing import Cycle, ServerState, Weight
from slackwater.messages.causes import (
    PUT_BACK,
    ChangeCause,
    DecisionCause,
    EpisodeMark,
    Mode,
    Resource,
    State,
    WeightsMean,
)
from slackwater.messages.change import GOVERNOR, PARTS, WSENGINE, Change, is_of_wsengine
from slackwater.messages.fields import (
    MAX_NAME,
    NAME_PATTERN,
    VERSION,
    MessageError,
    Name,
    UnixTime,
    is_name,
)
from slackwater.messages.governed import Governed
from slackwater.messages.knobs import Knobs, KnobState, Order
from slackwater.messages.plain_text import plain_json, plain_text
from slackwater.messages.sample import (
    Canary,
    Counters,
    Cpu,
    Disk,
    Memory,
    Network,
    Pressure,
    RouteTraffic,
    Sample,
    Sched,
    Traffic,
)
from slackwater.messages.verdict import Verdict

Message = Sample | Verdict | Order | Weight | Change | Cycle | Knobs | Governed
KINDS: dict[str, type[Message]] = {
    "sample": Sample,
    "verdict": Verdict,
    "order": Order,
    "weight": Weight,
    "change": Change,
    "cycle": Cycle,
    "knobs": Knobs,
    "governed": Governed,
}
_DECODERS = {kind: msgspec.json.Decoder(struct) for kind, struct in KINDS.items()}
_ENCODER = msgspec.json.Encoder()


def encode(message: Message) -> bytes:
    """The message as JSON; absent values are left out."""
    return _ENCODER.encode(message)


def decode(kind: str, data: bytes | str) -> Message:
    """Reads a message of this kind (a key of `KINDS`), with its texts made plain.

    Raises MessageError naming the field that is wrong.
    """
    try:
        return _DECODERS[kind].decode(plain_json(data))
    except msgspec.ValidationError as error:
        raise MessageError(f"{kind}: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(f"{kind}: not JSON: {error}") from None
