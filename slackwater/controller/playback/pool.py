"""The pool of a recording, and its balancer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from slackwater.core.config import PoolSettings
from slackwater.core.messages import Sample
from slackwater.lbengine.backends.haproxy.algorithms import weights_mean
from slackwater.lbengine.balancer import Balancer, BalancerError, Server, Snapshot

BALANCE = "roundrobin"
WEIGHT = 100
"""The weight that the lab configures for each server."""


class RecordedPool(PoolSettings, frozen=True, kw_only=True, tag_field="balancer", tag="recording"):
    """A pool that is a recording."""

    title: ClassVar[str] = "the recording"

    @classmethod
    def describe_place(cls, driven: Mapping[str, str]) -> str:  # noqa: ARG003
        return "a recording"


class RecordedBalancer(Balancer):
    """Shows each server with the weight that it had, and the requests that its node counted."""

    def __init__(self, servers: list[str]) -> None:
        self._requests = dict.fromkeys(servers, 0.0)
        self._in_flight = dict.fromkeys(servers, 0)

    def count(self, sample: Sample) -> None:
        """Takes a node's requests in."""
        traffic = sample.traffic
        if traffic is None:
            return
        self._requests[sample.node] += (traffic.rps or 0.0) * sample.period_s
        self._in_flight[sample.node] = traffic.in_flight or 0

    def read(self) -> Snapshot:
        servers = [
            Server(name=name, weight=WEIGHT, configured=WEIGHT, requests=int(count), in_flight=self._in_flight[name])
            for name, count in self._requests.items()
        ]
        return Snapshot(balance=BALANCE, weights_mean=weights_mean(BALANCE), servers=servers)

    def set_weights(self, weights: Mapping[str, int]) -> None:
        raise BalancerError(f"a recording's weights cannot be set: {', '.join(weights)}")
