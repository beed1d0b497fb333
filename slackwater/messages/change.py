"""Whoever changes something -> journal."""

from __future__ import annotations

import msgspec

from slackwater.messages.causes import ChangeCause
from slackwater.messages.fields import Name, NonNegative, Version


class Change(msgspec.Struct, omit_defaults=True):
    """Something was changed, or would have been in observe mode. Subject: `slackwater.change.<pool>`."""

    v: Version
    id: str
    pool: Name
    time_unix_s: NonNegative
    what: str
    """`weight`, `maxconn`, `outcome`, `pause`, `resume`, `restore`, a wsengine knob, `order KNOB`, ..."""
    target: str
    """The server or node, or the pool itself."""
    before: int | float | str | None
    after: int | float | str | None
    why: str
    by: str
    applied: bool
    """False: observe mode, this is what would have been done."""
    rt_p95_ms: NonNegative | None = None
    """The pool's 95th percentile of response time when this was decided."""
    rt_p95_predicted_ms: NonNegative | None = None
    """What it was predicted to become by this change."""
    follows: str = ""
    """An outcome: id of the Change it belongs to. A wsengine's Change: id of the Order, and of that Order's Change."""
    cause: ChangeCause | None = None
    """`why` for programs; absent where `what` is enough, and in Changes of older versions."""
