"""HAProxy at sites that forbid writing to its admin socket: weights go by the agent-check protocol.

HAProxy asks each server's agent (here the node's monitor) every `agent-inter`, and takes the answer "50%" as that share
of the configured weight (HAProxy Configuration Manual, section 5.2, `agent-check`). So this backend only sends each
monitor its answer, and looks whether HAProxy shows the weight some time later.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from slackwater.lbengine.balancer import Balancer, BalancerError, Server, Snapshot

PATIENCE_S = 5.0
"""A weight that HAProxy does not show after this time was lost. It is two rounds of the default `agent-inter`."""
SEND_AGAIN_S = 0.5
"""Time after which a monitor is sent its answer again, well within its lease."""
LOOK_EVERY_S = 0.1
MOST_PERCENT = 25_600


class Reads(Protocol):
    """The HAProxy, or HAProxies, as they are needed here. A socket of level `operator` is enough."""

    def read(self) -> Snapshot: ...

    def expect(self, weights: Mapping[str, int]) -> None:
        """Announces weights that HAProxy will show soon, whoever sets them."""


class AgentCheck(Balancer):
    """A balancer whose weights are asked for, not set. `clock` is monotonic.

    Unlike elsewhere, `set_weights` returns before the weights are in force: that takes HAProxy's `agent-inter`. Until
    then, and for at most `PATIENCE_S`, `read` shows the weights that were asked for. After that time the weight that
    HAProxy shows counts. If it is still a different one, the server's monitor is sent nothing more until the weight
    changes again; without a lease it answers 100%. `maxconn` cannot be set this way, so no server shows one.
    """

    def __init__(
        self,
        haproxy: Reads,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._haproxy = haproxy
        self._clock = clock
        self._sleep = sleep
        self._configured: dict[str, int] = {}
        self._asked: dict[str, int] = {}
        self._wrong_since_s: dict[str, float] = {}
        """By server, since when HAProxy has shown another weight than the one asked for last."""
        self._sent: dict[str, tuple[float, int]] = {}
        """Server -> the time and the percentage that its node was last sent."""

    def read(self) -> Snapshot:
        """HAProxy's snapshot, with the weights that are on their way. Raises BalancerError."""
        now_s, snapshot = self._clock(), self._haproxy.read()
        for server in snapshot.servers:
            if self._configured.get(server.name, server.configured) != server.configured:
                self._asked.pop(server.name, None)  # a share of another weight now
        self._configured = {server.name: server.configured for server in snapshot.servers}
        shown = [self._as_asked(server, now_s) for server in snapshot.servers]
        unheard = tuple(
            f"{server.name} shows weight {server.weight} instead of the one asked for: does its line have"
            " `agent-check`, and does its node's monitor answer?"
            for server in snapshot.servers
            if self._is_unheard(server.name, now_s)
        )
        trouble = snapshot.trouble + unheard
        return dataclasses.replace(snapshot, servers=tuple(shown), trouble=trouble, weighs_away=False)

    def set_weights(self, weights: Mapping[str, int]) -> None:
        """Asks for absolute weights. Raises BalancerError, and asks for none, when one of them cannot be reached."""
        for server, weight in weights.items():
            if server not in self._configured:
                raise BalancerError(f"agent-check: HAProxy has shown no server `{server}`; nothing was asked for")
            if not 0 <= weight <= 256:
                raise BalancerError(
                    f"agent-check: weight {weight} for {server}: expected 0..256; nothing was asked for"
                )
            if weight > 0 and self._configured[server] == 0:
                raise BalancerError(
                    f"agent-check: {server} is configured with weight 0, of which every share is 0; nothing was asked"
                    " for"
                )
        now_s = self._clock()
        for server, weight in weights.items():
            self._asked[server], self._wrong_since_s[server] = weight, now_s
        self._haproxy.expect({server: in_force(weight, self._configured[server]) for server, weight in weights.items()})

    def restore_weights(self, weights: Mapping[str, int], lease_s: float) -> None:
        """Waits until HAProxy shows these weights, as it does when the nodes' leases of `lease_s` have ended.

        Nothing is sent. Raises BalancerError when it takes longer than `lease_s` + `PATIENCE_S`.
        """
        until_s = self._clock() + lease_s + PATIENCE_S
        while True:
            servers = [server for server in self._haproxy.read().servers if server.name in weights]
            wrong = [
                f"{server.name} shows {server.weight} instead of {weights[server.name]}"
                for server in servers
                if server.weight != in_force(weights[server.name], server.configured)
            ]
            if not wrong:
                return
            if self._clock() >= until_s:
                raise BalancerError(
                    f"agent-check: {', '.join(wrong)}: does its node's monitor answer? If not: `disable agent` and"
                    " `set server ... weight` on HAProxy's admin socket"
                )
            self._sleep(LOOK_EVERY_S)

    def percents_for_nodes(self) -> dict[str, int]:
        """The percentages to send to the servers' monitors now: new ones, and those that are due again."""
        now_s = self._clock()
        due = {}
        for server in self._asked.keys() & self._configured.keys():
            percent = percent_of(self._asked[server], self._configured[server])
            sent_s, sent_percent = self._sent.get(server, (-SEND_AGAIN_S, -1))
            if not self._is_unheard(server, now_s) and (percent != sent_percent or now_s - sent_s >= SEND_AGAIN_S):
                due[server] = percent
                self._sent[server] = (now_s, percent)
        return due

    def _as_asked(self, server: Server, now_s: float) -> Server:
        without_limit = dataclasses.replace(server, maxconn=None)
        asked = self._asked.get(server.name)
        if asked is None:  # the weight that an earlier run asked for stays until we ask for another
            self._asked[server.name] = server.weight
            return without_limit
        if server.weight == in_force(asked, server.configured):
            self._wrong_since_s.pop(server.name, None)
        elif now_s - self._wrong_since_s.setdefault(server.name, now_s) >= PATIENCE_S:
            return without_limit
        return dataclasses.replace(without_limit, weight=asked)

    def _is_unheard(self, server: str, now_s: float) -> bool:
        return now_s - self._wrong_since_s.get(server, now_s) >= PATIENCE_S


def percent_of(weight: int, configured: int) -> int:
    """The whole percentage of a configured weight that HAProxy turns into this weight, or into the next higher one."""
    return min(-(-100 * weight // configured), MOST_PERCENT) if configured > 0 else 100


def in_force(weight: int, configured: int) -> int:
    """The weight that HAProxy makes of the percentage for this weight: the same up to a configured weight of 100."""
    return min(configured * percent_of(weight, configured) // 100, 256)
