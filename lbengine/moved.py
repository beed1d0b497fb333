"""A pool that the settings have at another place than its stored baseline, which cannot be put back at the old place.

Its HAProxy is gone for good, or its backend has another name now. The pool must be driven at its new place all the
same. If the old place comes back, no weight of ours may stay lowered there.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import msgspec

from slackwater.core.config import ControllerSettings, PoolSettings
from slackwater.lbengine.backends.table import rest_of
from slackwater.lbengine.baseline import BaselineError, BaselineStore

log = logging.getLogger("lbengine")

MOST_LETTERS = 100
"""A pool's name is cut to this length, so that it is still a valid name with the suffix."""


def keep_apart(settings: ControllerSettings, left: PoolSettings) -> PoolSettings | None:
    """Moves the stored baseline of `left`, a pool at its old place, to the place that the settings have now.

    The servers may be the same there. The part that stays at the old place is kept under a name of its own, and
    returned as a pool; None where no such part is left. A pool whose name the settings do not use is returned as it is.
    """
    now = next((pool for pool in settings.pool if pool.name == left.name), None)
    if now is None or now.place == left.place:
        return left
    folder = Path(settings.state_dir)
    try:
        stored = BaselineStore(folder, left).load()
        if stored is None:
            return left
        rest = rest_of(left, now)
        if rest is not None:
            mark = hashlib.sha256(rest.place.encode()).hexdigest()[:8]
            rest = msgspec.structs.replace(rest, name=f"{left.name[:MOST_LETTERS].rstrip('.')}.left-{mark}")
            BaselineStore(folder, rest).save(stored)
        BaselineStore(folder, now).save(stored)
    except BaselineError as error:
        log.error("pool %s: %s", left.name, error)
        return left
    if rest is not None:
        log.warning(
            "pool %s: its settings name %s now. At the place before, %s, weights may still be lowered: they are put"
            " back once it answers, at the controller's next start or stop or by `slackwater restore --all`. If it is"
            " gone for good, remove %s",
            left.name, now.place, rest.place, BaselineStore(folder, rest).path,
        )  # fmt: skip
    return rest
