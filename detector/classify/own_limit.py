"""Which servers are slow by a limit of their own, and at what level. Pure.

A quota of the provider's, credits that ran out, a cgroup's `cpu.max` and a lowered clock are such limits. Only facts of
the kernel prove one:

- **A quota that is throttled**: how much of it the server's requests used.
- **A clock** that is lower than usual at such a load, where the CPU time of requests has grown as much as it explains.

Where there are none the CPU that a server gets may still be steady: the same in each Sample while work waits, and all
that it wants at less load. A neighbour under a fair scheduler is as steady, so this proves nothing. It gives a level:
what the server gets, from either. One log-likelihood ratio adds up what speaks for a steady level:

- **At the ceiling**: how far the CPU time got is from that of the Samples before. A machine that is not told of the
  time taken from it shows what it got by the requests that it completed, while more of them wait.
- **Below the ceiling** nothing is taken, which counts once the ceiling is met again. **Above it** there is no level.

A level shows itself only while it is reached. A server that was relieved of what it cannot carry looks calm for that
reason, so its Samples prove no calm for a time that doubles each time the ceiling is met again (`Limits.holds`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slackwater.detector.features.baseline import BINS, bins_of
from slackwater.detector.features.columns import Bools, Columns, Floats, Ints, clipped, filled
from slackwater.detector.features.features import COST, Frame
from slackwater.detector.features.signals import INDEX
from slackwater.detector.slot_arrays import SlotArrays

SHOWN, GONE, DISPROVEN = 2.0, 0.5, 0.0
"""A level is shown from this sum on, until it is below the second; what facts prove, until it is below the third."""
LEAST, MOST, PAST = -4.0, 6.0, 1.0
"""Range of the sum; and the most that is left of it when a ceiling was not met for long."""
MEMORY_S = 60.0
"""Evidence counts for 1/e after this time."""
WINDOW_S = 0.15
"""Shorter Samples are added up to this time: some periods of a quota, and so few that a neighbour wavers in it."""
STEADY, WAVERS, OVER_S = 0.02, 0.12, 0.2
"""Standard deviation of the log of the CPU time got in `OVER_S`, by a limit, and beside a neighbour that takes all: in
proportion to the share that is lost. Of a longer time it is less, as of a mean. In guests of the lab, which lose
0.65, it is 0.04 to 0.05 by a limit and 0.07 to 0.11 beside a neighbour, with what `COST_CV` adds."""
TOLD, QUEUE = 0.02, 2.0
"""From this share of steal on, a machine is told of the time that is taken from it. One that is not, with fewer
requests at a time than the second, answers what it is asked for, and not what it can."""
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
QUOTA_S, QUOTA_FULL, OWN_USE = 0.2, 0.7, 0.75
"""A quota is judged over this time, some of its periods. It is reached where so many of these were throttled, and by
the server alone where its requests use this part of what was throttled."""
MOST_FACT, MOST_FACTS = 1.0, 2.0
"""What a fact says at most in `OVER_S`, and how many times that a longer Sample."""
LOWER_CLOCK, BUSY, CLOCK_MEMORY_S = 0.85, 0.3, 600.0
"""A clock below this part of the usual one is lowered, on a server that is busy to this share; its memory."""
CLOCK_SAMPLES = 25.0
"""The usual clock of a range of loads is known after so many Samples."""
LEAST_FIT, MOST_FIT = 0.5, 1.15
"""A lower clock explains a loss where requests cost more by this part of it at least, and at most so many times it."""
HOLD_S, MOST_HOLD_S, FORGET_S = 5.0, 300.0, 600.0
"""A relieved server's calm Samples prove nothing for so long; the time doubles each time the ceiling is met
again, and is the shortest after `FORGET_S` without."""
FULL_S = 1.0
"""A ceiling that was met this long ago is met now."""
ANSWERS_S = 2.0
"""Without an answer for this time nothing is held: other signs decide then."""

KEPT_WAITING = INDEX["kept_waiting"]
_TIME, _CPU, _REQUESTS, _LOST, _MOMENTS, _STEAL, _WAITED, _BUSY, _HELD = range(SUMS := 9)


@dataclass(frozen=True)
class Limits:
    """What is known of the own limits of M servers, (M,) each."""

    cores: Floats
    """The level, in CPUs; NaN where none is shown."""
    proven: Bools
    """The kernel's facts show that the level is a limit of its own; else a steady neighbour may be the cause."""
    rps: Floats
    """What a server can answer at that level by the calm cost of a request; NaN where that is not known."""
    full: Bools
    """A proven ceiling is met now, and is lower than what the server once had: not its usual quota."""
    holds: Bools
    """It was relieved of what it cannot carry by a proven limit, so looking calm proves nothing now."""

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
    """Sum of the log-likelihood ratios of a steady level against a neighbour that wavers."""
    _of_quota: Floats
    _of_clock: Floats
    """The same sum of what these facts say."""
    _below: Floats
    """What the time below the ceiling says, until the ceiling is met again."""
    _shown: Bools
    """A steady level is shown."""
    _by_its_quota: Bools
    _by_its_clock: Bools
    """The fact proves a limit."""
    _cores: Floats
    _rps: Floats
    """The level, where one is known; NaN for the rate: it follows from the CPUs."""
    _met_s: Floats
    """Time at which the ceiling was met last."""
    _hold_s: Floats
    _let_go: Bools
    """The time for which calm proves nothing was over since."""
    _answered_s: Floats
    _heard_s: Floats
    _usual_mhz: Floats
    """(slots, BINS) the clock in calm at each range of loads."""
    _clock_samples: Floats
    """(slots, BINS) number of Samples that it is made of."""
    _most_cores: Floats
    """The most CPUs that it ever had."""
    _quota: Floats
    """(slots, 3) seconds, throttled share and utilisation since the quota was judged last, times seconds."""
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
            _of_quota=0.0,
            _of_clock=0.0,
            _below=0.0,
            _shown=False,
            _by_its_quota=False,
            _by_its_clock=False,
            _cores=np.nan,
            _rps=np.nan,
            _met_s=-np.inf,
            _hold_s=HOLD_S,
            _let_go=True,
            _answered_s=-np.inf,
            _heard_s=-np.inf,
            _usual_mhz=np.full(BINS, np.nan),
            _clock_samples=np.zeros(BINS),
            _most_cores=np.nan,
            _quota=np.zeros(3),
            _named=False,
        )

    def update(self, now_s: float, columns: Columns, frame: Frame, in_episode: Bools) -> Limits:
        """The limits after one Sample of the frame's slots. `in_episode`: (slots,) whether a node is slow by itself."""
        slots, period_s = frame.slots, filled(columns["period_s"], OVER_S)
        kept = np.exp(-np.minimum(now_s - self._heard_s[slots], 1e6) / MEMORY_S)
        self._heard_s[slots] = now_s
        for sums in (self._ratio, self._of_quota, self._of_clock, self._below):
            sums[slots] *= kept
        self._answered_s[slots[columns["traffic.rps"] > 0.0]] = now_s
        self._by_windows(now_s, columns, frame, period_s)
        self._by_quota(now_s, columns, frame, period_s)
        self._by_clock(now_s, columns, frame, period_s, in_episode[slots])
        known = ~np.isnan(self._cores[slots]) & ~frame.outside
        recent = now_s - self._met_s[slots] < self._hold_s[slots]
        self._let_go[slots] |= ~recent
        past = ~recent & ~in_episode[slots]  # it explains no episode that begins now
        for sums, over, gone in (
            (self._ratio, self._shown, GONE),
            (self._of_quota, self._by_its_quota, DISPROVEN),
            (self._of_clock, self._by_its_clock, DISPROVEN),
        ):
            total = sums[slots] = clipped(sums[slots], LEAST, np.where(past, PAST, MOST))
            over[slots] = known & ~past & np.where(over[slots], total >= gone, total >= SHOWN)
        proven: Bools = self._by_its_quota[slots] | self._by_its_clock[slots]
        shown = proven | self._shown[slots]
        self._most_cores[slots] = np.fmax(self._most_cores[slots], columns["cpu.cores"])
        lower = proven & (self._cores[slots] < FULL * self._most_cores[slots])
        holds = lower & recent & (now_s - self._answered_s[slots] < ANSWERS_S)
        cores = np.where(shown, self._cores[slots], np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            rps = np.where(np.isnan(self._rps[slots]), cores / frame.baseline[:, COST] * 1e3, self._rps[slots])
        full = lower & (now_s - self._met_s[slots] < FULL_S)
        return Limits(cores, proven, np.where(shown & np.isfinite(rps), rps, np.nan), full, holds)

    def reword(self, slots: Ints, named: Bools) -> Bools:
        """(M,) whether these slots' episodes get another word. `named`: whether a limit is the word now."""
        before = self._named[slots]
        self._named[slots] = named
        return np.asarray(before != named)

    def _meet(self, slots: Ints, now_s: float) -> None:
        """The ceiling is met."""
        speaks = np.maximum(np.maximum(self._ratio[slots], self._of_quota[slots]), self._of_clock[slots])
        again = self._let_go[slots] & (speaks > 0.0)
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
                columns["traffic.rps"] * filled(columns["traffic.rt_mean_ms"], 0.0) / 1e3,
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
        seconds, cpu, requests, lost, moments, steal, waited, busy, held = sums.T
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
        kept, share = np.exp(-trials / LOST_TRIALS), filled(share, 0.0)
        loses = share >= LOST
        lately = kept * self._lost[slots] + (1.0 - kept) * share
        self._lost[slots] = np.where(usable & waits, lately, self._lost[slots])
        share = np.where(waits, lately, share)
        self._learn_cost(slots, busy, requests, usable & ~waits & (share < LOST / 2.0))
        queues = told | (held >= QUEUE * seconds)
        at = usable & waits & queues & (share >= LOST) & (loses | ~(off < np.log(BELOW))) & (got_cores < FULL * cores)
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
        self._meet(slots[at & (np.abs(off) < OTHER_LEVEL)], now_s)

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

    def _by_quota(self, now_s: float, columns: Columns, frame: Frame, period_s: Floats) -> None:
        """Of a quota that is throttled nearly all the time: how much of it the server's requests used, by what they
        cost in calm. A deploy and a backup use it too, and so does a neighbour that makes requests cost more."""
        throttled, used, cores = columns["cpu.throttled"], columns["cpu.utilisation"], columns["cpu.cores"]
        fit = ~np.isnan(throttled) & ~np.isnan(used) & (cores > 0.0)
        rows = np.column_stack([np.ones(len(used)), throttled, used]) * period_s[:, None]
        self._quota[frame.slots[fit]] += rows[fit]
        due = fit & (self._quota[frame.slots, 0] >= QUOTA_S)
        slots, cores, demand = frame.slots[due], cores[due], frame.demand[due]
        seconds, throttled, used = self._quota[slots].T
        self._quota[slots] = 0.0
        throttled, used = throttled / seconds, used / seconds
        of_others = np.maximum(throttled - used, 0.0)
        says = ((of_others - QUOTA_OTHERS * throttled) ** 2 - of_others**2) / (2.0 * QUOTA_SD**2)
        with np.errstate(invalid="ignore"):
            own = (throttled >= QUOTA_FULL) & (np.minimum(used, demand) >= OWN_USE * throttled)
        says = np.where(own | (says < 0.0), clipped(says, -MOST_FACT, MOST_FACT), 0.0)
        self._of_quota[slots] += says * np.minimum(seconds / OVER_S, MOST_FACTS)
        raised = cores > ABOVE * self._cores[slots]
        self._of_quota[slots[raised]] = LEAST
        self._cores[slots[own]], self._rps[slots[own]] = cores[own], np.nan
        self._meet(slots[own], now_s)

    def _by_clock(self, now_s: float, columns: Columns, frame: Frame, period_s: Floats, in_episode: Bools) -> None:
        """A clock that is lower than it is in calm at no more load, and what a request costs: a lower clock that does
        not explain it is not the cause."""
        mhz, busy = columns["frequency.mean_mhz"], columns["cpu.utilisation"]
        lost = np.fmax(filled(frame.values[:, KEPT_WAITING], 0.0), filled(columns["cpu.steal"], 0.0))
        fit = (mhz > 0.0) & (busy >= BUSY)
        slots, bins, mhz, busy, lost = frame.slots[fit], bins_of(frame.peak)[fit], mhz[fit], busy[fit], lost[fit]
        part = np.minimum(period_s[fit] / OVER_S, 1.0)
        enough = (self._clock_samples[slots] >= CLOCK_SAMPLES) & (np.arange(BINS) <= bins[:, None])
        usual = np.where(enough, self._usual_mhz[slots], 0.0).max(axis=1)
        slower = usual / mhz
        with np.errstate(divide="ignore", invalid="ignore"):
            dearer = (frame.values[:, COST] / frame.baseline[:, COST])[fit]
        known = (usual > 0.0) & ~np.isnan(dearer)
        explained = (dearer - 1.0 >= LEAST_FIT * (slower - 1.0)) & (dearer <= MOST_FIT * slower) & (lost < LOST)
        lowered = known & (mhz < LOWER_CLOCK * usual) & explained
        self._of_clock[slots] += MOST_FACT * part * np.where(lowered, 1.0, -1.0 * known)
        here = slots[lowered]
        self._cores[here], self._rps[here] = columns["cpu.cores"][fit][lowered] / slower[lowered], np.nan
        self._meet(slots[lowered & (busy >= FULL)], now_s)
        calm = ~in_episode[fit] & ~lowered
        slots, bins, mhz = slots[calm], bins[calm], mhz[calm]
        samples = self._clock_samples[slots, bins] = self._clock_samples[slots, bins] + 1.0
        before = np.where(samples == 1.0, mhz, self._usual_mhz[slots, bins])
        follow = np.maximum(1.0 / samples, -np.expm1(-period_s[fit][calm] / CLOCK_MEMORY_S))
        self._usual_mhz[slots, bins] = before + follow * (mhz - before)
