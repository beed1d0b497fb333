"""The forecast of a change, its outcome some seconds later, and whether the requests follow a lower weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from slackwater.core.messages import Change, Verdict
from slackwater.lbengine.balancer import Snapshot
from slackwater.lbengine.baseline import Baseline
from slackwater.lbengine.decision.position import Position
from slackwater.lbengine.outcome import forecast
from slackwater.lbengine.writer import BY, Writer

AFTER_S = 10.0
LEAST_AFTER_S = 2.0
"""A move that another move cuts short sooner than this has no outcome: the response times are still the old ones."""


@dataclass
class Move:
    """Successive changes of one server's weight in one direction."""

    first: Change
    last: Change
    changed_s: float
    """Time of the last change."""
    share: float | None
    """The server's share of the requests before the move; None: not known."""


@dataclass
class FollowUps:
    """Moves whose outcome is still to be recorded."""

    waiting: dict[str, Move]
    """Server -> its move whose outcome is not known yet."""

    def add(self, change: Change, now_s: float, share: float | None) -> list[tuple[Move, float]]:
        """Adds a change of a weight.

        Returns the move that it cuts short, with the seconds since that move's last change; nothing where these are too
        few for an outcome. The few requests of a trial are no move: they change nothing that users feel.
        """
        if change.cause == "tried":
            return []
        before = self.waiting.get(change.target)
        if before is not None and before.last.lowers == change.lowers:
            before.last, before.changed_s = change, now_s
            return []
        self.waiting[change.target] = Move(change, change, now_s, share)
        if before is None or now_s - before.changed_s < LEAST_AFTER_S:
            return []
        return [(before, now_s - before.changed_s)]

    def due(self, now_s: float) -> list[tuple[Move, float]]:
        """Removes and returns the moves whose last change is `AFTER_S` ago, each with the seconds since then."""
        due = [move for move in self.waiting.values() if now_s - move.changed_s >= AFTER_S]
        for move in due:
            del self.waiting[move.first.target]
        return [(move, now_s - move.changed_s) for move in due]


PATIENCE_S = 5.0
"""A share may be too high for this long: requests are on their way, and the rate is a mean over time."""
FACTOR, MARGIN = 2.0, 0.05
"""A share counts as too high above FACTOR times the expected one plus MARGIN."""


@dataclass
class ShareMonitor:
    """Remembers since when a reduced server has got more requests than its weight calls for."""

    _since_s: dict[str, float] = field(default_factory=dict)
    _reported: set[str] = field(default_factory=set)

    def look(
        self, now_s: float, shares: Mapping[str, float], weights: Mapping[str, int], baselines: Mapping[str, int]
    ) -> tuple[dict[str, tuple[float, float]], set[str]]:
        """Reduced servers whose share has been too high for `PATIENCE_S`, as server -> (share, expected share); and the
        names of those that were not returned before."""
        whole = sum(weights.values())
        high: dict[str, tuple[float, float]] = {}
        for server, weight in weights.items():
            expected = weight / whole if whole else 0.0
            reduced = weight < baselines.get(server, 0)
            if reduced and shares.get(server, 0.0) > FACTOR * expected + MARGIN:
                if now_s - self._since_s.setdefault(server, now_s) >= PATIENCE_S:
                    high[server] = (shares[server], expected)
            else:
                self._since_s.pop(server, None)
                self._reported.discard(server)
        news = high.keys() - self._reported
        self._reported |= news
        return high, set(news)


