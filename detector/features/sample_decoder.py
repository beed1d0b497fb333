"""Decodes a Sample, MessagePack or JSON, but only the fields that the detector reads: many times as quick as the whole.

The struct is made from `Sample` and from the fields that `slackwater.detector.features.columns` and
`slackwater.detector.features.routes` read. It has the same types, so a wrong type in these fields is refused in the
same words. Other fields are not checked. Names are matched with their pattern when they are first met, since a match
takes as long as all the rest of a section. The reasons for absent values are seldom read, so they stay encoded until
then.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

import msgspec

from slackwater.core import messages
from slackwater.core.messages import UNREADABLE, RouteTraffic, Sample, is_binary, is_name, refusal
from slackwater.detector.features.columns import SECTIONS, fields_read

_ROUTE_FIELDS = {"route", "rps", "rt_mean_ms"}
_NAMES = ("node", "pool")
_UNREAD = ("pmu", "periods_missed", "absence_causes")
NAMES_KNOWN = 65536


def _part(struct: type[msgspec.Struct], names: set[str]) -> type[msgspec.Struct]:
    """The struct with only these fields and the required ones. An absent number is NaN, as in columns."""
    fields: list[Any] = []
    for info in msgspec.structs.fields(struct):
        if info.name not in names and not info.required:
            continue
        kind: Any = list[_part(RouteTraffic, _ROUTE_FIELDS)] if info.name == "routes" else info.type  # type: ignore[misc]
        fields.append((info.name, kind, math.nan) if info.default is None else (info.name, kind, *_default(info)))
    return msgspec.defstruct(struct.__name__, fields, gc=False, frozen=True)


def _default(info: msgspec.structs.FieldInfo) -> tuple[Any, ...]:
    """The field's default in `defstruct`'s form; () for a required field."""
    if info.required:
        return ()
    factory: Any = info.default_factory
    return (info.default,) if factory is msgspec.NODEFAULT else (msgspec.field(default_factory=factory),)


def _reading() -> type[msgspec.Struct]:
    """`Sample` with all its plain fields and the sections that are read, each with the fields that are read.

    An absent section is there with all its fields absent, so its readers need no check.
    """
    sections = fields_read()
    fields: list[Any] = []
    for info in msgspec.structs.fields(Sample):
        inspected = msgspec.inspect.type_info(info.type)
        kinds = inspected.types if isinstance(inspected, msgspec.inspect.UnionType) else (inspected,)
        inner = next((kind.cls for kind in kinds if isinstance(kind, msgspec.inspect.StructType)), None)
        if inner is not None and info.name in sections:
            part = _part(inner, sections[info.name])
            stand_in = msgspec.convert(msgspec.to_builtins(SECTIONS[info.name][0]), part)
            fields.append((info.name, part | None, stand_in))
        elif info.name in _NAMES:
            fields.append((info.name, str))
        elif info.name == "absent":
            fields.append((info.name, msgspec.Raw, msgspec.Raw(b"{}")))
        elif inner is None and info.name not in _UNREAD:
            fields.append((info.name, info.type, *((math.nan,) if info.default is None else _default(info))))
    return msgspec.defstruct("Sample", fields, gc=False)


_READING = _reading()
_decode = cast(Callable[[bytes | str], Sample], msgspec.json.Decoder(_READING).decode)
_decode_binary = cast(Callable[[bytes | str], Sample], msgspec.msgpack.Decoder(_READING).decode)
_is_name = lru_cache(NAMES_KNOWN)(is_name)


def decode(data: bytes | str) -> Sample:
    """The fields of a Sample that the detector reads. Raises MessageError, which names the field that is wrong.

    The result has the attributes of a Sample that are read, with `absent` still encoded (`columns.reasons` decodes it).
    The garbage collector never scans it.
    """
    try:
        sample = (_decode_binary if is_binary(data) else _decode)(data)
    except UNREADABLE as error:
        raise refusal("sample", data, error) from None
    if not (_is_name(sample.node) and _is_name(sample.pool)):
        messages.decode("sample", data)  # it refuses such a Sample
    return sample
