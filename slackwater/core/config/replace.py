"""Settings of chronic machines: which are worth replacing, and the site's program that replaces one."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from slackwater.core.config.kinds import Positive, Settings
from slackwater.core.messages.fields import Share


class ReplaceSettings(Settings, frozen=True):
    """Machines that are slow by themselves again and again. They are ranked in any case; `command` replaces them."""

    command: Annotated[
        str,
        Meta(
            description="program that replaces a machine, called with JSON on stdin when its server is empty; in pools"
            " that act only. Empty: no machine is replaced, the advice remains"
        ),
    ] = ""
    timeout_s: Annotated[Positive, Meta(description="a command that runs longer is killed")] = 900.0
    drain_s: Annotated[
        Positive,
        Meta(description="how long a drained server may take to be empty; then it gets its requests back, unreplaced"),
    ] = 120.0
    most_per_day: Annotated[
        int, Meta(ge=1, description="the command is run for at most so many machines of a pool in any 24 hours")
    ] = 1
    days: Annotated[int, Meta(ge=1, le=90, description="so many days until now decide")] = 7
    chronic_days: Annotated[
        int,
        Meta(ge=1, le=90, description="it pays to replace a machine that was slow by itself on so many of these days"),
    ] = 3
    least_lost_share: Annotated[
        Share,
        Meta(
            description="and that lost this share of its capacity in these days, beyond what the median of its peers"
            " lost; 0.02 are 200 minutes of a whole machine in a week"
        ),
    ] = 0.02
    states: Annotated[
        list[Literal["interference", "slow"]],
        Meta(
            min_length=1,
            description="the episodes that count; slow: those of servers without a monitor, of which the cause is not"
            " visible",
        ),
    ] = msgspec.field(default_factory=lambda: ["interference", "slow"])

    def __post_init__(self) -> None:
        if self.chronic_days > self.days:
            raise ValueError(f"`chronic_days`: expected at most `days`, {self.days}, got {self.chronic_days}")
