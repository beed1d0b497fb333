"""governor -> journal: what it sets on a node."""

from __future__ import annotations

import msgspec

from slackwater.core.messages.causes import Mode
from slackwater.core.messages.fields import Count, Name, NonNegative, Share, Text, UnixTime, Version, Word


class Governed(msgspec.Struct, omit_defaults=True):
    """What the governor saw of a node in the last second, and set. Subject: `slackwater.governed.<pool>.<node>`."""

    v: Version
    node: Name
    pool: Name
    time_unix_s: UnixTime
    mode: Mode
    """In observe mode nothing is set: the `wanted` values are those that it would set."""
    policy: Word
    target_p95_ms: NonNegative
    why: Text
    rps: NonNegative | None = None
    rt_p95_ms: NonNegative | None = None
    busy_cores: NonNegative | None = None
    """CPU time per second, stolen time included."""
    interference: bool = False
    """The Verdict on the node: nothing is lowered."""
    cores: Count | None = None
    """Number of cores in force; absent: the node has no knob that the governor may set."""
    most_cores: Count | None = None
    """Number of cores without the governor."""
    wanted_cores: Count | None = None
    batch_cores: Count | None = None
    """Cores in force for the batch jobs beside the web server; 0: they stand still; absent: the governor sets none."""
    clock_knob: Word = ""
    """`cpu.frequency`; `cpu.core_frequency`, set on the node; `cpu.quota`, which stands in for a clock; empty: none."""
    clock_share: Share | None = None
    """Share of the highest clock in force; with `cpu.quota` of the cores' time."""
    wanted_clock_share: Share | None = None
    clock_mhz: NonNegative | None = None
    """The clock in force, where `clock_knob` is a clock."""
    watts: NonNegative | None = None
    """Power that the model gives. A quota lowers no clock, so it saves nothing there."""
    most_watts: NonNegative | None = None
    """Power that the model gives for the same work with all cores at the highest clock."""
    power_model: Word = ""
    seconds: Count = 0
    """Seconds with a p95 since the governor began."""
    misses: Count = 0
    """Seconds among these whose p95 was above the target."""
