"""Which servers fail, and whether their users lose answers by it. Pure.

Two questions about each server's failures (status 500 and above, resets, refused connections, what is sent again):

- **Does it fail well above its peers?** By Chernoff's bounds over `WINDOW_S`, so a few failures among few requests do
  not suffice. No load is moved to such a server.
- **Is it worse than its peers by its failures?** Then an episode begins, with the state `errors`. Two log-likelihood
  ratios add up as other evidence does (Page's cumulative sum, `slackwater.detector.classify.evidence`), and both must
  reach the threshold. The first: its requests fail far more often than its peers' and than its own in the past. The
  second: of the pool's good answers far fewer are its own than its peers' number and its own past say.

A server that fails loses good answers. A client that provokes failures on one server adds them to as many good answers
as before, so the second sum does not rise, and nobody can drain a server by failures. Where a server draws nearly all
requests its peers have few good answers to compare with, so its own of before count. What most peers share (a deploy on
all, a broken route) is no server's own, and ends an episode at once.

A server that fails gets no requests, so only a trial shows that it is well again: each request is evidence. Clients
that are bound to it (a cookie) go on asking it. What they ask is no trial: it is counted while the server has no
weight, and is expected on top of the requests of a trial.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from slackwater.detector.classify.chernoff import bound
from slackwater.detector.classify.episodes import NO_REQUESTS_TIMEOUT_S
from slackwater.detector.classify.evidence import DAY_S, MOST_COVERED_S, REFERENCE_S
from slackwater.detector.classify.reported import Reported
from slackwater.detector.features.columns import Bools, Columns, Floats, Ints, clipped, filled
from slackwater.detector.slot_arrays import SlotArrays

WINDOW_S = 30.0
"""Failures well above the peers' are judged over about this time."""
WELL_ABOVE = 0.01
"""Least distance of the bounds: one more failure in 100 requests is reported."""
RECENT_S, RECENT_REQUESTS = 0.3, 10.0
"""The present shares are averaged over this time, or over so many requests if these take longer."""
USUAL_S = 60.0
"""The usual shares are averaged over this time."""
RARE = 0.01
"""A share of failures up to this is usual anywhere."""
FAILS = 0.5
"""Share of its requests that a failing server fails at least, for the first ratio. With usual shares of `RARE` a server
that fails more than 15 of 100 is nearer to this one."""
FAILS_LEAST = 0.15
"""A server that fails a smaller share than this is well, and not as bad as its peers."""
LOSES = 0.9
"""Share of its good answers that a failing server loses, for the second ratio. One that loses less than 61 of 100 is
nearer to a server that loses none."""
LEAST_S = 1.0
"""An episode takes at least this long to begin: failures come in bursts, as of a worker that restarts."""
REFUSES_S = 3.0
"""The same for a server that answers nothing at all: a restart is over sooner, as in `features.unanswered`."""
WELL_S = 10.0
"""An episode takes at least this long to end with good answers: a server may fail only once it has its full load. Until
then failures take that load away again, as in a trial."""
ALIKE = 0.7
"""What this share of the peers does as well is no server's own, as in `pool_correlation`."""
LEAST_PAST_S = 3.0
"""A server's usual part of the good answers is known after this time with requests."""
MOST_GROWTH = 1.5
"""The peers' good answers count up to so many times the usual. More of them are new load, as of a client that chooses
its servers, and no load that this server lost."""
WHOLE_S = 1.0
"""The pool's requests are averaged over this time."""
LATELY_S = 3.0
"""A server without requests for this long is no peer to compare with."""
MOST_CERTAIN = 0.98
"""So a few good answers in a trial are enough to change our mind."""
MEMORY_S = 60.0
"""Without requests the probability that a server still fails falls to 1/e in this time."""
BOUND_S, LEAST_BOUND_S = 30.0, 1.0
"""What bound clients ask is averaged over the first, and known after the second."""
REPORTED_S = 2.0
"""The balancer's word is used for this long."""
LEAST_COVERED_S = 1e-3
"""A Sample that covers no time has no rates: it counts as one of this length."""
MOST_RPS = 1e6
"""No server answers more requests in a second: a larger number is no measurement, and would hide all other servers'."""


