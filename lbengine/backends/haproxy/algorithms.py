"""What weights do under each of HAProxy's balance algorithms: the table behind docs/reference/balancing.md.

Source: HAProxy Configuration Manual, `balance` and `hash-type`; measured on 2.6 by tests/lbengine/test_algorithms.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from slackwater.messages import WeightsMean


@dataclass(frozen=True)
class Algorithm:
    """One algorithm."""

    weights_mean: WeightsMean
    """`keys`: with `hash-type consistent` only."""
    note: str = ""
    """What the site should know (`keys`), or why it is refused (`none`)."""


_KEYS = Algorithm("keys", "weights move a share of the keys, and with them their sessions and caches")
ALGORITHMS: dict[str, Algorithm] = {
    "roundrobin": Algorithm("share"),
    "random": Algorithm("draws"),  # of two, unless configured otherwise, which HAProxy does not show
    "unknown": Algorithm("draws"),  # what HAProxy 2.6 to 3.2 call `random`
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
CONFIGURED = {"unknown": "random"}
"""What `show stat` calls otherwise than the configuration."""


def weights_mean(balance: str) -> WeightsMean | None:
    """What weights set under this algorithm; None for one that is not known."""
    known = ALGORITHMS.get(balance)
    return None if known is None else known.weights_mean
