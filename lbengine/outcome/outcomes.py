"""What a change was for and what came of it: forecasts, outcomes, and whether a lower weight was followed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from lbengine.balancer import Snapshot
from lbengine.baseline import Baseline
from lbengine.decision.ramp import Position
from lbengine.outcome import forecast, outcome
from lbengine.outcome.shares import ShareMonitor
from lbengine.writer import BY, Writer
from slackwater.messages import Change, Verdict


class ChangeOutcomes:
    """Keeps what it needs of the last seconds; `node_of` gives a server's node. Call `see` first in each turn."""

    def __init__(self, writer: Writer, node_of: Callable[[str], str]) -> None:
        self._writer = writer
        self._node_of = node_of
        self._percentiles = forecast.Percentiles()
        self._follow_ups = outcome.FollowUps({})
        self._monitor = ShareMonitor()
        self._now_s = 0.0
        self._rates: dict[str, float] = {}
        self._shares: dict[str, float] = {}
        self._p95_ms: dict[str, float] = {}
        self._capacity_rps: dict[str, float] = {}
        self._now_ms: float | None = None

    def see(self, now_s: float, verdicts: Mapping[str, Verdict], rates: Mapping[str, float] | None) -> None:
        """Takes in fresh Verdicts by node and the rates by server."""
        self._now_s = now_s
        self._rates = dict(rates or {})
        total = sum(self._rates.values())
        self._shares = {name: rate / total for name, rate in self._rates.items()} if total > 0.0 else {}
        self._percentiles.add(now_s, verdicts)
        by_node = self._percentiles.p95_ms()
        nodes = {name: self._node_of(name) for name in self._rates}
        self._p95_ms = {name: by_node[node] for name, node in nodes.items() if node in by_node}
        told = {name: verdicts[node].capacity_rps for name, node in nodes.items() if node in verdicts}
        self._capacity_rps = {name: rps for name, rps in told.items() if rps}
        self._now_ms = forecast.now_ms(self._p95_ms, self._rates)

    def forecast(self, changes: list[Change], snapshot: Snapshot, positions: Mapping[str, Position]) -> list[Change]:
        """The changes with the pool's p95 as it is, and as the weights of `positions` are predicted to make it."""
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
        """Records what came of moves that are long enough ago, or that these changes cut short."""
        ended = self._follow_ups.due(self._now_s)
        for made in changes:
            if made.what == "weight" and made.applied:
                ended += self._follow_ups.add(made, self._now_s, self._shares.get(made.target))
        for move, after_s in ended:
            first = move.first
            why = outcome.told(move, after_s, self._now_ms, self._shares.get(first.target))
            told = self._writer.change("outcome", first.target, first.rt_p95_ms, self._now_ms, why, BY, applied=True)
            predicted_ms = first.rt_p95_predicted_ms
            self._writer.try_record(
                msgspec.structs.replace(
                    told, rt_p95_ms=self._now_ms, rt_p95_predicted_ms=predicted_ms, follows=first.id
                )
            )

    def over_share(self, snapshot: Snapshot, baselines: Mapping[str, Baseline]) -> list[str]:
        """In words, which reduced servers keep far more than their share (cookies do that); recorded once each."""
        weights = {server.name: server.weight for server in snapshot.servers if server.available and not server.backup}
        # Under least connections a weight above 0 says nothing of the share.
        silent = snapshot.by_concurrency
        judged = {n: b.weight for n, b in baselines.items() if not (silent and weights.get(n, 0) > 0)}
        high, news = self._monitor.look(self._now_s, self._shares, weights, judged)
        remarks = []
        for name, (share, expected) in high.items():
            why = f"{name} gets {share:.0%} of the requests, its weight says {expected:.0%}"
            if snapshot.cookie or any(server.cookie for server in snapshot.servers):
                why += ": cookie persistence sends known clients there"
            remarks.append(why)
            if name in news:
                made = self._writer.change("share", name, round(expected, 3), round(share, 3), why, BY, applied=False)
                self._writer.try_record(made)
        return remarks


def _with_forecast(made: Change, now_ms: float, predicted_ms: float | None) -> Change:
    """The change with what the pool's p95 is and will be; one that is tried again stays as it is."""
    if made.rt_p95_ms is not None:
        return made
    will = f", predicted {predicted_ms:.1f}" if predicted_ms is not None else ""
    return msgspec.structs.replace(
        made, rt_p95_ms=now_ms, rt_p95_predicted_ms=predicted_ms, why=f"{made.why}; p95 {now_ms:.1f} ms{will}"
    )
