"""Settings of the part that looks at servers from the balancer."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from slackwater.core.config.kinds import Settings


class BalancerViewSettings(Settings, frozen=True):
    """Samples of servers without a monitor, from what their balancer and the packets on its host show."""

    mode: Annotated[
        Literal["off", "on"],
        Meta(description="on: servers without a monitor have Samples too, are shown, and are judged by their requests"),
    ] = "on"
    look_s: Annotated[float, Meta(ge=0.05, le=5, description="seconds from one look at the servers to the next")] = 0.2
    sniffer: Annotated[
        str,
        Meta(
            description="the program that times requests from the packets on this host, which needs CAP_NET_RAW."
            " Without it the balancer's counters give rates, errors and mean response times. Empty: the counters alone"
        ),
    ] = "slackwater-sniffer"
    tells_monitors: Annotated[
        bool,
        Meta(
            description="true: monitors are told of their node's requests where the packets on this host show all of"
            " them, and capture none themselves. It halves what they cost; a neighbour is seen some 0.15 s later"
        ),
    ] = False
