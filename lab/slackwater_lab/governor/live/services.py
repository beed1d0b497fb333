"""The services that policies are compared on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from slackwater_lab.cluster.applications import APPLICATIONS
from slackwater_lab.governor.live.policies import LIVE, NEEDS_EVENTS

MEMCACHED_PORT = 11211
SEARCHES = (1, 1, 2, 2, 4, 8, 16, 48)
"""Keywords; the longest search takes long enough for `hurry-up`'s third state."""


@dataclass(frozen=True)
class Service:
    """A service, its requests and its target."""

    description: str
    """Description for people."""
    kind: Literal["memcached", "web"]
    app: str
    """The host's web application; beside memcached nobody asks for it."""
    paths: tuple[str, ...]
    closed: bool
    connections: int
    target_ms: float
    """Target of the p95 of each second."""
    core_share: float
    """Share of a processor's time that a core at the highest clock has."""
    period_s: float
    """Period of the quota: a group that has used its part stands still for the rest of the period."""
    children: int = 4
    """Children of php-fpm."""
    hot: bool = False
    """The service reports its hot function, and its children are pinned to a core each."""

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies that make sense for this service."""
        return tuple(name for name in LIVE if self.hot or name not in NEEDS_EVENTS)


def memcached(closed: bool) -> Service:
    loop = "closed" if closed else "open"
    return Service(f"memcached (Debian), {loop} loop", "memcached", "events", (), closed, 16, 30.0, 0.25, 0.01)


SERVICES = {
    "memcached-open": memcached(closed=False),
    "memcached-closed": memcached(closed=True),
    "php": Service("the PHP application", "web", "events", APPLICATIONS["events"].paths, False, 32, 100.0, 0.5, 0.02),
    "search": Service(
        "a search in PHP, in place of Lucene",
        "web",
        "search",
        tuple(f"/index.php?keywords={number}" for number in SEARCHES),
        False,
        32,
        1000.0,
        0.5,
        0.02,
        children=2,
        hot=True,
    ),
}
