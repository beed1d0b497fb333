"""Settings of what changes the nodes themselves, through their wsengines: the second stage and the governor."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from slackwater.core.config.kinds import Positive, Settings
from slackwater.core.messages.fields import Share

NodePolicy = Literal["hurry-up", "pareto"]
"""A policy that decides on the node itself: the governor only gives, renews and takes back its lease."""
GovernorPolicy = Literal[
    "slackwater",
    "static",
    "linux-ondemand",
    "linux-schedutil",
    "pegasus",
    "parties",
    "core-switch",
    NodePolicy,
]
NODE_POLICIES: tuple[GovernorPolicy, ...] = get_args(NodePolicy)
NODE_POLICY = "cpu.policy"
"""The knob that starts such a policy."""
BATCH_CORES, BATCH_RUNNING = "batch.cores", "batch.running"
"""The knobs of batch jobs beside the web server."""
GovernorKnob = Literal["cpu.cores", "cpu.frequency", "cpu.quota", "batch.cores", "batch.running"]
Knob = Literal[
    "apache.max_request_workers",
    "apache.keepalive_timeout",
    "apache.keepalive",
    "php_fpm.max_children",
    "cpu.frequency",
    "cpu.core_frequency",
    "cpu.uclamp_min",
    "cpu.cores",
    "cpu.quota",
    "cpu.policy",
    "cpu.share",
    "batch.cores",
    "batch.running",
    "streaming.num_threads",
]
"""A knob of a wsengine."""


class RetuneSettings(Settings, frozen=True):
    """The second stage: in long episodes the web servers themselves are retuned, through their wsengines."""

    mode: Annotated[
        Literal["off", "observe", "act"],
        Meta(
            description="off: no second stage; observe: record what it would do; act: give Orders to the nodes of pools"
            " that act too"
        ),
    ] = "off"
    order_key: Annotated[
        str, Meta(description="the private key (Ed25519, PEM, mode 0600) that signs Orders; required to act")
    ] = ""
    policy: Annotated[
        Literal["knowledge", "search"],
        Meta(description="knowledge: values by the knowledge base; search: by trying, and measuring response times"),
    ] = "knowledge"
    knowledge: Annotated[
        str,
        Meta(
            description="the knowledge base: a TOML file, severity -> factor or value for each knob; empty: the shipped"
            " one"
        ),
    ] = ""
    long_after_s: Annotated[Positive, Meta(description="an episode that lasts longer enters the second stage")] = 30.0
    no_room_after_s: Annotated[Positive, Meta(description="the same if the other servers cannot carry the load")] = 5.0
    leave_after_s: Annotated[
        Positive, Meta(description="a node that is calm this long leaves it, and gets its own values back")
    ] = 10.0
    lease_s: Annotated[
        float, Meta(ge=3, le=600, description="an Order that is not renewed undoes itself after this time")
    ] = 60.0
    drain_s: Annotated[
        float, Meta(gt=0, le=20, description="how long requests in flight may take to end before a reload")
    ] = 10.0
    reload_min_interval_s: Annotated[float, Meta(ge=0, description="shortest time between two reloads of one node")] = (
        10.0
    )
    leave_alone: Annotated[
        list[Knob],
        Meta(description="knobs that the second stage never sets: those of the governor, or what a site wants left"),
    ] = msgspec.field(default_factory=list)
    search_measure_s: Annotated[Positive, Meta(description="how long a search measures each try")] = 20.0
    calm_frequency: Annotated[
        str,
        Meta(
            description="what `cpu.frequency` is set to on nodes that are calm with latency to spare: a governor, or"
            " kHz; empty: it is left alone"
        ),
    ] = ""
    calm_below_p95_ms: Annotated[
        float, Meta(ge=0, description="latency to spare: the node's p95 has been below this for a minute")
    ] = 0.0

    def __post_init__(self) -> None:
        if self.mode == "act" and not self.order_key:
            raise ValueError('`order_key` is missing, which `mode = "act"` needs')


class GovernorSettings(Settings, frozen=True):
    """The governor: as many cores and hertz as each pool's `target_p95_ms` needs, through the nodes' wsengines."""

    mode: Annotated[
        Literal["off", "observe", "act"],
        Meta(
            description="off: no governor; observe: record what it would set; act: give Orders to the nodes of pools"
            " that act too, signed with `retune.order_key`. A pool without `target_p95_ms` has none"
        ),
    ] = "off"
    policy: Annotated[
        GovernorPolicy,
        Meta(
            description="what decides; slackwater: the cheapest configuration predicted to be enough; hurry-up and"
            " pareto: run on the nodes"
        ),
    ] = "slackwater"
    knobs: Annotated[
        list[GovernorKnob],
        Meta(
            min_length=1,
            description="what it may set, where a node's wsengine lists it too. The second stage must leave these"
            " alone (`retune.leave_alone`). cpu.quota stands in for a clock on nodes without cpu.frequency."
            " batch.cores and batch.running: batch jobs get the cores that the web server does not need; with"
            " cpu.cores only",
        ),
    ] = msgspec.field(default_factory=lambda: ["cpu.cores", "cpu.frequency", "cpu.quota"])
    lease_s: Annotated[
        float, Meta(ge=3, le=600, description="an Order that is not renewed undoes itself after this time")
    ] = 30.0
    lower_every_s: Annotated[
        float, Meta(ge=1, description="a node is lowered at most this often; more is given at once")
    ] = 10.0
    quota_shares: Annotated[
        list[Share],
        Meta(description="shares of its CPU time that `cpu.quota` may leave a node, ascending, 1 at the end"),
    ] = msgspec.field(default_factory=lambda: [0.4, 0.6, 0.8, 1.0])
    clocks_mhz: Annotated[
        list[Positive],
        Meta(description="clocks that the cores can have, ascending; empty: only the number of cores is chosen"),
    ] = msgspec.field(default_factory=list)
    node_period_ms: Annotated[
        int, Meta(ge=50, le=1000, description="how often `hurry-up` and `pareto` decide, on the node itself")
    ] = 50
    hot_after_ms: Annotated[
        int,
        Meta(
            ge=0, le=60_000, description="`hurry-up`: time in the hot function after which a thread has the high clock"
        ),
    ] = 450
    up_delay_us: Annotated[
        int, Meta(ge=10, le=1_000_000, description="`pareto`: a longer wait for a core takes a node one rung up")
    ] = 300
    curve: Annotated[
        Literal["a72", "flat", "steep"],
        Meta(description="how the voltage follows the clock, to estimate power"),
    ] = "a72"
    busy_w: Annotated[Positive, Meta(description="power in W that work adds to a core at its highest clock")] = 3.61
    idle_w: Annotated[float, Meta(ge=0, description="power in W of a core that has no work, at its highest clock")] = (
        0.65
    )

    def __post_init__(self) -> None:
        if self.clocks_mhz != sorted(set(self.clocks_mhz)):
            raise ValueError(f"`clocks_mhz`: expected ascending clocks, got {self.clocks_mhz}")
        shares = self.quota_shares
        if shares != sorted(set(shares)) or not shares or shares[0] <= 0.0 or shares[-1] != 1.0:
            raise ValueError(f"`quota_shares`: expected ascending shares above 0, with 1 at the end, got {shares}")

    @property
    def owns(self) -> set[str]:
        """The knobs that nobody else may set: its own, and those that write the same files."""
        on_the_node = [NODE_POLICY, "cpu.core_frequency"] if self.policy in NODE_POLICIES else []
        return {*self.knobs, *(["cpu.share"] if "cpu.quota" in self.knobs else []), *on_the_node}

    @property
    def may_set(self) -> set[str]:
        """The knobs that it gives Orders for; a policy on the node sets the others itself."""
        return {NODE_POLICY} if self.policy in NODE_POLICIES else set(self.knobs)
