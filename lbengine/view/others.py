"""Of which nodes another controller of the pool speaks, so that this one is silent about them. Pure.

A Sample counts for its own node alone. Whoever has a node's password may publish Samples of that node, also such that
look like another controller's: they silence this one about that node, and about no other.
"""

from __future__ import annotations

from slackwater.core.messages import Sample

BUSY_WITHIN_S = 5.0
"""A balancer without requests for this long is idle."""
LONGEST_PROMISE_S = 60.0
"""The longest time until its next Sample that another controller is believed to announce."""


class OtherControllers:
    """What was heard of the pool's other controllers. `boot_id`: this host's; `unannounced_s`: how long a Sample counts
    that does not announce the next one."""

    def __init__(self, boot_id: str, unannounced_s: float) -> None:
        self._boot_id, self._unannounced_s = boot_id, unannounced_s
        self._busy_until_s: dict[str, float] = {}
        """Boot id -> until when the balancer of that host counts as busy."""
        self._speak_until_s: dict[str, float] = {}
        """Node -> until when another controller speaks of it."""

    def hear(self, sample: Sample, now_s: float, *, we_are_busy: bool) -> None:
        """Notes a Sample of a balancer's view. `we_are_busy`: this host's balancer has requests.

        The controller whose balancer has requests speaks; of two alike the one with the smaller boot id.
        """
        boot_id = sample.boot_id
        if boot_id == self._boot_id:
            return
        if sample.traffic is not None and sample.traffic.rps:
            self._busy_until_s = {host: until_s for host, until_s in self._busy_until_s.items() if until_s > now_s}
            self._busy_until_s[boot_id] = now_s + BUSY_WITHIN_S
        they_are_busy = self._busy_until_s.get(boot_id, now_s) > now_s
        if they_are_busy > we_are_busy or (they_are_busy == we_are_busy and boot_id < self._boot_id):
            promised_s = min(sample.next_within_s or self._unannounced_s, LONGEST_PROMISE_S)
            self._speak_until_s[sample.node] = now_s + promised_s

    def speak_of(self, node: str, now_s: float) -> bool:
        """Whether another controller speaks of this node now."""
        return now_s < self._speak_until_s.get(node, now_s)
