"""Whether the turns that packets show are requests: the balancer's counters know how many there were. Pure.

Turns of encrypted connections are not read. With HTTP/2 several requests go in one turn, or one in several, and the
times of turns are not those of requests. So they count only while there are as many turns as requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

REQUESTS = 100
"""So many decide; older ones count half as much after twice as many."""
MOST_OFF = 0.1
"""Of the requests that the balancer counted: a look's ends and a request sent again are no reason for doubt."""


@dataclass(frozen=True)
class _Seen:
    """A server's latest turns and requests."""

    total: int
    """Turns since the sniffer began."""
    turns: float = 0.0
    requests: float = 0.0


@dataclass(frozen=True)
class Agreement:
    """Numbers of turns and of requests of each server."""

    _seen: Mapping[str, _Seen] = field(default_factory=dict)

    def after(self, looked: Mapping[str, tuple[int, float]]) -> Agreement:
        """`looked`: by server, the turns since the sniffer began, and the requests since the last time.

        A server that is not in it, and one whose sniffer began anew, starts again.
        """
        seen = {}
        for server, (total, requests) in looked.items():
            before = self._seen.get(server)
            if before is None or total < before.total:
                seen[server] = _Seen(total)
                continue
            kept = 0.5 if before.requests >= 2 * REQUESTS else 1.0
            turns = kept * before.turns + total - before.total
            seen[server] = _Seen(total, turns, kept * before.requests + requests)
        return Agreement(seen)

    def doubt(self, server: str) -> str:
        """Why a server's turns are not believed, in words; empty where they are."""
        seen = self._seen.get(server, _Seen(0))
        if seen.requests < REQUESTS:
            return "its connections are encrypted: times of turns count once there were as many as requests"
        share = seen.turns / seen.requests
        if abs(share - 1.0) <= MOST_OFF:
            return ""
        return f"its connections are encrypted, and there were {share:.2f} turns for each request: HTTP/2?"
