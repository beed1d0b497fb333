"""What the engine needs of a balancer, whichever it is: what it shows, how its weights are set, what it is called.

The kinds of balancers are the folders of `lbengine/backends/`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from slackwater.config import LbengineSettings, PoolSettings
from slackwater.messages import WeightsMean

Pool = TypeVar("Pool", bound=PoolSettings)


Placeholder = Literal["", "no_address", "disabled"]
"""Why no machine stands behind a server: `no_address`, a slot that the balancer fills when it finds one, which nobody
wants to see until then; `disabled` in its configuration. Empty: one does."""


class BalancerError(Exception):
    """A balancer cannot be used or refused something; the text has which one, what, and what was expected."""


class BalancerUnreachable(BalancerError):
    """Nobody answers, or not to the end: the balancer is away, restarting or stuck. Worth trying again."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """One server of the pool as the balancer shows it."""

    name: str
    """A safe name, unique in the pool, the same after a reload."""
    weight: int
    configured: int = 0
    """The weight of the site's configuration; always 0 where there is none."""
    status: str = "UP"
    """The balancer's word: `UP`, `no check`, `DOWN`, `MAINT`, `DRAIN`, ..."""
    available: bool = True
    """It takes requests if its weight is above 0: running, and neither in maintenance nor drained by an operator."""
    backup: bool = False
    in_flight: int = 0
    queued: int = 0
    requests: int = 0
    """Since the balancer started; see `Snapshot.counts`."""
    rt_mean_ms: float | None = None
    """Mean of the last responses; absent before the first."""
    errors: int = 0
    """Requests that failed here, since the balancer started: failed connections, cut off responses, responses of status
    500 and above, and those that were sent again, here or to another server."""
    agent_check: bool = False
    """An agent on the server sets its weight too."""
    srv_record: bool = False
    """Its weight comes from DNS."""
    cookie: str = ""
    """The value that keeps a known client on this server; empty: none."""
    maxconn: int | None = None
    """Most requests that it gets at a time; None: no limit, or none that can be set."""
    queue_mean_ms: float | None = None
    """Mean time in its queue over the last requests; absent before the first."""
    placeholder: Placeholder = ""
    uncounted: str = ""
    """Why what was counted of it is not known, in words: its counters are 0 then, and mean nothing."""
    slow_start: bool = False
    """It came back from a failed check, and the balancer's own slow start holds its weight down."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What the balancer shows of its process and of one pool at one moment."""

    balance: str
    """The balance algorithm, as the balancer calls it."""
    weights_mean: WeightsMean | None
    """What weights set under `balance`; None: it is not known."""
    servers: Sequence[Server]
    pid: int = 0
    uptime_s: int = 0
    connections: int = 0
    """Accepted since the process started, ours included."""
    cookie: str = ""
    """The cookie that keeps known clients on their servers; empty: none."""
    most_weight: int = 256
    """The highest weight that this balancer takes."""
    serves_in_runs: bool = False
    """A lowered server is served in runs, the longer the smaller the common divisor of all weights is."""
    counts: Literal["requests", "connections"] = "requests"
    """What `Server.requests` counts and `in_flight` holds. A connection may carry many requests, so connections do
    not give the pool's rate: that comes from the nodes then. Who counts them sees no queues and no errors either."""
    generation: int = 0
    """Another number than before: part of the balancer was started anew, and knows nothing of our weights."""
    absent: tuple[str, ...] = ()
    """In words, each part of the balancer that did not answer: what it shows when it is back may be our doing."""
    returned: bool = False
    """A part that did not answer does so again, with the weights that it had then."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Servers that are not among `servers`, since what the balancer shows of them cannot be read, by name; and in words
    why. What is known of them stays."""
    trouble: tuple[str, ...] = ()
    """In words, what else is wrong with the balancer."""

    @property
    def by_concurrency(self) -> bool:
        """True when weights share the requests in flight; what is not known is taken for a share of the requests."""
        return self.weights_mean == "concurrency"

    def restarted_since(self, before: Snapshot | None) -> bool:
        """True when another process answers than before, which knows nothing of our weights."""
        return before is not None and (
            self.pid != before.pid
            or self.uptime_s < before.uptime_s
            or self.connections < before.connections
            or self.generation != before.generation
        )

    def not_reached(self, servers: Collection[str]) -> list[str]:
        """Of these servers, what setting weights does not reach, in words: it is still due there."""
        return [*self.absent, *(why for name, why in self.unreadable.items() if name in servers)]

    def describe_not_reached(self, servers: Collection[str]) -> str:
        """The same in a sentence, of the baseline weights."""
        why = "; ".join(self.not_reached(servers))
        return f"left out: {why}; the others have their baseline weights, and the stored baseline is kept"