class ChangeOutcomes:
    """Adds forecasts to Changes and records their outcomes. Call `see` first in each turn."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._percentiles = forecast.Percentiles()
        self._follow_ups = FollowUps({})
        self._monitor = ShareMonitor()
        self._now_s = 0.0
        self._rates: dict[str, float] = {}
        self._shares: dict[str, float] = {}
        self._p95_ms: dict[str, float] = {}
        self._capacity_rps: dict[str, float] = {}
        self._now_ms: float | None = None

    def see(self, now_s: float, verdicts: Mapping[str, Verdict], rates: Mapping[str, float] | None) -> None:
        """Adds fresh Verdicts and rates (requests/s), both by server."""
        self._now_s = now_s
        self._rates = dict(rates or {})
        total = sum(self._rates.values())
        self._shares = {name: rate / total for name, rate in self._rates.items()} if total > 0.0 else {}
        self._percentiles.add(now_s, verdicts)
        self._p95_ms = {name: p95 for name, p95 in self._percentiles.p95_ms().items() if name in self._rates}
        capacity = {name: verdict.capacity_rps for name, verdict in verdicts.items() if name in self._rates}
        self._capacity_rps = {name: rps for name, rps in capacity.items() if rps}
        self._now_ms = forecast.now_ms(self._p95_ms, self._rates)

    def forecast(self, changes: list[Change], snapshot: Snapshot, positions: Mapping[str, Position]) -> list[Change]:
        """The changes, with the pool's present p95 and its prediction for the weights of `positions`."""
        if self._now_ms is None or not changes:
            return changes
        weights = {
            server.name: positions[server.name].weight if server.name in positions else server.weight
            for server in snapshot.servers
            if server.available and not server.backup
        }
        predicted = forecast.after_ms(self._p95_ms, self._capacity_rps, self._rates, weights, snapshot.by_concurrency)
        return [_with_forecast(made, self._now_ms, predicted) for made in changes]

    def follow_up(self, changes: Sequence[Change]) -> None:
        """Records the outcomes of moves that are long enough ago, or that these changes cut short."""
        ended = self._follow_ups.due(self._now_s)
        for made in changes:
            if made.what == "weight" and made.applied:
                ended += self._follow_ups.add(made, self._now_s, self._shares.get(made.target))
        for move, after_s in ended:
            first, now_ms = move.first, self._now_ms
            # A higher weight is predicted as if the server were still slow, and more requests decide that.
            predicted_ms = first.rt_p95_predicted_ms if first.lowers else None
            why = _describe(move, after_s, now_ms, predicted_ms, self._shares.get(first.target))
            made = self._writer.change("outcome", first.target, first.rt_p95_ms, now_ms, why, BY)
            self._writer.try_record(
                msgspec.structs.replace(made, rt_p95_ms=now_ms, rt_p95_predicted_ms=predicted_ms, follows=first.id)
            )

    def over_share(self, snapshot: Snapshot, baselines: Mapping[str, Baseline]) -> list[str]:
        """The reduced servers that keep far more than their share, in words; each is recorded once. Cookies do that."""
        weights = {server.name: server.weight for server in snapshot.servers if server.available and not server.backup}
        # Under least connections a weight above 0 does not set the share.
        silent = snapshot.by_concurrency
        judged = {
            name: baseline.weight for name, baseline in baselines.items() if not (silent and weights.get(name, 0) > 0)
        }
        high, news = self._monitor.look(self._now_s, self._shares, weights, judged)
        remarks = []
        for name, (share, expected) in high.items():
            why = f"{name} gets {share:.0%} of the requests, its weight calls for {expected:.0%}"
            if snapshot.cookie or any(server.cookie for server in snapshot.servers):
                why += ": cookie persistence sends known clients there"
            remarks.append(why)
            if name in news:
                made = self._writer.change("share", name, round(expected, 3), round(share, 3), why, BY, applied=False)
                self._writer.try_record(made)
        return remarks


def _with_forecast(made: Change, now_ms: float, predicted_ms: float | None) -> Change:
    """The change with the pool's present and predicted p95. A change that is tried again keeps its first values."""
    if made.rt_p95_ms is not None:
        return made
    return msgspec.structs.replace(made, rt_p95_ms=now_ms, rt_p95_predicted_ms=predicted_ms)


def _describe(move: Move, after_s: float, p95_ms: float | None, predicted_ms: float | None, share: float | None) -> str:
    """The outcome of a move in words: first what users felt, then how."""
    first = move.first
    parts = ["the p95 is not known"]
    if first.rt_p95_ms is not None and p95_ms is not None:
        expected = "" if predicted_ms is None else f" (expected {predicted_ms:.1f})"
        parts = [f"p95 {first.rt_p95_ms:.1f} -> {p95_ms:.1f} ms{expected}"]
    if move.share is not None and share is not None:
        parts.append(f"its share of the requests {move.share:.0%} -> {share:.0%}")
    return f"{', '.join(parts)}: {after_s:.0f} s after the weight went from {first.before} to {move.last.after}"
