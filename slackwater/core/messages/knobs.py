"""retune -> wsengine: Orders; wsengine -> retune: the state of its knobs."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from slackwater.core.messages.causes import KnobCause
from slackwater.core.messages.fields import Integer, Name, Positive, Real, Text, UnixTime, Value, Version, Word

MOST_KNOBS = 64
MOST_WORDS = 64


class Order(msgspec.Struct, omit_defaults=True):
    """Asks a node's wsengine to set a knob for a while. Subject: `slackwater.order.<pool>.<node>`.

    The value `baseline` ends the knob's lease at once.
    """

    v: Version
    id: Word
    node: Name
    pool: Name
    time_unix_s: UnixTime
    knob: Word
    value: Value
    lease_s: Positive
    """An Order that is not renewed within this time undoes itself."""
    reason: Text
    by: Word
    """Its sender."""


class KnobState(msgspec.Struct, omit_defaults=True):
    """What one knob of a node is."""

    name: Word
    value: Value | None = None
    """The value in effect."""
    baseline: Value | None = None
    """What it is put back to; the value where no knob is set."""
    lowest: Integer | None = None
    """The lowest whole number that Orders may set."""
    highest: Integer | None = None
    words: Annotated[list[Word], Meta(max_length=MOST_WORDS)] = []
    """The words that Orders may set."""
    reloads: bool = False
    """Turning it makes the web server reload."""
    order: Word = ""
    """The Order in force; empty: none."""
    by: Word = ""
    """Its sender."""
    left_s: Real | None = None
    """What is left of its lease."""
    why: Text = ""
    """Why it cannot be set here; empty: it can."""
    cause: KnobCause | None = None
    """`why` for programs; absent: it can be set."""


class Knobs(msgspec.Struct, omit_defaults=True):
    """The knobs that a node's wsengine can set, and has set. Subject: `slackwater.knobs.<pool>.<node>`."""

    v: Version
    node: Name
    pool: Name
    time_unix_s: UnixTime
    kind: Word
    """Nodes of one kind are alike: values found on one suit the others."""
    knobs: Annotated[list[KnobState], Meta(max_length=MOST_KNOBS)]
    """One for each knob that the node's configuration lists."""
    waiting: Annotated[list[Word], Meta(max_length=MOST_KNOBS)] | None = None
    """Ids of the Orders that wait until the node may reload; absent: not known."""
