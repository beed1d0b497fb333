"""A node's monitor sees more than its balancer: while the monitor speaks, the balancer's Samples are left out. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slackwater.core.messages import Sample
from slackwater.detector.features.columns import Row, is_outside, node_of


def monitors_first(
    arrived: Sequence[Row], samples: Sequence[Sample], has_monitor: Callable[[str], bool]
) -> tuple[Sequence[Row], Sequence[Sample]]:
    """The Samples of a tick without those of the balancer whose node has a monitor that speaks.

    `samples`: the same as `arrived`, or empty. `has_monitor`: whether a node's monitor was heard before this tick.
    """
    outside = [is_outside(row) for row in arrived]
    if not any(outside):
        return arrived, samples
    nodes = [node_of(row) for row in arrived]
    monitored = {node for node, at_balancer in zip(nodes, outside, strict=True) if not at_balancer or has_monitor(node)}
    kept = [number for number, node in enumerate(nodes) if not outside[number] or node not in monitored]
    return [arrived[number] for number in kept], [samples[number] for number in kept if samples]
