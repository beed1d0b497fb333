"""The effect of weights under each of HAProxy's balance algorithms: the table behind docs/reference/balancing.md.

Source: HAProxy Configuration Manual, `balance` and `hash-type`; measured on 2.6 by tests/lbengine/test_algorithms.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from slackwater.core.messages import WeightsMean


@dataclass(frozen=True)
class Algorithm:
    """A balance algorithm."""

    weights_mean: WeightsMean
    """`keys` holds with `hash-type consistent` only."""
    note: str = ""
    """What the site should know of `keys`, or why the algorithm of `none` is refused."""


_KEYS = Algorithm("keys", "weights move a share of the keys, and with them their sessions and caches")
ALGORITHMS: dict[str, Algorithm] = {
    "roundrobin": Algorithm("share"),
    "random": Algorithm("draws"),  # of two, unless configured otherwise, which HAProxy does not show
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
"""Name of the algorithm in HAProxy's configuration -> what is known of it."""


def configured_name(shown: str) -> str:
    """The name in the configuration of what `show stat` shows: HAProxy 2.6 to 3.4 show `random` as `unknown`."""
    return "random" if shown == "unknown" else shown


def weights_mean(balance: str) -> WeightsMean | None:
    """What weights set under this algorithm; None for an unknown algorithm."""
    known = ALGORITHMS.get(balance)
    return None if known is None else known.weights_mean
