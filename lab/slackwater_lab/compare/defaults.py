"""What a comparison measures unless said otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

DEFAULT_SCENARIOS = ("one", "one-severe", "two", "load-80", "bursts", "all", "mixed", "dokuwiki")
DEFAULT_POLICIES = (
    *("leastconn", "random2", "nginx-least-time"),
    *("slackwater-lb-lc", "slackwater-lc", "slackwater-lb-random", "slackwater-random"),
    "oracle-lc",
)
DEFAULT_HAPROXY = "haproxy"
DEFAULT_ROUNDS = 3
"""Of scenarios that are not drawn."""


def usual_first(names: Iterable[str], usual: Sequence[str]) -> tuple[str, ...]:
    """Each of the names once: the usual ones in their order, then all others in the given order."""
    given = dict.fromkeys(names)
    return (*(name for name in usual if name in given), *(name for name in given if name not in usual))
