"""Whoever changes something -> journal."""

from __future__ import annotations

import re

import msgspec

from slackwater.core.messages.causes import ChangeCause
from slackwater.core.messages.fields import Name, NonNegative, Text, UnixTime, Value, Version, Word

WSENGINE = "wsengine"
"""`Change.by` of a node's wsengine. The bus lets only that node publish such a Change."""

GOVERNOR = "governor"
"""`by` of the governor's Orders and Changes."""
PARTS = ("lbengine", "retune", "replace", GOVERNOR, "serve", WSENGINE)
"""`Change.by` of what no person did."""
_OF_WSENGINE = re.compile(r"order|[a-z0-9_]+\.[a-z0-9_]+")
"""`Change.what` of a wsengine: a knob, or an Order that could not be believed."""


class Change(msgspec.Struct, omit_defaults=True):
    """Something was changed, or would have been in observe mode. Subject: `slackwater.change.<pool>.<node>` where a
    node's wsengine made it (`by` is `wsengine`, `target` the node), else `slackwater.controller-change.<pool>`."""

    v: Version
    id: Word
    pool: Name
    time_unix_s: UnixTime
    what: Word
    """`weight`, `maxconn`, `outcome`, `pause`, `mark_episode`, `restore`, `replace`, a wsengine knob, `order KNOB`,
    ..."""
    target: Word
    """The server or node, or the pool itself."""
    before: Value | None
    after: Value | None
    why: Text
    by: Word
    applied: bool
    """False: observe mode, this is what would have been done."""
    rt_p95_ms: NonNegative | None = None
    """The pool's 95th percentile of response time when this was decided."""
    rt_p95_predicted_ms: NonNegative | None = None
    """What it was predicted to become by this change."""
    follows: Word = ""
    """An outcome: id of the Change it belongs to. A wsengine's Change: id of the Order, and of that Order's Change. A
    later step of a replacement: id of its first Change."""
    since_unix_s: UnixTime | None = None
    """`mark_episode`: when the episode of `target` began."""
    cause: ChangeCause | None = None
    """`why` for programs; absent where `what` is enough."""

    @property
    def lowers(self) -> bool:
        """Whether it lowers a number."""
        before, after = self.before, self.after
        return isinstance(before, int | float) and isinstance(after, int | float) and after < before


def is_of_wsengine(change: Change) -> bool:
    """Whether a node's wsengine may say this: it speaks of its knobs, not of what the controller does."""
    return change.by == WSENGINE and _OF_WSENGINE.fullmatch(change.what) is not None
