"""Which servers are slow by a limit of their own, and at what level. Pure.

A quota of the provider's, credits that ran out, a cgroup's `cpu.max` and a lowered clock have one sign: while work
waits the CPU that a server gets is the same in each Sample. What a neighbour leaves wavers, and a neighbour takes time
from a server that wants little, too. One log-likelihood ratio, of a limit against a neighbour, adds up what speaks for
either:

- **Steadiness** at the ceiling: how far the CPU time got in a Sample is from that of the Samples before. A machine that
  is not told of the time taken from it shows what it got by the requests that it completed.
- **Below the ceiling** a limit takes nothing. That counts once the ceiling is met again: a neighbour that is gone takes
  nothing either.
- **Above it** there is no such limit.
- **Facts** of the kernel, where it gives any: how much of a throttled quota the server's own programs used; a clock
  that is lower than usual.

A limit shows itself only while it is reached. A server that was relieved of what it cannot carry looks calm for that
reason, so its Samples prove no calm for a time that doubles each time the ceiling is met again (`Limits.holds`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slackwater.detector.features.columns import Bools, Columns, Floats, Ints, clipped, filled
from slackwater.detector.features.features import COST, Frame
from slackwater.detector.slot_arrays import SlotArrays

SHOWN, GONE = 2.0, 0.0
"""A limit is shown from this sum on, until it is below the other."""
LEAST, MOST = -4.0, 6.0
"""Range of the sum."""
MEMORY_S = 60.0
"""Evidence counts for 1/e after this time."""
WINDOW_S = 0.15
"""Shorter Samples are added up to this time: some periods of a quota, and so few that a neighbour wavers in it."""
STEADY, WAVERS, OVER_S = 0.02, 0.12, 0.2
"""Standard deviation of the log of the CPU time got in `OVER_S`, by a limit, and beside a neighbour that takes all: in
proportion to the share that is lost. Of a longer time it is less, as of a mean. In guests of the lab, which lose
0.65, it is 0.04 to 0.05 by a limit and 0.07 to 0.11 beside a neighbour, with what `COST_CV` adds."""
TOLD = 0.02
"""From this share of steal on, a machine is told of the time that is taken from it."""
COST_CV = 0.16
"""Standard deviation of what a request costs over its mean, where completed requests tell what was got."""
COST_FOLLOW = 0.02
"""What a request costs follows a new window by this share."""
TICK_S = 0.01
"""The kernel counts a machine's CPU time in such ticks."""
MOST_STEADY, MOST_WAVER = 0.6, -1.0
"""Range of what a Sample at the ceiling says."""
FOLLOW = 0.08
"""The level follows a new Sample by this share, by more at first."""
OTHER_LEVEL = 0.3
"""A Sample this far (log) from the level begins a new one."""
LEAST_SAMPLES = 4.0
"""The level is known after so many."""
LOST, LOST_TRIALS = 0.1, 30.0
"""Share of the CPU time that a server wanted and did not get, from which on it is at a ceiling. It is averaged over so
many random moments."""
FULL = 0.9
"""A server that gets this share of its CPUs has no lower ceiling."""
WAITS = 0.7
"""Share of a window's time for which users wait, at the ceiling; or the CPU is used or wanted for `FULL` of it."""
BELOW, ABOVE = 0.7, 1.2
"""Shares of the level that are surely below and above it."""
TAKES, TAKES_NOTHING = 0.7, 0.3
"""Beside a neighbour a server with little load loses this part of what it loses at the ceiling. By a limit it loses
this part of that, and at most `MOST_NOTHING`."""
MOST_NOTHING = 0.15
MOST_BELOW = 1.5
"""What the time below the ceiling says at most each time the ceiling is met again."""
AGAINST = 1.5
"""What a Sample above the level says against a limit."""
QUOTA_SD, QUOTA_OTHERS = 0.15, 0.5
"""Of a quota that is throttled all the time a neighbour of the server's size uses this share; standard deviation."""
OWN_USE = 0.75
"""A quota is reached by the server alone where its own programs use this part of what was throttled."""
MOST_FACT = 1.0
"""What a fact says at most in `OVER_S`."""
LOWER_CLOCK, BUSY, CLOCK_MEMORY_S = 0.85, 0.3, 600.0
"""A clock below this part of the usual one is lowered, on a server that is busy to this share; its memory."""
HOLD_S, MOST_HOLD_S, FORGET_S = 5.0, 300.0, 600.0
"""A relieved server's calm Samples prove nothing for so long; the time doubles each time the ceiling is met
again, and is the shortest after `FORGET_S` without."""
FULL_S = 1.0
"""A ceiling that was met this long ago is met now."""
ANSWERS_S = 2.0
"""Without an answer for this time nothing is held: other signs decide then."""

