"""Detector -> lbengine: what the detector thinks of a node."""

from __future__ import annotations

from typing import Literal

import msgspec

from slackwater.core.messages.causes import Resource, State
from slackwater.core.messages.fields import Count, Name, NonNegative, Share, UnixTime, Version


class Verdict(msgspec.Struct, omit_defaults=True):
    """What the detector thinks of one node after a Sample. Subject: `slackwater.verdict.<pool>.<node>`."""

    v: Version
    node: Name
    pool: Name
    time_unix_s: UnixTime
    state: State
    since_unix_s: UnixTime
    """When this state began."""
    severity: Share
    """Share of the node's calm capacity that is lost, in `errors` of its requests; 0 in `calm`."""
    path: list[str]
    """Why, in words with values: the tree's path, then the state machine's part."""
    model: str
    """The model: its name and training date."""
    resource: Resource | None = None
    """What the neighbour takes away, where that is clear, in `interference`. `own limit` in `slow`, `overload` or
    `all_slow`: see `own_limit_cores`."""
    shown: bool = True
    """False in an episode that only waits for its end: its last Samples look calm."""
    sample_seq: Count | None = None
    """The Sample that it is about."""
    cpu: NonNegative | None = None
    """CPU utilisation."""
    cpu_predicted: NonNegative | None = None
    """What the regression predicts it to become."""
    capacity_rps: NonNegative | None = None
    """Requests per second at which this node's CPU would be full, now."""
    capacity_stderr_rps: NonNegative | None = None
    """Standard error of `capacity_rps`."""
    rps: NonNegative | None = None
    rt_mean_ms: NonNegative | None = None
    rt_p95_ms: NonNegative | None = None
    probability: Share | None = None
    """Of a neighbour beside this node now, in `errors` that it still fails; the state is decided with more patience
    than this number has."""
    calm_shows_within_s: NonNegative | None = 0.0
    """Mean time from its neighbour's end until this node is proven calm. Absent (null) where nothing that it shows
    would prove it: then only more requests can."""
    controller: Name | None = None
    """Whose detector says it: several controllers may share a bus. Absent: not known."""
    source: Literal["monitor", "balancer"] = "monitor"
    """Whose Samples of the node were judged: its monitor's, or those of the view from the balancer."""
    failed_share: Share | None = None
    """Share of its requests that failed, over the last 30 s."""
    peers_failed_share: Share | None = None
    """`failed_share` of all other servers together, where this one's is well above it or its state is `errors`; else
    absent."""
    own_limit_cores: NonNegative | None = None
    """CPUs that the server gets and no more while work waits. With the resource `own limit` facts of the kernel show
    that they are its own limit: a throttled quota, or a lowered clock that explains the loss. Else its CPU time is
    steady, by a limit of its own or beside a steady neighbour. Absent where no level is shown, and in `calm`."""
