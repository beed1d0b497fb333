"""Names and number types that several messages use."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta

VERSION = 1
Version = Annotated[int, Meta(ge=VERSION, le=VERSION)]
"""A message of another version is refused."""
NAME_PATTERN = r"^[A-Za-z0-9_-][A-Za-z0-9_:-]*(\.[A-Za-z0-9_:-]+)*$(?!\n)"
"""Names of nodes, servers, backends and pools: safe as NATS subjects and in HAProxy's command language.

`$` alone would let a newline at the end through, which would end a command on HAProxy's socket.
"""
MAX_NAME = 128
Name = Annotated[str, Meta(pattern=NAME_PATTERN, max_length=MAX_NAME)]
SERVER_PATTERN = r"^[A-Za-z0-9_.:-]+$(?!\n)"
"""What HAProxy allows in the name of a server. One with a dot too many is no NATS subject, so its node has another
name."""
ServerName = Annotated[str, Meta(pattern=SERVER_PATTERN, max_length=MAX_NAME)]
Word = Annotated[str, Meta(max_length=200)]
"""A name of something that is no subject: a knob, a device, an identifier."""
MOST_TEXT = 2000
Text = Annotated[str, Meta(max_length=MOST_TEXT)]
"""A sentence for people."""
LATEST_UNIX_S = 4102444800.0
"""2100-01-01: a time after it is a mistake or an attack, and breaks calendars that read it."""
UnixTime = Annotated[float, Meta(ge=0.0, le=LATEST_UNIX_S)]
"""Seconds since 1970."""
MOST = 2**63 - 1
"""What a signed number of 64 bits holds, as the journal stores it."""
Integer = Annotated[int, Meta(ge=-(2**63), le=MOST)]
MOST_REAL = 1e15
"""Above everything that is measured. Sums of products of such numbers are still numbers, and no reader overflows."""
Real = Annotated[float, Meta(ge=-MOST_REAL, le=MOST_REAL)]
Value = Integer | Real | Text
"""The value of a knob or of a weight."""
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
NonNegative = Annotated[float, Meta(ge=0.0, le=MOST_REAL)]
Positive = Annotated[float, Meta(gt=0.0, le=MOST_REAL)]
Count = Annotated[int, Meta(ge=0, le=MOST)]


class MessageError(ValueError):
    """A message that does not follow its schema; the text names the message, the field and what was expected."""


def shortened(text: str) -> str:
    """A sentence, cut to the length that messages may have."""
    return text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT - 1]}…"


def is_name(text: str) -> bool:
    """True for a name that is safe in subjects and in HAProxy's command language (no `;`, space or newline)."""
    return len(text) <= MAX_NAME and re.search(NAME_PATTERN, text) is not None


def is_server_name(text: str) -> bool:
    """True for a name that a balancer's server may have: safe in HAProxy's command language, not in subjects."""
    return len(text) <= MAX_NAME and re.search(SERVER_PATTERN, text) is not None