class Balancer(abc.ABC):
    """Reads and sets the weights of one pool of one balancer. Not for several threads at once.

    It keeps no weights of its own: what the engine believes is compared with what `read` returns, so reloads and other
    people's changes are seen.
    """

    @abc.abstractmethod
    def read(self) -> Snapshot:
        """A fresh look. Raises BalancerUnreachable (worth trying again) or BalancerError.

        Callers rely on this, of every balancer:
        - `available` is false for a server that takes no requests whatever its weight: it is left alone, and `weight`
          goes on telling what it will come back with;
        - another `configured` than when the baseline was taken is the new baseline;
        - `pid` changes, or `uptime_s` or `connections` falls, when the balancer was made anew and may have
          forgotten our weights.
        """

    @abc.abstractmethod
    def set_weights(self, weights: Mapping[str, int]) -> None:
        """Sets absolute weights by server name and returns when they are in force, read back from the balancer.

        Everything else about the servers stays as it is. Raises BalancerError before anything is changed when a name
        or weight is not right; afterwards when the balancer refused or shows another weight than the one set (the
        other servers' weights may be set then: the next `read` shows it).
        """

    def set_maxconns(self, maxconns: Mapping[str, int]) -> None:
        """As `set_weights`, for the most requests that a server gets at a time; at least 1.

        Raises BalancerError where there is no such limit: none of the servers shows one then.
        """
        raise BalancerError(f"no `maxconn` can be set on this balancer: {', '.join(maxconns)}")

    def percents_for_nodes(self) -> Mapping[str, int]:
        """By server, the percentage of its configured weight that its node must be sent now; empty where the
        balancer does not fetch its weights from the nodes."""
        return {}

    def restore_weights(self, weights: Mapping[str, int], lease_s: float) -> None:  # noqa: ARG002
        """Sets baseline weights without an engine: one that ran has left leases of `lease_s` at most."""
        self.set_weights(weights)


@dataclass(frozen=True)
class Target:
    """Something that a pool drives and that only one lbengine may drive."""

    place: str
    """In words."""
    lock: str
    """Its name on this host."""
    lease: tuple[str, str]
    """What is driven, and where, among all hosts."""
    is_remote: bool = False
    """Other hosts reach it too."""


@dataclass(frozen=True)
class Backend(Generic[Pool]):
    """One kind of balancer: how the pools that name it in `balancer` are driven."""

    settings: type[Pool]
    """What is set of its pools. The tag is its word in `balancer`."""
    open: Callable[[Pool, float], Balancer]
    """The pool's balancer, which may take so many seconds to answer. Opens nothing yet."""
    check: Callable[[Pool, LbengineSettings, Mapping[str, int]], list[str]]
    """Looks at a pool's balancer before it is driven; returns warnings. The mapping has the weights that servers have
    without us, where those of now may be ours. Raises BalancerError."""
    targets: Callable[[Pool], list[Target]]
    rest: Callable[[Pool, PoolSettings], Pool | None] = lambda pool, _: pool
    """What a pool drives and the other one does not, as a pool; None: nothing. They are at different places."""
    claim: Callable[[PoolSettings], str] = lambda _: ""
    """Why no other backend may drive this pool, in words; empty where it may. Raises BalancerError."""
    lacks: Callable[[Pool], list[str]] = lambda _: []
    """What the controller's user lacks on this host to drive the pool, in words with the remedy."""
    advice: Callable[[Pool, Snapshot], tuple[str, str] | None] = lambda _, __: None
    """What was measured where another balance algorithm works better with Slackwater, and the remedy."""
