"""retune -> wsengine: Orders; wsengine -> retune: the state of its knobs."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from slackwater.messages.causes import KnobCause
from slackwater.messages.fields import Name, NonNegative, Version


class Order(msgspec.Struct, omit_defaults=True):
    """Asks a node's wsengine to set a knob for a while. Subject: `slackwater.order.<pool>.<node>`.

    The value `baseline` ends the knob's lease at once.
    """

    v: Version
    id: str
    node: Name
    pool: Name
    time_unix_s: NonNegative
    knob: str
    value: int | float | str
    lease_s: Annotated[float, Meta(gt=0.0)]
    """An Order that is not renewed within this time undoes itself."""
    reason: str
    by: str
    """Its sender."""


class KnobState(msgspec.Struct, omit_defaults=True):
    """What one knob of a node is."""

    name: str
    value: int | float | str | None = None
    """The value in effect."""
    baseline: int | float | str | None = None
    """What it is put back to; the value where nothing is turned."""
    lowest: int | None = None
    """The lowest whole number that Orders may set."""
    highest: int | None = None
    words: list[str] = []
    """The words that Orders may set."""
    reloads: bool = False
    """Turning it makes the web server reload."""
    order: str = ""
    """The Order in force; empty: none."""
    by: str = ""
    """Its sender."""
    left_s: float | None = None
    """What is left of its lease."""
    why: str = ""
    """Why it cannot be turned here; empty: it can."""
    cause: KnobCause | None = None
    """The same for programs; absent: it can be turned, or an older wsengine sends no cause."""


class Knobs(msgspec.Struct, omit_defaults=True):
    """What a node's wsengine can turn, and what it has turned. Subject: `slackwater.knobs.<pool>.<node>`."""

    v: Version
    node: Name
    pool: Name
    time_unix_s: NonNegative
    kind: str
    """Nodes of one kind are alike: values found on one suit the others."""
    knobs: list[KnobState]
    """One for each knob that the node's configuration lists."""
