"""When a neighbour is gone: a sequential test between the signs of calm and the signs of this very neighbour.

A server without requests shows nothing of most neighbours, so its calm looks prove nothing. Proof comes from a sign
whose share of hits fell: it had one share while the neighbour was there, and has that of calm now. Each sign is a row
of trials (a random moment at which the machine ran the monitor or not, a signal beyond its scale or not, an answer that
was slow or not). Their log-likelihood ratios add up, and the sum never falls below 0 (Wald, "Sequential Tests of
Statistical Hypotheses", Annals of Mathematical Statistics 16(2), 1945; reset as in Page, Biometrika 41, 1954). Calm is
proven where the sum reaches `PROOF`.

The share beside this neighbour is counted in this episode, from trials before the sum last left 0: later trials may be
of calm. A sign whose share beside the neighbour equals that in calm has no power, and proves nothing however long it is
quiet. Of the signs with power the quickest decides, as long as no other sign with power shows the neighbour.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slackwater.detector.features.columns import Bools, Floats, Ints
from slackwater.detector.slot_arrays import SlotArrays

MOMENTS, LOOKS, ANSWERS = "moments that had to wait", "Samples that are not calm", "slow answers"
"""The signs that are no signals. Each signal beyond its scale is a sign too."""
PROOF = 10.0
"""Sum of log-likelihood ratios that proves calm. Beside a steady neighbour it is reached at most once in e^10 trials
(Lorden, 1971), so once in a quarter of an hour of random moments."""
MOST_PROOF_S = 7.0
"""A sign has no power when it would usually need longer than this to prove calm."""
LEARNT = {MOMENTS: 16.0, ANSWERS: 3.0, LOOKS: 2.0}
"""Trials after which a sign's share beside a neighbour is known; for a signal `LEARNT_SIGNAL`."""
LEARNT_SIGNAL = 5.0
LEAST_CALM = {ANSWERS: 0.1}
"""Least share of hits in calm of a sign: one slow answer of ten is no neighbour."""
MOST_CALM, LEAST_BESIDE = {LOOKS: 0.2}, {LOOKS: 0.5}
"""Of the Samples of a server with requests at most a fifth are not calm without a neighbour, and at least half beside
one. However noisy its calm was, its requests show the neighbour."""
LEAST_SHARE, MOST_SHARE = 0.02, 0.98
WEAKEST = 0.25
"""Neighbours waver. Nothing is proven where the share of hits since the sum was last 0 is further than this part of the
way from the share in calm to that beside the neighbour."""
CALM_PRIOR = 0.05, 10.0
"""The prior of the share of hits in calm, and the number of trials that it is worth."""
MEMORY = 3000.0
"""Number of trials of calm that are remembered."""
RECENT_S = 3.0
"""A peer's trials count for 1/e after this time."""


@dataclass(frozen=True)
class Trials:
    """Hits and trials that a tick of M nodes adds to each sign, (M, signs) each. A sign without trials says nothing."""

    hits: Floats
    count: Floats

    @property
    def both(self) -> Floats:
        """(M, signs, 2) hits and trials."""
        return np.stack([self.hits, self.count], axis=2)

    def only(self, rows: Bools) -> Trials:
        """The trials of some of the nodes."""
        return Trials(self.hits[rows], self.count[rows])


