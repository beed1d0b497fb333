"""Whether the exchanges that packets show are the requests that the balancer counts. Pure.

They are not the same where requests go another way (the balancer is on another host, or the route is another one),
where others ask the server too, and where encrypted connections carry HTTP/2: there turns are timed, which are not
requests then. So the packets of a server count only as far as their number agrees with the balancer's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

REQUESTS = 100
"""This many requests decide; older ones count half as much after twice this number."""
MOST_OFF = 0.1
"""Share of the requests that the balancer counted. Exchanges may be off by this: a look's ends and a request that is
sent again are no reason for doubt."""
LEAST_SHARE = 0.02
"""Share of the requests that the balancer counted: below it, packets tell nothing of the server."""


class _Seen(msgspec.Struct, frozen=True):
    """A server's latest exchanges and requests."""

    total: int
    """Exchanges since the sniffer began."""
    exchanges: float = 0.0
    requests: float = 0.0

    @property
    def share(self) -> float | None:
        """Exchanges for each request; None before there were enough."""
        return self.exchanges / self.requests if self.requests >= REQUESTS else None


@dataclass(frozen=True)
class Agreement:
    """Numbers of exchanges and of requests of each server."""

    _seen: Mapping[str, _Seen] = field(default_factory=dict)

    def after(self, looked: Mapping[str, tuple[int, float]]) -> Agreement:
        """The numbers after a look. `looked`: server -> the exchanges since the sniffer began, and the requests since
        the look before.

        The count of a server starts again when it is not in `looked`, or when its sniffer began anew.
        """
        seen = {}
        for server, (total, requests) in looked.items():
            before = self._seen.get(server)
            if before is None or total < before.total:
                seen[server] = _Seen(total)
                continue
            kept = 0.5 if before.requests >= 2 * REQUESTS else 1.0
            exchanges = kept * before.exchanges + total - before.total
            seen[server] = _Seen(total, exchanges, kept * before.requests + requests)
        return Agreement(seen)

    def is_complete(self, server: str) -> bool:
        """Whether packets show each of a server's requests, and nothing else."""
        share = self._share(server)
        return share is not None and abs(share - 1.0) <= MOST_OFF

    def doubt(self, server: str, *, is_encrypted: bool) -> str:
        """Why a server's packets tell nothing of its requests, in words; empty where they do, or where no request says
        otherwise."""
        share = self._share(server)
        if not is_encrypted:
            return "" if share is None or share >= LEAST_SHARE else OTHER_WAY
        if share is None:
            return "its connections are encrypted: its times are known once as many answers as requests were seen"
        if abs(share - 1.0) <= MOST_OFF:
            return ""
        return f"its connections are encrypted, and {share:.2f} answers were seen for each request: HTTP/2?"

    def _share(self, server: str) -> float | None:
        seen = self._seen.get(server)
        return None if seen is None else seen.share


OTHER_WAY = (
    "the balancer sends it requests, and no packet of them is seen: is the balancer on another host, or the way to the"
    " server through another interface?"
)
