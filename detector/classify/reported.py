"""What the balancer counts of the nodes, from lbengine's Cycles."""

from __future__ import annotations

import math
from collections.abc import Mapping

from slackwater.core.messages import Cycle

Reported = tuple[float, float, float]
"""What the balancer shows of a node: requests and failures per second (NaN: not counted), weight over full weight."""


def reported(cycle: Cycle, node_of: Mapping[str, str]) -> dict[str, Reported]:
    """What a Cycle shows of each node; servers that share a node are added up.

    `node_of`: server -> node, for servers that have another name than their node.
    """
    by_node: dict[str, Reported] = {}
    for server in cycle.servers:
        node = node_of.get(server.server, server.server)
        rps, failed, part = by_node.get(node, (0.0, 0.0, 1.0))
        part = min(part, server.weight / server.full_weight if server.full_weight else 1.0)
        rps += math.nan if server.rps is None else server.rps
        failed += math.nan if server.errors_per_s is None else server.errors_per_s
        by_node[node] = rps, failed, part
    return by_node
