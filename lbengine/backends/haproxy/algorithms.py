"""What weights do under each of HAProxy's balance algorithms: the one table that preflight, the plan and
docs/reference/balancing.md go by. IPVS's schedulers have theirs in lbengine/backends/ipvs/schedulers.py.

Source: HAProxy Configuration Manual, `balance` and `hash-type`; measured on 2.6 by tests/lbengine/test_algorithms.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from lbengine.backends.ipvs.schedulers import SCHEDULERS, Heeds
from slackwater.messages import WeightsMean

Effect = WeightsMean
HEEDED: dict[Heeds, Effect] = {
    "connections": "share",
    "in flight": "concurrency",
    "keys": "keys",
    "nothing": "none",
}
"""IPVS's words for the same."""


@dataclass(frozen=True)
class Algorithm:
    """One algorithm. `effect` is what a weight set at run time changes."""

    effect: Effect
    """share: of the requests. concurrency: of the requests in flight. keys: of the keys, with `hash-type consistent`
    only. none: nothing."""
    told: str = ""
    """What the site should know (`keys`), or why it is refused (`none`)."""


_KEYS = Algorithm("keys", "weights move a share of the keys, and with them their sessions and caches")
ALGORITHMS: dict[str, Algorithm] = {
    "roundrobin": Algorithm("share"),
    "random": Algorithm("share"),
    "unknown": Algorithm("share"),  # what HAProxy 2.6 to 3.2 call `random`
    "leastconn": Algorithm("concurrency"),
    "source": _KEYS,
    "uri": _KEYS,
    "url_param": _KEYS,
    "hdr": _KEYS,
    "rdp-cookie": _KEYS,
    "hash": _KEYS,
    "static-rr": Algorithm("none", "it takes no weights at run time but 0% and 100%; use `balance roundrobin`"),
    "first": Algorithm("none", "it ignores weights; use `balance roundrobin` or `leastconn`"),
}
"""By the name that HAProxy's `show stat` gives it."""


def known_effect(balance: str) -> Effect | None:
    """What weights do under this algorithm or scheduler of IPVS; None for one that is not known."""
    if (known := ALGORITHMS.get(balance)) is not None:
        return known.effect
    scheduler = SCHEDULERS.get(balance)
    return None if scheduler is None else HEEDED[scheduler.heeds]


def effect(balance: str) -> Effect:
    """As `known_effect`; one that is not known is taken for one that shares by weights."""
    return known_effect(balance) or "share"