@dataclass(frozen=True)
class Failing:
    """What is known of the failures of M servers, (M,) each."""

    on: Bools
    """The server is in an episode of `errors`."""
    since_unix_s: Floats
    """When that began; of another server when its last one ended, 0 where there was none."""
    began: Bools
    ended: Bools
    probability: Floats
    """That it still fails."""
    recent: Floats
    """Share of its last requests that failed."""
    peers_recent: Floats
    """The share that most of its peers reach at least."""
    share: Floats
    """Share of its requests that failed over the last `WINDOW_S`; NaN without requests."""
    peers: Floats
    """Such share of all its peers together, where its own is well above that or it is in an episode; else NaN."""
    unfit: Bools
    """Its answers are not those of calm."""


class Failures(SlotArrays):
    """The failures of every slot."""

    _heard_s: Floats
    _asked_s: Floats
    """Time of the last Sample, and of the last one with requests."""
    _good_rps: Floats
    """Good answers per second of the last Sample."""
    _rps: Floats
    """Requests per second, averaged over `WHOLE_S`."""
    _recent: Floats
    _window: Floats
    """(slots, 2) requests and failures: the last ones, and of about `WINDOW_S`."""
    _past: Floats
    """(slots, 3) requests, failures and seconds of the past without suspicion."""
    _fails: Floats
    _loses: Floats
    _well: Floats
    """Sums of evidence: that it fails, that it loses good answers, and in an episode that it is well."""
    _well_s: Floats
    """Seconds with good answers in which the last of these sums was above 0."""
    _bound: Floats
    """(slots, 3) good answers, failures and seconds of an episode in which the server has no weight."""
    _tried: Floats
    """(slots, 2) requests and seconds since then in which it has some."""
    _named: Bools
    """Whether it fails well above its peers."""
    on: Bools
    _since_unix_s: Floats
    """As `Failing.since_unix_s`."""
    _probability: Floats
    _reported: Floats
    """(slots, 4) the balancer's last word: its time, and `Reported`."""

    def __init__(self, false_episodes_per_node_day: float) -> None:
        """The threshold is Lorden's bound: a mean of exp(threshold) Samples until a false episode."""
        self.threshold = math.log(DAY_S / REFERENCE_S / false_episodes_per_node_day)
        super().__init__(
            _heard_s=-np.inf,
            _asked_s=-np.inf,
            _good_rps=0.0,
            _rps=0.0,
            _recent=np.zeros(2),
            _window=np.zeros(2),
            _past=np.zeros(3),
            _fails=0.0,
            _loses=0.0,
            _well=0.0,
            _well_s=0.0,
            _bound=np.zeros(3),
            _tried=np.zeros(2),
            _named=False,
            on=False,
            _since_unix_s=0.0,
            _probability=0.0,
            _reported=np.array([-np.inf, 0.0, 0.0, 1.0]),
        )

    def report(self, now_s: float, reported: Mapping[str, Reported], slot_of: Callable[[str], int | None]) -> None:
        """Sets what the balancer shows of each node (`reported`): a monitor sees no connection that was refused."""
        for node, counted in reported.items():
            if (slot := slot_of(node)) is not None and slot < len(self._reported):
                self._reported[slot] = now_s, *counted

    def update(
        self,
        now_s: float,
        slots: Ints,
        columns: Columns,
        label_unix_s: Floats,
        *,
        fresh: Bools,
        in_episode: Bools,
    ) -> Failing:
        """The failures after one Sample of these slots, (M,).

        `fresh`, `in_episode`: (slots,) whether a node is heard of, and is slow by itself.
        """
        period_s = clipped(filled(columns["period_s"], REFERENCE_S), LEAST_COVERED_S, MOST_COVERED_S)
        good, failed = self._counts(now_s, slots, columns, period_s)
        ended = good + failed
        since_s = np.minimum(now_s - self._heard_s[slots], 1e6)
        self._heard_s[slots] = now_s
        self._asked_s[slots] = np.where(ended > 0.0, now_s, self._asked_s[slots])
        self._good_rps[slots] = good / period_s
        self._rps[slots] += (1.0 - np.exp(-since_s / WHOLE_S)) * (ended / period_s - self._rps[slots])
        passed = np.minimum(ended / RECENT_REQUESTS, since_s / RECENT_S)  # without requests the last shares stay
        for sums, kept in ((self._recent, np.exp(-passed)), (self._window, np.exp(-since_s / WINDOW_S))):
            sums[slots] = kept[:, None] * sums[slots] + np.column_stack([ended, failed])
        recent, peers_recent = self._recent_shares(now_s, slots, fresh)
        answers = (columns["traffic.rps"] > 0.0) | (good > 0.0)
        bound = self._of_bound(now_s, slots, good, failed, period_s)
        says = self._says_fails(slots, good, failed, peers_recent, period_s, bound)
        says = np.minimum(says, self.threshold * period_s / np.where(answers, LEAST_S, REFUSES_S))
        on = self.on[slots]
        common = peers_recent >= 0.5 * recent
        alike = on & common & (recent > FAILS_LEAST)
        self._fails[slots] = np.where(on, 0.0, np.clip(self._fails[slots] + says, 0.0, self.threshold))
        loses = self._says_loses(now_s, slots, good, period_s, fresh & ~in_episode, common)
        held = on | self._is_lowered(now_s, slots)
        self._loses[slots] = np.where(held, 0.0, np.clip(self._loses[slots] + loses, 0.0, self.threshold))
        begins = ~on & (np.minimum(self._fails[slots], self._loses[slots]) >= self.threshold - 1e-9)
        self._follow(slots, on & ~alike, says, since_s, period_s)
        timed_out = now_s - self._asked_s[slots] >= NO_REQUESTS_TIMEOUT_S
        well = (self._well[slots] >= self.threshold) & (self._well_s[slots] >= WELL_S)
        ends = on & (alike | timed_out | well)
        self._begin(slots[begins], label_unix_s[begins])
        self._end(slots[ends], label_unix_s[ends])
        self._learn(slots, ended, failed, period_s, ~held & (self._fails[slots] <= 0.0) & (ended > 0.0))
        share, peers = self._well_above(now_s, slots, fresh)
        return Failing(
            on=self.on[slots],
            since_unix_s=self._since_unix_s[slots],
            began=begins,
            ended=ends,
            probability=self._probability[slots],
            recent=recent,
            peers_recent=peers_recent,
            share=share,
            peers=peers,
            unfit=self.on[slots] | (self._fails[slots] > 0.0),
        )

    def _counts(self, now_s: float, slots: Ints, columns: Columns, period_s: Floats) -> tuple[Floats, Floats]:
        """(M,) good answers and failures of the Samples. Where the balancer counts failures, these are a monitor's: it
        sees no connection that was refused, and a machine also answers, well or not, health checks and who asks it past
        the balancer. Good answers are the monitor's, which are newer, as far as they may be the balancer's."""
        rps, failed = (
            np.minimum(filled(columns[f"traffic.{name}"], 0.0), MOST_RPS) for name in ("rps", "errors_per_s")
        )
        reported_s, reported_rps, reported_failed, _ = self._reported[slots].T
        told = (now_s - reported_s <= REPORTED_S) & ~(columns["balancer.only"] > 0.0)
        told &= ~np.isnan(reported_rps + reported_failed)
        good, most = np.maximum(rps - failed, 0.0), np.maximum(reported_rps - reported_failed, 0.0)
        good = np.where(told, np.where(rps > 0.0, np.minimum(good, most), most), good)
        return good * period_s, np.where(told, reported_failed, failed) * period_s

    def _is_lowered(self, now_s: float, slots: Ints) -> Bools:
        """(M,) whether a server has less than its full weight: it has fewer good answers for that reason."""
        reported_s, _, _, part = self._reported[slots].T
        return np.asarray((now_s - reported_s <= REPORTED_S) & (part < 1.0))

    def _peers(self, now_s: float, fresh: Bools) -> Bools:
        """(slots,) servers with requests of late, or that get none since they fail."""
        return fresh & ((now_s - self._asked_s <= LATELY_S) | self.on)

    def _recent_shares(self, now_s: float, slots: Ints, fresh: Bools) -> tuple[Floats, Floats]:
        """(M,) the share of each server's last requests that failed, and the share that `ALIKE` of its peers reach at
        least; without peers the server's own."""
        ended, failed = self._recent.T
        shares = (failed + RARE) / (ended + 1.0)
        own = np.where(ended[slots] > 0.0, failed[slots] / np.maximum(ended[slots], 1e-9), 0.0)
        peers = self._peers(now_s, fresh)
        order = np.sort(shares[peers])
        is_peer = peers[slots]
        others = len(order) - is_peer
        place = np.floor((1.0 - ALIKE) * others + 1e-9).astype(np.int64)
        place += is_peer & (place >= np.searchsorted(order, shares[slots]))  # a server is none of its own peers
        reached = order[np.minimum(place, len(order) - 1)] if len(order) else own
        return own, np.where(others > 0, reached, own)

    def _says_fails(
        self, slots: Ints, good: Floats, failed: Floats, peers: Floats, period_s: Floats, bound: Floats
    ) -> Floats:
        """(M,) log-likelihood ratio of a server that fails against one that fails as its peers and its own past do.
        `bound`: (M, 2) good answers and failures per second of bound clients, who ask in either case."""
        ended, past, _ = self._past[slots].T
        usual = clipped(np.maximum(peers, past / np.maximum(ended, 1.0)), RARE, 0.9)
        fails = np.maximum(FAILS, (1.0 + usual) / 2.0)
        requests, seconds = self._tried[slots].T
        rps = np.where(bound.any(axis=1), requests / np.maximum(seconds, 1e-9), (good + failed) / period_s)
        others = np.maximum(rps - bound.sum(axis=1), 0.0)
        bound_good, bound_failed = bound.T
        with np.errstate(divide="ignore", invalid="ignore"):
            of_failed = np.log((bound_failed + others * fails) / (bound_failed + others * usual))
            of_good = np.log((bound_good + others * (1.0 - fails)) / (bound_good + others * (1.0 - usual)))
        return np.where(others > 0.0, failed * of_failed + good * of_good, 0.0)

    def _of_bound(self, now_s: float, slots: Ints, good: Floats, failed: Floats, period_s: Floats) -> Floats:
        """(M, 2) good answers and failures per second of the clients that are bound to a server in an episode: all of
        them while it has no weight."""
        reported_s, _, _, part = self._reported[slots].T
        on = self.on[slots]
        alone = on & (now_s - reported_s <= REPORTED_S) & (part <= 0.0)
        kept = np.exp(-period_s / BOUND_S)[:, None]
        bound = kept * self._bound[slots] + np.column_stack([good, failed, period_s])
        self._bound[slots] = np.where(alone[:, None], bound, self._bound[slots])
        tried = kept * self._tried[slots] + np.column_stack([good + failed, period_s])
        self._tried[slots] = np.where(alone[:, None], 0.0, tried)
        rates, seconds = self._bound[slots, :2], self._bound[slots, 2:]
        known = on[:, None] & (seconds >= LEAST_BOUND_S)
        rates = np.where(known, rates / np.maximum(seconds, 1e-9), 0.0)
        return np.where(alone[:, None], np.inf, rates)  # no request of others is there to judge it by

    def _says_loses(
        self, now_s: float, slots: Ints, good: Floats, period_s: Floats, comparable: Bools, common: Bools
    ) -> Floats:
        """(M,) log-likelihood ratio of a server that loses `LOSES` of its good answers against one that loses none, by
        its share of the good answers at the time. As its part counts the lower of what its past and its peers say, so
        whoever raises one of them before gains nothing.

        `comparable`: (slots,) servers whose good answers are not lowered by us; `common`: (M,) its peers fail too.
        """
        peers = comparable & (now_s - self._asked_s <= LATELY_S) & ~self.on
        is_peer = peers[slots]
        ended, failed, seconds = self._past.T
        usual_rps = (ended - failed) / np.maximum(seconds, LEAST_PAST_S)
        count = peers.sum() - is_peer
        rps = np.maximum(self._good_rps[peers].sum() - is_peer * self._good_rps[slots], 0.0)
        usual = np.maximum(usual_rps[peers].sum() - is_peer * usual_rps[slots], 0.0)
        even = 1.0 / np.maximum(count, 1)
        known = (seconds[slots] >= LEAST_PAST_S) & (usual > 0.0)
        rps = np.where(known, np.minimum(rps, MOST_GROWTH * usual), rps)
        ratio = np.where(known, np.minimum(even, usual_rps[slots] / np.maximum(usual, 1e-9)), even)
        whole, less = ratio / (1.0 + ratio), ratio * (1.0 - LOSES) / (1.0 + ratio * (1.0 - LOSES))
        whole, less = np.maximum(whole, 1e-9), np.maximum(less, 1e-10)
        says = good * np.log(less / whole) + rps * period_s * np.log((1.0 - less) / (1.0 - whole))
        draws = self._says_draws(slots, good, period_s, peers, np.minimum(usual_rps[slots], usual * even))
        return np.where(count > 0, np.where((says >= 0.0) & ~common, np.maximum(says, draws), says), 0.0)

    def _says_draws(self, slots: Ints, good: Floats, period_s: Floats, peers: Bools, usual_rps: Floats) -> Floats:
        """(M,) the same ratio by how many good answers the servers had before (`usual_rps`), where the pool has as many
        requests as then. Under least connections a server that fails at once draws nearly all of them, so its peers
        have hardly any good answers to compare with. More requests than before may be those of a client that provokes
        failures: they say nothing."""
        ended, _, seconds = self._past.T
        before_rps = ended / np.maximum(seconds, LEAST_PAST_S)
        others = peers[slots]
        now = self._rps[peers].sum() + np.where(others, 0.0, self._rps[slots])
        before = before_rps[peers].sum() + np.where(others, 0.0, before_rps[slots])
        growth = now / np.maximum(before, 1e-9)
        expected = usual_rps * np.minimum(growth, 1.0) * period_s
        says = np.minimum(good * math.log(1.0 - LOSES) + LOSES * expected, self.threshold * period_s / LEAST_S)
        return np.where((growth <= MOST_GROWTH) & (seconds[slots] >= LEAST_PAST_S), says, 0.0)

    def _follow(self, slots: Ints, on: Bools, says: Floats, since_s: Floats, period_s: Floats) -> None:
        """Weighs the requests of the slots that are in an episode."""
        before = clipped(self._probability[slots] * np.exp(-since_s / MEMORY_S), 1e-6, MOST_CERTAIN)
        odds = before / (1.0 - before) * np.exp(clipped(says, -50.0, 50.0))
        self._probability[slots] = np.where(on, np.minimum(odds / (1.0 + odds), MOST_CERTAIN), 0.0)
        well = self._well[slots] = np.where(on, np.clip(self._well[slots] - says, 0.0, self.threshold), 0.0)
        self._well_s[slots] = np.where(well > 0.0, self._well_s[slots] + period_s * (says < 0.0), 0.0)

    def _begin(self, slots: Ints, label_unix_s: Floats) -> None:
        self.on[slots], self._since_unix_s[slots] = True, label_unix_s
        self._probability[slots] = MOST_CERTAIN
        self._well[slots] = self._well_s[slots] = self._bound[slots] = 0.0

    def _end(self, slots: Ints, label_unix_s: Floats) -> None:
        """The server is well, or all are alike: what it failed before says nothing any more."""
        self.on[slots], self._named[slots], self._since_unix_s[slots] = False, False, label_unix_s
        for sums in (self._fails, self._loses, self._well, self._well_s, self._probability, self._window):
            sums[slots] = 0.0

    def _learn(self, slots: Ints, ended: Floats, failed: Floats, period_s: Floats, calm: Bools) -> None:
        """Learns the usual rate and share of these slots where nothing is suspicious (`calm`, (M,))."""
        kept = np.exp(-period_s / USUAL_S)
        past = kept[:, None] * self._past[slots] + np.column_stack([ended, failed, period_s])
        self._past[slots] = np.where(calm[:, None], past, self._past[slots])

    def _well_above(self, now_s: float, slots: Ints, fresh: Bools) -> tuple[Floats, Floats]:
        """(M,) `Failing.share` and `Failing.peers`. A server that was named stays so while its share is more than
        `WELL_ABOVE` above its peers': else it would be named on and off, and load would move each time."""
        kept = np.where(fresh, np.exp(-np.minimum(now_s - self._heard_s, 1e3) / WINDOW_S), 0.0)
        ended, failed = (kept[:, None] * self._window).T
        own_ended, own_failed = ended[slots], failed[slots]
        others_ended, others_failed = ended.sum() - own_ended, np.maximum(failed.sum() - own_failed, 0.0)
        share = np.where(own_ended > 0.5, own_failed / np.maximum(own_ended, 1e-9), np.nan)
        peers = others_failed / np.maximum(others_ended, 1e-9)
        named = (others_ended > 0.5) & (share > peers + WELL_ABOVE)
        for row in np.flatnonzero(named & ~self._named[slots]).tolist():
            least = bound(float(own_ended[row]), float(share[row]), 0.0)
            named[row] = least > bound(float(others_ended[row]), float(peers[row]), 1.0) + WELL_ABOVE
        self._named[slots] = named
        return share, np.where(named | (self.on[slots] & (others_ended > 0.5)), peers, np.nan)
