"""The rescue: in an episode the balancer sends a request that is not answered in time to another server too.

What is sent twice costs twice: the slow server goes on with what it was asked. So it is armed only beside a noisy
neighbour, where every other server has room, and it ends for a while when a request was failed by it. The balancer
holds the budget, and forgets the time-out by itself when nobody renews it.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import median

from lbengine.balancer import BalancerError, RescueCounts, Server, Snapshot
from lbengine.writer import BY, Writer
from slackwater.config import MOST_RESCUE_TIMEOUT_MS, PoolSettings
from slackwater.messages import Change, ChangeCause, Verdict

P99_OF_P95 = math.log(100) / math.log(20)
"""Of response times with an exponential tail."""
TIMES_P99 = 3.0
"""A healthy server hardly ever takes this many times its 99th percentile."""
REMEMBERED = 50
"""Calm Verdicts of a node: the first ones of an episode, while it still counts as calm, do not move their median."""
PAUSE_S = 10.0
"""Once ended it is not armed again so soon: room comes and goes, and the balancer counts its budget for this time."""
PAUSE_AFTER_FAILURE_S = 600.0
"""The same, after a request had no answer while it was armed."""


@dataclass(frozen=True)
class Wish:
    """What the rescue should be now."""

    timeout_ms: int
    """0: off."""
    server: str
    """The one whose episode it is; empty: there is none."""
    why: str
    cause: ChangeCause


def wanted(
    snapshot: Snapshot, verdicts: Mapping[str, Verdict], calm_p95_ms: float | None, least_ms: int, u_threshold: float
) -> Wish:
    """Whether it should be armed. `verdicts` by server; `calm_p95_ms` of the slowest node, None: not known."""
    servers = [server for server in snapshot.servers if server.available and not server.backup]
    slow = [server.name for server in servers if _is_slow(verdicts.get(server.name))]
    if not slow:
        return Wish(0, "", "no server is beside a noisy neighbour any more", "calm")
    if any(verdict.state == "all_slow" for verdict in verdicts.values()):
        return Wish(0, slow[0], "all servers are slow alike", "all_slow")
    others = [server for server in servers if server.name not in slow]
    full = [server.name for server in others if not _has_room(server, verdicts.get(server.name), u_threshold)]
    if full or not others:
        return Wish(0, slow[0], f"no room on {', '.join(full) or 'any other server'}", "bounded")
    if calm_p95_ms is None:
        return Wish(0, slow[0], "how long responses take in calm is not known", "unknown")
    timeout_ms = max(least_ms, math.ceil(TIMES_P99 * P99_OF_P95 * calm_p95_ms))
    calm = f"p95 in calm {calm_p95_ms:.3g} ms"
    if timeout_ms > MOST_RESCUE_TIMEOUT_MS:
        return Wish(0, slow[0], f"responses take too long for it: {calm}", "bounded")
    why = (
        f"{slow[0]} is beside a noisy neighbour: a GET or HEAD that no server answers within {timeout_ms} ms is sent to"
        f" another one too ({calm})"
    )
    return Wish(timeout_ms, slow[0], why, "interference")


def _is_slow(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.state == "interference" and verdict.shown


def _has_room(server: Server, verdict: Verdict | None, u_threshold: float) -> bool:
    if verdict is None or verdict.state != "calm" or verdict.cpu is None:
        return False
    return server.queued == 0 and verdict.cpu < u_threshold


class Rescue:
    """Arms and disarms the balancer's rescue of one pool, each with a Change in the journal.

    Does nothing where the pool's settings do not ask for it. Times are of a monotonic clock.
    """

    def __init__(self, pool: PoolSettings, writer: Writer, may_arm: Callable[[], bool]) -> None:
        """`may_arm`: whether the balancer is surely ours at this moment."""
        self.timeout_ms = 0
        """In force, or in observe mode what would be; 0: off."""
        self.sent_twice = 0
        """Requests, since this lbengine began."""
        self._pool = pool
        self._least_ms = pool.rescue_after_ms
        self._writer = writer
        self._may_arm = may_arm
        self._told_ms: int | None = None
        """What the balancer has; None: not known, an lbengine before us may have armed it."""
        self._server = ""
        self._calm_p95_ms: dict[str, deque[float]] = {}
        self._counts: RescueCounts | None = None
        self._not_before_s = 0.0

    def turn(self, snapshot: Snapshot, verdicts: Mapping[str, Verdict], now_s: float) -> list[str]:
        """One turn; `verdicts` are fresh, by server. Returns remarks. A balancer that does not take it is one."""
        if self._least_ms is None:
            return []
        for server, verdict in verdicts.items():
            if verdict.state == "calm" and verdict.rt_p95_ms is not None:
                self._calm_p95_ms.setdefault(server, deque(maxlen=REMEMBERED)).append(verdict.rt_p95_ms)
        calm = max((median(self._calm_p95_ms[name]) for name in verdicts if name in self._calm_p95_ms), default=None)
        wish = wanted(snapshot, verdicts, calm, self._least_ms, self._pool.u_threshold)
        if wish.timeout_ms and self._writer.acting and not self._may_arm():
            wish = replace(wish, timeout_ms=0, why="the lease on the balancer is not renewed", cause="bounded")
        if not wish.timeout_ms:
            return self._disarm(wish.why, wish.cause, now_s)
        if self.timeout_ms:
            return self._renew(now_s)
        return self._arm(wish, now_s) if now_s >= self._not_before_s else []

    def end(self, why: str, now_s: float) -> None:
        """Disarms it at once. A balancer that does not answer forgets it by itself soon."""
        if self._least_ms is not None:
            self._disarm(why, "put_back", now_s)

    def forget(self) -> None:
        """What is in force is not ours to tell: another lbengine drives the balancer, or it was only imagined."""
        self.timeout_ms, self._told_ms, self._counts = 0, None, None

    def _arm(self, wish: Wish, now_s: float) -> list[str]:
        made = self._change(wish.server, wish.timeout_ms, wish.why, wish.cause, applied=self._writer.acting)
        if not self._writer.recorded(made):
            return ["the rescue is not armed, since that cannot be recorded"]
        if self._writer.acting:
            try:
                self._told_ms = None
                self._counts = self._writer.balancer.set_rescue(wish.timeout_ms)
            except BalancerError as error:
                with contextlib.suppress(BalancerError):  # one of several may have taken it
                    self._writer.balancer.set_rescue(0)
                self._not_before_s = now_s + PAUSE_S
                refused = self._change(wish.server, wish.timeout_ms, str(error), "not_set", applied=False)
                self._writer.try_record(refused)
                return [str(error)]
            self._told_ms = wish.timeout_ms
        self.timeout_ms, self._server = wish.timeout_ms, wish.server
        return [f"rescue of {wish.server} armed ({wish.why})"]

    def _renew(self, now_s: float) -> list[str]:
        if not self._writer.acting:
            return [f"would send requests to another server too after {self.timeout_ms} ms"]
        try:
            counts = self._writer.balancer.set_rescue(self.timeout_ms)
        except BalancerError as error:
            return [str(error)]
        before, self._counts = self._counts or counts, counts
        self.sent_twice += max(counts.sent_twice - before.sent_twice, 0)
        if (failed := counts.failed - before.failed) > 0:
            why = f"{failed} requests had no answer, so it stays off for a while"
            remarks = self._disarm(why, "bounded", now_s)
            self._not_before_s = now_s + PAUSE_AFTER_FAILURE_S
            return remarks
        return [f"rescue after {self.timeout_ms} ms: {self.sent_twice} requests sent twice so far"]

    def _disarm(self, why: str, cause: ChangeCause, now_s: float) -> list[str]:
        if self.timeout_ms:
            self._writer.try_record(self._change(self._server, 0, why, cause, applied=bool(self._told_ms)))
            self._not_before_s = now_s + PAUSE_S
        remarks = [f"rescue off ({why})"] if self.timeout_ms else []
        self.timeout_ms = 0
        if self._told_ms or (self._told_ms is None and self._writer.acting):
            try:
                self._writer.balancer.set_rescue(0)
                self._told_ms = 0
            except BalancerError as error:
                remarks.append(str(error))
        return remarks

    def _change(self, server: str, timeout_ms: int, why: str, cause: ChangeCause, *, applied: bool) -> Change:
        return self._writer.change("rescue", server, self.timeout_ms, timeout_ms, why, BY, cause, applied=applied)
