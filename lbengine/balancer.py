"""What the engine needs of any balancer: a snapshot of its servers, a way to set their weights, and its settings.

The kinds of balancers are the folders of `lbengine/backends/`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from slackwater.core.config import LbengineSettings, PoolSettings
from slackwater.core.messages import TAKES_REQUESTS, ServerCondition, WeightsMean

Pool = TypeVar("Pool", bound=PoolSettings)


Placeholder = Literal["", "no_address", "disabled"]
"""Why no machine stands behind a server. `no_address`: a slot that the balancer fills when it finds a machine, and that
people are not shown until then. `disabled`: in the balancer's configuration. Empty: a machine does."""


class BalancerError(Exception):
    """A balancer cannot be used or has refused a command. The text says which balancer, what failed and what was
    expected."""


class BalancerUnreachable(BalancerError):
    """The balancer does not answer, or not to the end: it is away, restarting or stuck. Trying again may help."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """One server of the pool as the balancer shows it."""

    name: str
    """A safe name, unique in the pool, the same after a reload."""
    weight: int
    configured: int = 0
    """The weight of the site's configuration; always 0 where there is none."""
    condition: ServerCondition = "up"
    backup: bool = False
    in_flight: int = 0
    queued: int = 0
    requests: int = 0
    """Number since the balancer started; see `Snapshot.counts`."""
    rt_mean_ms: float | None = None
    """Mean response time of the last requests; None before the first."""
    errors: int = 0
    """Number of requests that failed here since the balancer started: failed connections, cut off responses, responses
    of status 500 and above, and requests that were sent again, here or to another server."""
    unanswered: int = 0
    """Number of `requests` that ended without an answer since the balancer started: refused connections, and tries
    after which the request was sent again. Responses that were reset or cut off are not among them."""
    agent_check: bool = False
    """An agent on the server sets its weight too."""
    srv_record: bool = False
    """Its weight comes from DNS."""
    cookie: str = ""
    """The value that keeps a known client on this server; empty: none."""
    maxconn: int | None = None
    """The most requests that it gets at a time; None: no limit, or none that can be set."""
    queue_mean_ms: float | None = None
    """Mean time in its queue over the last requests; None before the first."""
    placeholder: Placeholder = ""
    uncounted: str = ""
    """Why its counters are not known, in words. They are 0 then, and mean nothing."""
    address: str = ""
    """ADDRESS:PORT of its machine; empty where the balancer shows none."""
    answers_pass: bool = True
    """Its answers pass the balancer's host; with IPVS only where it rewrites addresses."""
    is_tcp: bool = True
    """Its service uses TCP."""
    is_encrypted: bool = False
    """The balancer asks it over TLS."""
    slow_start: bool = False
    """It came back from a failed check, and the balancer's own slow start holds its weight down."""

    @property
    def available(self) -> bool:
        """Whether it takes requests with a weight above 0."""
        return self.condition in TAKES_REQUESTS


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A balancer's process and one of its pools at one moment, as the balancer shows them."""

    balance: str
    """The balance algorithm, as the balancer calls it."""
    weights_mean: WeightsMean | None
    """What weights set under `balance`; None: not known."""
    servers: Sequence[Server]
    pid: int = 0
    uptime_s: int = 0
    connections: int = 0
    """Accepted since the process started, ours included."""
    cookie: str = ""
    """The cookie that keeps known clients on their servers; empty: none."""
    most_weight: int = 256
    """The highest weight that this balancer takes."""
    weighs_away: bool = False
    """A server that takes no requests can be given the weight with which it comes back."""
    serves_in_runs: bool = False
    """A server with a lowered weight gets its requests in runs. They are longer the smaller the common divisor of all
    weights is."""
    counts: Literal["requests", "connections"] = "requests"
    """The unit of `Server.requests` and `in_flight`. A connection may carry many requests, so with connections the
    nodes give the pool's rate, and queues and errors are not known."""
    generation: int = 0
    """It changes when a part of the balancer was started anew, which knows nothing of our weights."""
    absent: tuple[str, ...] = ()
    """Each part of the balancer that did not answer, in words. When it is back, weights that it shows may be ours."""
    returned: bool = False
    """A part that did not answer before does so again, with the weights that it had then."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Servers that the balancer shows in a way that cannot be read: name -> why, in words. They are not in `servers`;
    what is known of them stays."""
    trouble: tuple[str, ...] = ()
    """Anything else that is wrong with the balancer, in words."""

    @property
    def by_concurrency(self) -> bool:
        """True when weights share the requests in flight. An unknown meaning counts as a share of the requests."""
        return self.weights_mean == "concurrency"

    def restarted_since(self, before: Snapshot | None) -> bool:
        """True when the balancer was made anew since the snapshot `before`, and knows nothing of our weights."""
        return before is not None and (
            self.pid != before.pid
            or self.uptime_s < before.uptime_s
            or self.connections < before.connections
            or self.generation != before.generation
        )

    def not_reached(self, servers: Collection[str]) -> list[str]:
        """Why some of these servers' weights cannot be set now, in words. Setting them is still due."""
        return [*self.absent, *(why for name, why in self.unreadable.items() if name in servers)]

    def describe_not_reached(self, servers: Collection[str]) -> str:
        """`not_reached` as a sentence about restoring the baseline weights."""
        why = "; ".join(self.not_reached(servers))
        others = "the other servers have their baseline weights, and the stored baseline is kept"
        return f"not everything is restored: {why}; {others}"


