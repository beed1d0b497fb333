"""nginx's `least_time`, open source since 1.31 (src/http/modules/ngx_http_upstream_least_time_module.c, nginx 1.31.3).

The time expected of a server is its mean response time in whole milliseconds, a moving average in which each answer
counts a twentieth, rounded up to the next 20 ms, times the requests that it would then have; the least wins, equals go
round. Beyond 5 s all are equally bad. A server that was not asked for longer than `fail_timeout` counts half of its
time for each further one.

`inflight` counts who waits already: the age of the requests in flight replaces the mean where that is more. It is to
the peer's favour, so it is on.
"""

from __future__ import annotations

import numpy as np

from slackwater.detector.features.columns import Ints
from slackwater_lab.sim.balancers.base import Balancer

FAIL_TIMEOUT_S = 10
"""nginx's default."""
STEP_MS = 20
MOST_MS = 5000
FRESH = 0.05


def averaged(before_ms: int, fresh_ms: int) -> int:
    """The moving average, which begins with the first value that is not 0."""
    return int(0.5 + fresh_ms * FRESH + before_ms * (1.0 - FRESH)) if before_ms else fresh_ms


class NginxLeastTime(Balancer):
    """`least_time last_byte inflight`, all servers of weight 1."""

    def __init__(self, servers: int, weights: Ints, dice: np.random.Generator) -> None:
        super().__init__(servers, weights, dice)
        self._mean_ms = [0] * servers
        self._waited_ms = [0] * servers
        """Moving average of how long those in flight wait."""
        self._checked_s = [0] * servers
        self._credit = [0] * servers
        self._age_ms = [0] * servers
        """Age of all requests in flight together, when their number last changed."""
        self._changed_ms = [0] * servers

    def choose(self, now_s: float) -> int:
        now_ms = int(1e3 * now_s)
        times = [self._expected_ms(number, now_ms) for number in range(self.servers)]
        least = min(times)
        best = times.index(least)
        equal = [number for number, time_ms in enumerate(times) if time_ms == least]
        if len(equal) > 1:
            for number in equal:
                self._credit[number] += 1
                if self._credit[number] > self._credit[best]:
                    best = number
            self._credit[best] -= len(equal)
        self._age_ms[best] += (now_ms - self._changed_ms[best]) * self.in_flight[best]
        self._changed_ms[best] = now_ms
        if now_ms // 1000 - self._checked_s[best] > FAIL_TIMEOUT_S:
            self._checked_s[best] = now_ms // 1000
        return best

    def _expected_ms(self, server: int, now_ms: int) -> int:
        flying, mean_ms = self.in_flight[server], self._mean_ms[server]
        unasked_s = now_ms // 1000 - self._checked_s[server]
        if unasked_s > FAIL_TIMEOUT_S:
            mean_ms >>= unasked_s // (FAIL_TIMEOUT_S + 1)
        if flying:
            waited_ms = self._age_ms[server] // flying + now_ms - self._changed_ms[server]
            self._waited_ms[server] = averaged(self._waited_ms[server], waited_ms)
            mean_ms = max(mean_ms, self._waited_ms[server])
        mean_ms = MOST_MS if mean_ms > MOST_MS else mean_ms + STEP_MS - mean_ms % STEP_MS
        return mean_ms * (1 + flying)

    def learn(self, server: int, now_s: float, took_s: float) -> None:
        now_ms, took_ms = int(1e3 * now_s), int(1e3 * took_s)
        before = self.in_flight[server] + 1
        self._age_ms[server] += (now_ms - self._changed_ms[server]) * before - took_ms
        self._changed_ms[server] = now_ms
        if before == 1:
            self._age_ms[server] = 0
        self._age_ms[server] = max(0, self._age_ms[server])
        self._mean_ms[server] = averaged(self._mean_ms[server], took_ms)