@dataclass(frozen=True)
class Proof:
    """How far calm is proven, (M,) each."""

    proven: Bools
    ratio: Floats
    """This tick's log-likelihood ratio of calm, by the sign that decides; 0 where no sign has power."""
    evidence: Floats
    """The sum of the sign that decides; calm is proven at `needed`."""
    needed: Floats
    within_s: Floats
    """Mean time in which calm is proven after the neighbour's end; infinite where that is beyond `MOST_PROOF_S`."""
    sign: Ints
    """Index of the sign that decides."""
    calm_share: Floats
    beside_share: Floats
    """That sign's share of hits in calm, and beside this neighbour."""

    @classmethod
    def none(cls, nodes: int) -> Proof:
        """The proof of nodes of which nothing is proven."""
        return cls(
            proven=np.zeros(nodes, dtype=bool),
            sign=np.zeros(nodes, dtype=np.int64),
            within_s=np.full(nodes, np.inf),
            **{name: np.zeros(nodes) for name in ("ratio", "evidence", "needed", "calm_share", "beside_share")},
        )

    def put(self, rows: Bools, part: Proof) -> None:
        """Puts in the proof of some of the nodes."""
        for name, values in vars(part).items():
            getattr(self, name)[rows] = values


class CalmProof(SlotArrays):
    """The test of every slot, one row of `signs` each."""

    _calm: Floats
    _recent: Floats
    _beside: Floats
    _since: Floats
    """(slots, signs, 2) hits and trials: in calm; over about `RECENT_S`; beside this neighbour; since the sum last was
    0."""
    _sum: Floats
    _zero_s: Floats
    """(slots, signs) time at which the sum last was 0."""

    def __init__(self, signs: tuple[str, ...]) -> None:
        self.signs = signs
        self._is_looks: Bools = np.array([sign == LOOKS for sign in signs])
        self._learnt: Floats = np.array([LEARNT.get(sign, LEARNT_SIGNAL) for sign in signs])
        self._least_calm: Floats = np.array([LEAST_CALM.get(sign, LEAST_SHARE) for sign in signs])
        self._most_calm: Floats = np.array([MOST_CALM.get(sign, MOST_SHARE) for sign in signs])
        self._least_beside: Floats = np.array([LEAST_BESIDE.get(sign, LEAST_SHARE) for sign in signs])
        pairs, row = np.zeros((len(signs), 2)), np.zeros(len(signs))
        self._prior: Floats = np.array([CALM_PRIOR[0] * CALM_PRIOR[1], CALM_PRIOR[1]])
        super().__init__(
            _calm=np.tile(self._prior, (len(signs), 1)),
            _recent=pairs,
            _beside=pairs,
            _since=pairs,
            _sum=row,
            _zero_s=row,
        )

    def learn(self, slots: Ints, trials: Trials, covered_s: Floats) -> None:
        """Adds ticks of calm; `covered_s`: (M,) the time that they cover."""
        if not len(slots):
            return
        calm = self._calm[slots] + trials.both
        calm *= np.minimum(1.0, MEMORY / np.maximum(calm[:, :, 1], 1.0))[:, :, None]
        self._calm[slots] = calm
        self._remember(slots, trials, covered_s)

    def begin(self, slots: Ints, now_s: float) -> None:
        """Begins an episode of these slots. The looks that began it were added as calm, and are the neighbour's now."""
        looks = self.signs.index(LOOKS)
        self._calm[slots, looks] = np.maximum(self._calm[slots, looks] - LEARNT[LOOKS], self._prior)
        self._beside[slots] = self._since[slots] = 0.0
        self._beside[slots, looks] = LEARNT[LOOKS]
        self._sum[slots] = 0.0
        self._zero_s[slots] = now_s

    def forget_neighbour(self, slots: Ints, now_s: float) -> None:
        """Drops the counts of these slots' signs beside their neighbours, which are of another load.

        The looks of Samples stay: they are judged at that load alone.
        """
        others = np.flatnonzero(~self._is_looks)
        for counts in (self._beside, self._since, self._sum):
            counts[np.ix_(slots, others)] = 0.0
        self._zero_s[np.ix_(slots, others)] = now_s

    def take(
        self,
        slots: Ints,
        now_s: float,
        trials: Trials,
        covered_s: Floats,
        *,
        peers: Bools,
        idle: Bools,
        needed: Floats,
        dwell_s: Floats,
    ) -> Proof:
        """Adds a tick of these slots' episodes; returns how far calm is proven. Arrays are (M,) unless stated.

        `covered_s`: the time that the tick covers. `peers`: (slots,) whether a slot is calm. `idle`: whether the server
        has no requests. The looks of an idle server's Samples show nothing; of the other servers only the looks count.
        `needed`: the sum that proves calm. It must have been above 0 for `dwell_s`.
        """
        self._remember(slots, trials, covered_s)
        # The pace before the drain is not that of the few requests which come back first.
        self._recent[slots[idle], self.signs.index(LOOKS)] = 0.0
        calm, beside = self._shares(slots, peers)
        per_s = self._recent[slots, :, 1] / RECENT_S
        hit, miss = np.log(calm / beside), np.log((1.0 - calm) / (1.0 - beside))
        ratio = trials.hits * hit + (trials.count - trials.hits) * miss
        pace = np.where(beside > calm, (calm * hit + (1.0 - calm) * miss) * per_s, 0.0)
        learnt = self._beside[slots, :, 1] >= self._learnt
        sums = np.where(learnt, np.maximum(self._sum[slots] + np.where(beside > calm, ratio, 0.0), 0.0), 0.0)
        self._sum[slots] = sums
        since = self._since[slots] + trials.both
        zero = sums <= 0.0
        self._beside[slots] += np.where(zero[:, :, None], since, 0.0)
        self._since[slots] = np.where(zero[:, :, None], 0.0, since)
        self._zero_s[slots] = np.where(zero, now_s, self._zero_s[slots])
        with np.errstate(divide="ignore"):
            quick = PROOF / pace <= MOST_PROOF_S
            able = learnt & (pace > 0.0) & (quick | self._is_looks) & (self._is_looks != idle[:, None])
            within_s = np.where(able, needed[:, None] / pace, np.inf)
        sign = np.argmin(within_s, axis=1)
        rows = np.arange(len(slots))
        fastest_s = within_s[rows, sign]
        has_power = np.isfinite(fastest_s)
        evidence = np.where(has_power, sums[rows, sign], 0.0)
        most = calm + WEAKEST * (beside - calm)
        fits = (since[:, :, 0] <= most * since[:, :, 1])[rows, sign]
        lasted = now_s - self._zero_s[slots, sign] >= dwell_s - 1e-6
        agree = ~(able & (sums <= 0.0)).any(axis=1)
        return Proof(
            proven=has_power & (evidence >= needed) & lasted & fits & agree,
            ratio=np.where(has_power, ratio[rows, sign], 0.0),
            evidence=evidence,
            needed=needed,
            within_s=np.where(fastest_s <= MOST_PROOF_S, np.maximum(fastest_s, dwell_s), np.inf),
            sign=sign,
            calm_share=calm[rows, sign],
            beside_share=beside[rows, sign],
        )

    def _remember(self, slots: Ints, trials: Trials, covered_s: Floats) -> None:
        kept = np.exp(-covered_s / RECENT_S)[:, None, None]
        self._recent[slots] = self._recent[slots] * kept + trials.both

    def _shares(self, slots: Ints, peers: Bools) -> tuple[Floats, Floats]:
        """(M, signs) share of hits in calm, and beside the neighbour.

        The share in calm is the slot's own, or the peers' present one if that is higher. The other is a standard error
        low.
        """
        calm = self._calm[slots, :, 0] / self._calm[slots, :, 1]
        hits, count = self._recent[peers].sum(axis=0).T
        among = np.where(count > 0.0, hits / np.maximum(count, 1e-9), 0.0)
        calm = np.clip(np.maximum(calm, among), self._least_calm, self._most_calm)
        hits, count = np.moveaxis(self._beside[slots], 2, 0)
        beside = (hits + 0.5) / (count + 1.0)
        beside -= np.sqrt(beside * (1.0 - beside) / (count + 1.0))
        return calm, np.clip(beside, self._least_beside, MOST_SHARE)