class Balancer(abc.ABC):
    """Reads and sets the weights of one pool of one balancer. Not for several threads at once.

    It keeps no weights of its own: what the engine believes is compared with what `read` returns, so reloads and other
    people's changes are seen.
    """

    @abc.abstractmethod
    def read(self) -> Snapshot:
        """A fresh snapshot. Raises BalancerUnreachable (trying again may help) or BalancerError.

        Callers rely on this for every balancer:
        - `available` is false for a server that takes no requests whatever its weight. It is left alone, and `weight`
          is the weight that it will come back with.
        - A `configured` that differs from the one when the baseline was taken is the new baseline.
        - `pid` changes, or `uptime_s` or `connections` falls, when the balancer was made anew and may have forgotten
          our weights.
        """

    @abc.abstractmethod
    def set_weights(self, weights: Mapping[str, int]) -> None:
        """Sets absolute weights by server name and returns when they are in force, read back from the balancer.

        Everything else about the servers stays as it is. Raises BalancerError before anything is changed when a name
        or weight is not right. It is also raised afterwards, when the balancer refused or shows another weight than
        the one that was set. The other servers' weights may be set then; the next `read` shows them.
        """

    def set_maxconns(self, maxconns: Mapping[str, int]) -> None:
        """As `set_weights`, for the most requests that a server gets at a time; at least 1.

        Raises BalancerError where the balancer has no such limit. None of its servers shows one then.
        """
        raise BalancerError(f"no `maxconn` can be set on this balancer: {', '.join(maxconns)}")

    def percents_for_nodes(self) -> Mapping[str, int]:
        """The percentage of its configured weight that each server's node has to answer, by server.

        Empty where the balancer does not fetch its weights from the nodes.
        """
        return {}

    def restore_weights(self, weights: Mapping[str, int], lease_s: float) -> None:  # noqa: ARG002
        """Sets baseline weights without an engine. An engine that ran before has left leases of at most `lease_s`."""
        self.set_weights(weights)


@dataclass(frozen=True)
class Target:
    """A thing that a pool drives and that only one lbengine may drive."""

    place: str
    """Where it is, in words."""
    lock: str
    """The name of its lock on this host."""
    lease: tuple[str, str]
    """The name of its lease among all hosts: what is driven, and where."""
    is_remote: bool = False
    """Other hosts reach it too."""


@dataclass(frozen=True)
class Backend(Generic[Pool]):
    """One kind of balancer: how the pools that name it in `balancer` are driven."""

    settings: type[Pool]
    """The settings of its pools. Their tag is its word in `balancer`."""
    open: Callable[[Pool, float], Balancer]
    """(pool, timeout in s for an answer) -> the pool's balancer. Opens no connection yet."""
    check: Callable[[Pool, LbengineSettings, Mapping[str, int]], list[str]]
    """(pool, settings, weights by server that are not ours) -> warnings about a balancer before it is driven. The
    weights are given for servers whose present weights may be ours. Raises BalancerError."""
    targets: Callable[[Pool], list[Target]]
    rest: Callable[[Pool, PoolSettings], Pool | None] = lambda pool, _: pool
    """(pool, another pool at another place) -> the targets of the first that the second does not drive, as a pool;
    None where there are none."""
    claim: Callable[[PoolSettings], str] = lambda _: ""
    """Why no other backend may drive this pool, in words; empty where it may. Raises BalancerError."""
    lacks: Callable[[Pool], list[str]] = lambda _: []
    """The rights and programs that the controller's user lacks on this host to drive the pool, in words with the
    remedy."""
    advice: Callable[[Pool, Snapshot], tuple[str, str] | None] = lambda _, __: None
    """(measurement, remedy) where another balance algorithm works better with Slackwater; None where not."""
