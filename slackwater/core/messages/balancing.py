"""lbengine -> journal and monitors: servers, weights, cycles, and what monitors are asked for."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from slackwater.core.messages.causes import (
    CycleOutage,
    DecisionCause,
    EvennessOutcome,
    Mode,
    ServerCondition,
    WeightsMean,
)
from slackwater.core.messages.fields import (
    MOST,
    Count,
    Name,
    NonNegative,
    Positive,
    ServerName,
    Share,
    UnixTime,
    Version,
)
from slackwater.core.messages.sample import Traffic


class Weight(msgspec.Struct, omit_defaults=True):
    """What a node's monitor answers to HAProxy's agent-check. Subject: `slackwater.weight.<pool>.<node>`."""

    v: Version
    node: Name
    pool: Name
    time_unix_s: UnixTime
    percent: Annotated[int, Meta(ge=0, le=25600)]
    """Percentage of the weight that the node's server has in HAProxy's configuration."""
    lease_s: Positive
    """A Weight that is not renewed within this time is void: the monitor answers 100% then."""


LONGEST_ASK_S = 60.0
"""The longest lease that a monitor accepts."""


class Ask(msgspec.Struct, omit_defaults=True):
    """Asks a node's monitor for Samples as often as in an event, or with `traffic` to put that into its Samples.

    Subject: `slackwater.ask.<pool>.<node>`. A monitor that is told of its traffic need not capture packets."""

    v: Version
    node: Name
    pool: Name
    time_unix_s: UnixTime
    lease_s: Annotated[float, Meta(gt=0.0, le=LONGEST_ASK_S)]
    """How long after its arrival it holds; then the monitor's own pace, and its own capture, go on."""
    period_s: NonNegative | None = None
    """The time that `traffic` covers."""
    traffic: Traffic | None = None
    """The node's requests since the ask before, as the balancer's host sees them."""


class ServerState(msgspec.Struct, omit_defaults=True):
    """One server as the balancer showed it in a cycle, and what lbengine wants of it."""

    server: ServerName
    condition: ServerCondition
    weight: Count
    baseline: Count
    wanted: Count
    """The weight that the law and the guard agreed on; in observe mode it is not applied."""
    rps: NonNegative | None = None
    in_flight: Count | None = None
    rt_mean_ms: NonNegative | None = None
    """Mean response time that the node measured; where it did not, that of the balancer."""
    share: Share | None = None
    """Share of the pool's requests in the last second."""
    queue: Count | None = None
    """Requests that wait in the balancer for this server."""
    queue_mean_ms: NonNegative | None = None
    """Mean time in that queue over the balancer's last 1024 requests to this server."""
    balancer_rt_mean_ms: NonNegative | None = None
    """Mean response time as the balancer saw it, over its last 1024 requests: also where packets are encrypted."""
    errors_per_s: NonNegative | None = None
    """Requests that failed here, as the balancer saw them: failed connections, cut off responses, responses of status
    500 and above, and those that it sent again, here or to another server."""
    failed_share: Share | None = None
    """Share of its requests that failed, over the last 30 s."""
    peers_failed_share: Share | None = None
    """`failed_share` of all other servers together, where this server's is well above it; else absent."""
    maxconn: Count | None = None
    """Most requests that the balancer lets into this server at a time; absent: no limit."""
    why: str = ""
    cause: DecisionCause | None = None
    """`why` for programs; absent where nothing is decided."""
    calm_weight: Count | None = None
    """Its weight in calm, where that is not its baseline (`balance_capacity`)."""
    carries: Share | None = None
    """What it carries in calm for each unit of its baseline, over the highest of the pool; absent: not known."""
    advised: Count | None = None
    """Its weight among those that fill all servers alike; absent: none is advised."""
    backup: bool = False
    """It gets requests only while no other server takes any."""

    @property
    def full_weight(self) -> int:
        """The weight that it has when nothing is wrong."""
        return self.baseline if self.calm_weight is None else self.calm_weight


class Evenness(msgspec.Struct, omit_defaults=True):
    """How evenly the servers of a pool are filled in calm, as a mean over about half an hour."""

    outcome: EvennessOutcome
    mean: NonNegative | None = None
    """Utilisation that all servers would have if they were filled alike; absent: not known."""
    fullest: NonNegative | None = None
    """Utilisation of the fullest server."""
    evened: NonNegative | None = None
    """Utilisation of the fullest server with the advised weights."""
    saved: NonNegative = 0.0
    """Servers of mean size that the advised weights could save, at the same utilisation of the fullest server."""


class Cycle(msgspec.Struct, omit_defaults=True):
    """One turn of lbengine's loop over one pool. Subject: `slackwater.cycle.<pool>`."""

    v: Version
    pool: Name
    time_unix_s: UnixTime
    mode: Mode
    paused: bool
    balance: str
    """The balance algorithm: `roundrobin`, `leastconn`."""
    law: str
    sentence: str
    """What this cycle did, in a line."""
    servers: list[ServerState]
    weights_mean: WeightsMean | None = None
    """What weights set under `balance`; absent: it is not known."""
    controller: str = ""
    """Id of the controller whose lbengine took the turn (`slackwater.core.machine.controller_id`). The other parts of
    that controller act on its own Cycles alone; empty: the controller is not known."""
    outage: CycleOutage | None = None
    """Why there is nothing to show: `servers` is empty then, and `sentence` has the reason."""
    outage_since_unix_s: UnixTime | None = None
    last_known: list[ServerState] = []
    """What the balancer showed before that."""
    unseen: Count = 0
    """Parts of the balancer that did not answer, as one of two HAProxies, and servers that could not be read: `servers`
    shows the others alone."""
    evenness: Evenness | None = None
    """Absent before the pool was calm."""
    part: Count = 0
    """Number of this message, from 0, where a Cycle is too large for one message. Each of its messages has some of the
    servers, and all else."""
    parts: Annotated[int, Meta(ge=1, le=MOST)] = 1
    """Number of messages that make up this Cycle."""
