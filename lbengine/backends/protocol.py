"""What the engine needs of a balancer, whichever it is: HAProxy, IPVS by hand, or IPVS that keepalived owns.

A door reads everything afresh in each turn and sets weights in one batch. It keeps no weights of its own: what the
engine believes is compared with what the door reads, so reloads and other people's changes are seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from lbengine.backends.snapshot import BalancerError, Snapshot


class Balancer(Protocol):
    """A door to the pool of one balancer. Not for several threads at once."""

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


@runtime_checkable
class Limiter(Protocol):
    """What is needed of one whose servers show a `maxconn`."""

    def set_maxconns(self, maxconns: Mapping[str, int]) -> None: ...


@runtime_checkable
class Speaker(Protocol):
    """One whose weights are fetched from the nodes, which have to be told."""

    def words(self) -> Mapping[str, int]:
        """By server, the percentage of its configured weight that its node is to be told now."""


def set_limits(balancer: Balancer, limits: Mapping[str, int]) -> None:
    """Sets `maxconn`s. Raises BalancerError, also for a balancer that has none."""
    if not isinstance(balancer, Limiter):
        raise BalancerError(f"no `maxconn` can be set on this balancer: {', '.join(limits)}")
    balancer.set_maxconns(limits)
