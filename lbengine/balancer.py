"""What the engine needs of a balancer, whichever it is: HAProxy, IPVS by hand, or IPVS that keepalived owns.

A door reads everything afresh in each turn and sets weights in one batch. It keeps no weights of its own: what the
engine believes is compared with what the door reads, so reloads and other people's changes are seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from lbengine.haproxy import BalancerError as BalancerError
from lbengine.haproxy import BalancerUnreachable as BalancerUnreachable


class ServerView(Protocol):
    """One server of the pool as the balancer shows it."""

    @property
    def name(self) -> str:
        """Unique in the pool, a safe name (slackwater.messages.is_name), the same after a reload."""

    @property
    def status(self) -> str:
        """The balancer's own word for its health; `no check` where the balancer checks nothing."""

    @property
    def available(self) -> bool:
        """It takes new requests if its weight is above 0. One that is not is left alone."""

    @property
    def backup(self) -> bool:
        """It gets requests only when the others are gone; never governed."""

    @property
    def weight(self) -> int:
        """The weight in force now."""

    @property
    def configured(self) -> int:
        """The weight of the site's configuration: another one than when the baseline was taken is the new baseline.

        A balancer without a configuration of its own (IPVS by hand) always says 0.
        """

    @property
    def in_flight(self) -> int:
        """Requests (HAProxy) or established connections (IPVS) that it holds now."""

    @property
    def requests(self) -> int:
        """Requests or connections (the door's `counts` says which) sent there so far; falls only at a restart."""

    @property
    def rt_mean_ms(self) -> float | None:
        """Mean response time as the balancer sees it; None where it sees none."""


class SnapshotView(Protocol):
    """One look at the balancer: the pool's servers, and what tells whether it is the same balancer as before."""

    @property
    def pid(self) -> int:
        """The process that answered; 0 where there is no process (IPVS is the kernel)."""

    @property
    def uptime_s(self) -> int:
        """Falls when the balancer was started anew; always 0 where nothing tells."""

    @property
    def connections(self) -> int:
        """Connections taken so far. It falls when the process, or the table in the kernel, was made anew."""

    @property
    def stopping(self) -> bool:
        """An old process on its way out, whose weights no longer matter."""

    @property
    def balance(self) -> str:
        """The algorithm or scheduler, in the balancer's words."""

    @property
    def servers(self) -> Sequence[ServerView]: ...


class Balancer(Protocol):
    """A door to the pool of one balancer. Not for several threads at once."""

    @property
    def where(self) -> str:
        """The balancer and the pool in it, as they stand in front of errors."""

    @property
    def highest_weight(self) -> int:
        """The largest weight that may be set; 0 is always the least."""

    @property
    def counts(self) -> str:
        """What `requests` counts: "requests", or "connections", which say little about the rate of requests."""

    @property
    def counters_every_s(self) -> float:
        """How old the counters may be: a rate over less time than a few of these is none. 0: always fresh."""

    def read(self) -> SnapshotView:
        """A fresh look. Raises BalancerUnreachable (worth trying again) or BalancerError."""

    def set_weights(self, weights: Mapping[str, int]) -> None:
        """Sets absolute weights by server name and returns when they are in force, read back from the balancer.

        Everything else about the servers stays as it is. Raises BalancerError before anything is changed when a name
        or weight is not right; afterwards when the balancer refused or shows another weight than the one set (the
        other servers' weights may be set then: the next `read` tells).
        """