_TIME, _CPU, _REQUESTS, _LOST, _MOMENTS, _STEAL, _WAITED, _BUSY = range(SUMS := 8)


@dataclass(frozen=True)
class Limits:
    """What is known of the own limits of M servers, (M,) each."""

    cores: Floats
    """The level, in CPUs; NaN where no limit is shown."""
    rps: Floats
    """What a server can answer at that level by the calm cost of a request; NaN where that is not known."""
    full: Bools
    """The ceiling is met now."""
    holds: Bools
    """It was relieved of what it cannot carry, so looking calm proves nothing now."""

    @property
    def shown(self) -> Bools:
        return ~np.isnan(self.cores)


class OwnLimits(SlotArrays):
    """The evidence of every slot."""

    _sums: Floats
    """(slots, SUMS) of the Samples since the last window."""
    _level: Floats
    """Log of what is got at the ceiling: CPUs, or requests per second where the CPU time is not told."""
    _told: Bools
    """The machine is told of the CPU time that is taken from it."""
    _cost_s: Floats
    """CPU time of a request where nothing is lost."""
    _ceiling_cores: Floats
    _ceiling_rps: Floats
    _samples: Floats
    """Number of Samples that the level is made of."""
    _lost: Floats
    """Share of the wanted CPU time that is lost while users wait."""
    _ratio: Floats
    """Sum of the log-likelihood ratios of a limit against a neighbour."""
    _below: Floats
    """What the time below the ceiling says, until the ceiling is met again."""
    _shown: Bools
    _cores: Floats
    _rps: Floats
    """The limit, where one is known; NaN for the rate: it follows from the CPUs."""
    _met_s: Floats
    """Time at which the ceiling was met last."""
    _hold_s: Floats
    _let_go: Bools
    """The time for which calm proves nothing was over since."""
    _answered_s: Floats
    _heard_s: Floats
    _usual_mhz: Floats
    _named: Bools

    def __init__(self) -> None:
        super().__init__(
            _sums=np.zeros(SUMS),
            _level=np.nan,
            _told=False,
            _cost_s=np.nan,
            _ceiling_cores=np.nan,
            _ceiling_rps=np.nan,
            _samples=0.0,
            _lost=0.0,
            _ratio=0.0,
            _below=0.0,
            _shown=False,
            _cores=np.nan,
            _rps=np.nan,
            _met_s=-np.inf,
            _hold_s=HOLD_S,
            _let_go=True,
            _answered_s=-np.inf,
            _heard_s=-np.inf,
            _usual_mhz=np.nan,
            _named=False,
        )

    def update(self, now_s: float, columns: Columns, frame: Frame, in_episode: Bools) -> Limits:
        """The limits after one Sample of the frame's slots. `in_episode`: (slots,) whether a node is slow by itself."""
        slots, period_s = frame.slots, filled(columns["period_s"], OVER_S)
        kept = np.exp(-np.minimum(now_s - self._heard_s[slots], 1e6) / MEMORY_S)
        self._heard_s[slots] = now_s
        self._ratio[slots] *= kept
        self._below[slots] *= kept
        self._answered_s[slots] = np.where(columns["traffic.rps"] > 0.0, now_s, self._answered_s[slots])
        self._by_windows(now_s, columns, frame, period_s)
        self._by_quota(now_s, columns, slots, period_s)
        self._by_clock(now_s, columns, slots, period_s, in_episode[slots])
        ratio = self._ratio[slots] = clipped(self._ratio[slots], LEAST, MOST)
        known = ~np.isnan(self._cores[slots]) & ~frame.outside
        self._shown[slots] = shown = known & np.where(self._shown[slots], ratio >= GONE, ratio >= SHOWN)
        recent = now_s - self._met_s[slots] < self._hold_s[slots]
        self._let_go[slots] |= ~recent
        holds = shown & recent & (now_s - self._answered_s[slots] < ANSWERS_S)
        cores = np.where(shown, self._cores[slots], np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            rps = np.where(np.isnan(self._rps[slots]), cores / frame.baseline[:, COST] * 1e3, self._rps[slots])
        full = shown & (now_s - self._met_s[slots] < FULL_S)
        return Limits(cores, np.where(shown & np.isfinite(rps), rps, np.nan), full, holds)

    def reword(self, slots: Ints, named: Bools) -> Bools:
        """(M,) whether these slots' episodes get another word. `named`: whether a limit is the word now."""
        before = self._named[slots]
        self._named[slots] = named
        return np.asarray(before != named)

    def _meet(self, slots: Ints, now_s: float) -> None:
        """The ceiling is met."""
        again = self._let_go[slots] & self._shown[slots]
        hold_s = np.where(again, np.minimum(2.0 * self._hold_s[slots], MOST_HOLD_S), self._hold_s[slots])
        self._hold_s[slots] = np.where(now_s - self._met_s[slots] > FORGET_S, HOLD_S, hold_s)
        self._let_go[slots], self._met_s[slots] = False, now_s

    # -- what the CPU time got says -----------------------------------------------------------------------------------

    def _by_windows(self, now_s: float, columns: Columns, frame: Frame, period_s: Floats) -> None:
        """Adds the Samples to their windows, and weighs those that are full. Cgroups with a quota are left out: of
        these the quota says more."""
        slots = frame.slots
        cpu = columns["cpu.utilisation"] * columns["cpu.cores"]
        steal = filled(columns["cpu.steal"] * columns["cpu.cores"], 0.0)
        counted = columns["gaps.moments"]
        moments = np.where(np.isnan(columns["gaps.lost_share"]), 0.0, filled(counted, 0.0))
        increments = np.column_stack(
            [
                np.ones(len(slots)),
                cpu - steal,
                columns["traffic.rps"],
                moments / period_s * filled(columns["gaps.lost_share"], 0.0),
                moments / period_s,
                steal,
                frame.users_wait,
                cpu,
            ]
        )
        fit = np.isfinite(increments).all(axis=1) & np.isnan(columns["cpu.throttled"]) & (period_s > 0.0)
        self._sums[slots[fit]] += increments[fit] * period_s[fit, None]
        rows = np.flatnonzero(fit & (self._sums[slots, _TIME] >= WINDOW_S))
        if len(rows):
            sums, here = self._sums[slots[rows]], slots[rows]
            self._sums[here] = 0.0
            self._weigh(now_s, here, sums, columns["cpu.cores"][rows])

    def _weigh(self, now_s: float, slots: Ints, sums: Floats, cores: Floats) -> None:
        """Weighs a window of each of these slots."""
        seconds, cpu, requests, lost, moments, steal, waited, busy = sums.T
        self._samples[slots[~self._told[slots] & (steal > TOLD * seconds)]] = 0.0  # the level has another unit
        told = self._told[slots] = self._told[slots] | (steal > TOLD * seconds)
        got = np.where(told, cpu, requests) / seconds
        got_cores = np.where(told, cpu, requests * self._cost_s[slots]) / seconds
        with np.errstate(divide="ignore", invalid="ignore"):
            noise = np.where(told, 0.3 * TICK_S / cpu, COST_CV / np.sqrt(requests))
            share = np.where(told, steal / busy, lost / moments)
            log_got = np.log(got)
        trials = np.where(told, 20.0 * seconds, moments)
        usable = np.isfinite(log_got) & np.isfinite(noise) & ~np.isnan(share)
        waits = (waited >= WAITS * seconds) | (busy >= FULL * cores * seconds)
        level, samples = self._level[slots], self._samples[slots]
        off = filled(log_got - level, np.inf)
        kept = np.exp(-trials / LOST_TRIALS)
        share = filled(share, 0.0)
        loses = share >= LOST
        lately = kept * self._lost[slots] + (1.0 - kept) * share
        self._lost[slots] = np.where(usable & waits, lately, self._lost[slots])
        share = np.where(waits, lately, share)
        self._learn_cost(slots, busy, requests, usable & ~waits & (share < LOST / 2.0))
        at = usable & waits & (share >= LOST) & (loses | ~(off < np.log(BELOW))) & (got_cores < FULL * cores)
        known = usable & (samples >= LEAST_SAMPLES)

        spread = np.sqrt(OVER_S / np.maximum(seconds, OVER_S))
        more = 1.0 + 1.0 / np.maximum(samples, 1.0)
        steady, wavers = (
            more * ((sd * spread) ** 2 + np.where(usable, noise, 1.0) ** 2)
            for sd in (STEADY, np.maximum(WAVERS * share, STEADY))
        )
        says = 0.5 * np.log(wavers / steady) - 0.5 * clipped(off, -1.0, 1.0) ** 2 * (1.0 / steady - 1.0 / wavers)
        says = np.where(at & known, clipped(says, MOST_WAVER, MOST_STEADY), 0.0)
        takes = TAKES * self._lost[slots]
        nothing = np.minimum(TAKES_NOTHING * self._lost[slots], MOST_NOTHING)
        with np.errstate(divide="ignore", invalid="ignore"):
            quiet, loud = np.log((1.0 - nothing) / (1.0 - takes)), np.log(nothing / takes)
        calm = filled(trials * ((1.0 - share) * quiet + share * loud), 0.0)
        low = known & ~at & (off < np.log(BELOW)) & (trials > 0.0)
        above = known & ~at & (off > np.log(ABOVE)) & (share < LOST)
        says = np.where(low, np.maximum(np.minimum(calm, 0.0), MOST_WAVER / 2.0), says) - np.where(above, AGAINST, 0.0)
        met = at & known
        says += np.where(met, self._below[slots], 0.0)
        below = np.minimum(self._below[slots] + np.where(low, np.maximum(calm, 0.0), 0.0), MOST_BELOW)
        self._below[slots] = np.where(met, 0.0, below)
        self._ratio[slots] += says
        self._follow(slots[at], log_got[at], got_cores[at], requests[at] / seconds[at])
        near = at & (np.abs(off) < OTHER_LEVEL)
        self._meet(slots[near], now_s)

    def _learn_cost(self, slots: Ints, busy_s: Floats, requests: Floats, calm: Bools) -> None:
        """What a request costs where nothing is lost. A machine that is not told books what is lost on its requests."""
        here, now = slots[calm & (requests > 0.0)], (busy_s / np.maximum(requests, 1e-9))[calm & (requests > 0.0)]
        before = np.where(np.isnan(self._cost_s[here]), now, self._cost_s[here])
        self._cost_s[here] = before + COST_FOLLOW * (now - before)

    def _follow(self, slots: Ints, log_got: Floats, cores: Floats, rps: Floats) -> None:
        """The level follows what was got at the ceiling, or begins anew far from it."""
        anew = ~(np.abs(log_got - self._level[slots]) < OTHER_LEVEL) | (self._samples[slots] == 0.0)
        samples = np.where(anew, 0.0, self._samples[slots]) + 1.0
        part = np.maximum(1.0 / samples, FOLLOW)
        for values, now in ((self._level, log_got), (self._ceiling_cores, cores), (self._ceiling_rps, rps)):
            before = np.where(anew, now, values[slots])
            values[slots] = before + part * (now - before)
        self._samples[slots] = samples
        known = slots[samples >= LEAST_SAMPLES]
        self._cores[known], self._rps[known] = self._ceiling_cores[known], self._ceiling_rps[known]

    # -- facts --------------------------------------------------------------------------------------------------------

    def _by_quota(self, now_s: float, columns: Columns, slots: Ints, period_s: Floats) -> None:
        """Of a quota that is throttled: how much of it the server's own programs used."""
        throttled, used, cores = columns["cpu.throttled"], columns["cpu.utilisation"], columns["cpu.cores"]
        fit = ~np.isnan(throttled) & ~np.isnan(used) & (cores > 0.0)
        if not fit.any():
            return
        throttled, used, cores, period_s = (values[fit] for values in (throttled, used, cores, period_s))
        slots = slots[fit]
        of_others = np.maximum(throttled - used, 0.0)
        says = ((of_others - QUOTA_OTHERS * throttled) ** 2 - of_others**2) / (2.0 * QUOTA_SD**2)
        self._ratio[slots] += clipped(says, -MOST_FACT, MOST_FACT) * np.minimum(period_s / OVER_S, 1.0)
        raised = cores > ABOVE * self._cores[slots]
        self._ratio[slots[raised]] = LEAST
        own = (throttled >= QUOTA_OTHERS) & (used >= OWN_USE * throttled)
        self._cores[slots[own]], self._rps[slots[own]] = cores[own], np.nan
        self._meet(slots[own], now_s)

    def _by_clock(self, now_s: float, columns: Columns, slots: Ints, period_s: Floats, in_episode: Bools) -> None:
        """A clock that is lower than usual while the server is busy."""
        mhz = columns["frequency.mean_mhz"]
        fit = ~np.isnan(mhz) & (columns["cpu.utilisation"] >= BUSY)
        if not fit.any():
            return
        slots, mhz, cores, period_s = slots[fit], mhz[fit], columns["cpu.cores"][fit], period_s[fit]
        busy = columns["cpu.utilisation"][fit]
        usual = np.where(np.isnan(self._usual_mhz[slots]), mhz, self._usual_mhz[slots])
        lowered = mhz < LOWER_CLOCK * usual
        self._ratio[slots] += np.where(lowered, MOST_FACT, 0.0) * np.minimum(period_s / OVER_S, 1.0)
        self._cores[slots] = np.where(lowered, cores * mhz / usual, self._cores[slots])
        self._rps[slots[lowered]] = np.nan
        self._meet(slots[lowered & (busy >= FULL)], now_s)
        follow = np.where(in_episode[fit], 0.0, -np.expm1(-period_s / CLOCK_MEMORY_S))
        self._usual_mhz[slots] = usual + follow * (mhz - usual)
