"""What the engine needs of a balancer, whichever it is: HAProxy, IPVS by hand, or IPVS that keepalived owns.

A door reads everything afresh in each turn and sets weights in one batch. It keeps no weights of its own: what the
engine believes is compared with what the door reads, so reloads and other people's changes are seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

from lbengine.haproxy import BalancerError as BalancerError
from lbengine.haproxy import BalancerUnreachable as BalancerUnreachable
from lbengine.haproxy import Server as Server
from lbengine.haproxy import Snapshot as Snapshot


class Balancer(Protocol):
    """A door to the pool of one balancer. Not for several threads at once."""

    @property
    def where(self) -> str:
        """The balancer and the pool in it, as they stand in front of errors."""

    @property
    def highest_weight(self) -> int:
        """The largest weight that may be set; 0 is always the least."""

    @property
    def counts(self) -> Literal["requests", "connections"]:
        """What `Server.requests` counts and `in_flight` holds. A connection may carry many requests, so connections say
        nothing of the pool's rate: that must come from the nodes then."""

    @property
    def counters_every_s(self) -> float:
        """How old the counters may be: a rate over less time than two of these is none. 0: always fresh."""

    def read(self) -> Snapshot:
        """A fresh look. Raises BalancerUnreachable (worth trying again) or BalancerError.

        Who asks relies on this, of every balancer:
        - `Server.name` is a safe name, unique in the pool, the same after a reload;
        - `available` is false for a server that takes no requests whatever its weight: it is left alone, and `weight`
          goes on telling what it will come back with;
        - `configured` is the weight of the site's configuration: another one than when the baseline was taken is the
          new baseline. Where there is no configuration (IPVS by hand) it is always 0;
        - `pid` changes, or `uptime_s` or `connections` falls, when the balancer was made anew and may have
          forgotten our weights;
        - `stopping` is true of an old process on its way out, whose weights no longer matter.
        """

    def set_weights(self, weights: Mapping[str, int]) -> None:
        """Sets absolute weights by server name and returns when they are in force, read back from the balancer.

        Everything else about the servers stays as it is. Raises BalancerError before anything is changed when a name
        or weight is not right; afterwards when the balancer refused or shows another weight than the one set (the
        other servers' weights may be set then: the next `read` tells).
        """
