"""Turns Samples into rows of numbers. The last Samples of each node are kept, since one period is short."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slackwater.detector.features.calm_rate import AT_HIGHEST, CalmRates
from slackwater.detector.features.columns import Bools, Columns, Floats, Ints, Table, filled
from slackwater.detector.features.returns import Returns
from slackwater.detector.features.routes import RouteTimes
from slackwater.detector.features.signals import INDEX, SIGNALS, WINDOW_S
from slackwater.detector.features.unanswered import Unanswered
from slackwater.detector.slot_arrays import SlotArrays

_RATIO, _LATE, _CPU_S, _REQUESTS, _PERIOD, _UTILISATION, _THREADS = range(KEPT := 7)
_PAIRS: Ints = np.array([[_CPU_S, _CPU_S, _REQUESTS, _UTILISATION], [_REQUESTS, _PERIOD, _PERIOD, _PERIOD]])
PEAK_S = 0.6
USUAL = 5
"""Samples in a window at the usual period. A monitor that follows events may send up to `MOST`."""
MOST = 24
ROUNDING = 0.9
"""A window counts as full at this share of its length, since periods are not exact."""
OTHERS_BUSY, OTHERS_OVER_OWN = 0.5, 2.0
"""A machine's other programs count from this share of its CPU time on, and from so many times the web server's. Stolen
time is booked on both in proportion to what they run, and beside requests the others run little."""
REPLACED = 0.02
"""A web server whose number of threads changes by this share, and by `REPLACED_THREADS`, was started anew or reloaded.
A process that ends after a number of requests, as PHP's do, changes it by one."""
REPLACED_THREADS = 3
MIN_REQUESTS = 5
"""With fewer requests in a window there is no CPU time per request: the processes' idle work would be counted in."""


@dataclass(frozen=True, kw_only=True)
class SampleRows:
    """A Sample of each of M nodes, as numbers; NaN is absent."""

    slots: Ints
    values: Floats
    """(M, signals)."""
    load: Floats
    """(M,) CPU time of the web server's own processes over the CPU that they may use, mean of the window: 1 is full.
    Where the processes are not known it is the CPU's utilisation. A virtual machine's neighbour raises it: see
    `features.requests_load`."""
    others: Floats
    """(M,) CPU time of the node's other programs (a backup), as `load`. On a machine the time that a hypervisor takes
    away is booked on the program that was running, so there it is 0 but where it is far above the web server's."""
    peak: Floats
    """(M,) the highest load, with other programs, in the Samples of the last `PEAK_S`: a burst's queue outlives the
    burst."""
    replaced: Bools
    """(M,) whether the web server was started anew or reloaded in the last `WINDOW_S`, by its threads."""
    returned: Bools
    """(M,) whether it just came back after a time without answers, or a machine answers nothing (`features.returns`).
    Never of a cgroup: what its programs wait for shows a neighbour, after a reload too."""
    rps: Floats
    """(M,) requests per second, mean of the window."""
    answers: Floats
    """(M,) answered requests in the Sample."""
    unanswered_s: Floats
    """(M,) time for which nothing was answered while requests waited, of a server without a monitor; it counts as the
    response time then. 0 where something was, or it says nothing yet (`features.unanswered`)."""
    utilisation: Floats
    """(M,) CPU utilisation, mean of the window."""
    cores: Floats
    """(M,) CPUs that the server may use; NaN is unknown."""
    outside: Bools
    """(M,) whether the Sample is the balancer's, of a server without a monitor. Its load is that of
    `features.calm_rate`, and nothing but its requests is known."""
    rt_by_route_ms: Floats | None = None
    """(M, routes) mean response times; None when no Sample has routes."""


class SampleWindows(SlotArrays):
    """The Samples of each slot that cover the last `WINDOW_S`, and its routes' calm response times.

    A Sample counts by the time that it covers, so the monitor's rate of Samples does not matter.
    """

    _last: Floats
    """(slots, MOST, KEPT) ring of the last Samples."""
    _at: Ints
    """(slots,) next place in the ring."""

    def __init__(self) -> None:
        self.routes = RouteTimes()
        self.rates = CalmRates()
        self.returns = Returns()
        self.unanswered = Unanswered()
        super().__init__(
            self.routes, self.rates, self.returns, self.unanswered, _last=np.full((MOST, KEPT), np.nan), _at=0
        )

    def add(self, slots: Ints, table: Table, first: Bools) -> SampleRows:
        """Adds one Sample of each slot, (M,); returns the rows. `first`: (M,) whether it is a monitor's first, which
        empties the window."""
        columns = table.columns
        values = np.full((len(table), len(SIGNALS)), np.nan)
        for number, signal in enumerate(SIGNALS):
            if signal.read is not None:
                values[:, number] = signal.read(columns)
        kept = _window_row(columns, values[:, INDEX["canary_ratio"]], values[:, INDEX["late"]])
        cores = np.where(columns["cpu.cores"] > 0, columns["cpu.cores"], np.nan)
        by_route = self.routes.read(slots, table.routes)
        if by_route is not None:
            values[:, INDEX["rt_routes"]] = self.routes.ratio(slots, *by_route)

        self._last[slots[first]] = np.nan
        self._last[slots, self._at[slots]] = kept
        self._at[slots] = (self._at[slots] + 1) % MOST
        window, ages_s = self._windows(slots)

        values[:, INDEX["canary_ratio_max"]] = np.fmax.reduce(window[_RATIO], axis=1)
        values[:, INDEX["late_max"]] = np.fmax.reduce(window[_LATE], axis=1)
        (cpu_s, own_cpu_s, traffic, busy), (requests, own_period, traffic_period, busy_period) = _sums(window)
        values[:, INDEX["cpu_per_request"]] = np.where(
            requests >= MIN_REQUESTS, cpu_s / np.maximum(requests, 1) * 1e3, np.nan
        )
        utilisation = busy / busy_period
        own = own_cpu_s / own_period / cores
        recent = np.where(ages_s < ROUNDING * PEAK_S, window, np.nan)
        own_recent = recent[_CPU_S] / recent[_PERIOD] / cores[:, None]
        load = np.where(np.isnan(own), utilisation, own)
        cgroups = in_cgroup(values)
        threads = window[_THREADS]
        moved = np.abs(threads[:, :-1] - threads[:, 1:])
        with np.errstate(invalid="ignore"):
            replaced: Bools = np.asarray(
                ((moved >= REPLACED_THREADS) & (moved >= REPLACED * threads[:, 1:])).any(axis=1)
            )
        whole = cgroups | np.isnan(own)
        whole_recent = np.fmax(own_recent, recent[_UTILISATION] / recent[_PERIOD])
        peak = np.fmax.reduce(np.where(whole[:, None], whole_recent, own_recent), axis=1)
        rps, outside = traffic / traffic_period, columns["balancer.only"] > 0.0
        unanswered_s = np.zeros(len(table))
        if outside.any():
            load[outside] = self.rates.load(slots[outside], rps[outside], columns["period_s"][outside])
            unanswered_s[outside] = self._unanswered(slots, columns, outside, values)
            # A server at which requests wait is as busy as it was at most, however few it answers.
            load[unanswered_s > 0.0] = AT_HIGHEST
            peak[outside] = load[outside]
        returned = np.zeros(len(table), dtype=bool)
        if (may_return := outside | ~cgroups).any():
            returned[may_return] = self.returns.update(
                slots[may_return],
                columns["traffic.rps"][may_return],
                columns["period_s"][may_return],
                ~outside[may_return],
                replaced[may_return],
            )
        return SampleRows(
            slots=slots,
            values=values,
            load=load,
            others=_others(utilisation, load, cgroups),
            peak=np.fmax(peak, load),
            replaced=replaced,
            returned=returned,
            rps=rps,
            answers=columns["traffic.rps"] * columns["period_s"],
            unanswered_s=unanswered_s,
            utilisation=utilisation,
            cores=cores,
            outside=outside,
            rt_by_route_ms=by_route[1] if by_route is not None else None,
        )

    def note_episodes(self, slots: Ints, in_episode: Bools) -> None:
        """Notes which of these slots, (M,), are in an episode: they are relieved, and answer little for that reason."""
        self.returns.end(slots[in_episode])
        self.unanswered.note_episodes(slots, in_episode)

    def _unanswered(self, slots: Ints, columns: Columns, outside: Bools, values: Floats) -> Floats:
        """`SampleRows.unanswered_s` of the rows that are `outside`; puts it into their response times in `values`."""
        period_s, oldest_ms = columns["period_s"][outside], columns["traffic.oldest_unanswered_ms"][outside]
        unanswered_s = self.unanswered.update(
            slots[outside],
            columns["traffic.rps"][outside],
            period_s,
            in_flight=columns["traffic.in_flight"][outside],
            oldest_ms=oldest_ms,
            failed=columns["traffic.errors_per_s"][outside] * period_s,
        )
        waits = np.flatnonzero(outside)[unanswered_s > 0.0]
        if len(waits):
            known: Ints = np.array([INDEX["rt_mean"], INDEX["rt_p50"], INDEX["rt_p95"]])
            times_ms = 1000.0 * unanswered_s[unanswered_s > 0.0, None] * np.ones(len(known))
            # Without packets no percentile is known in calm either.
            times_ms[np.isnan(oldest_ms[unanswered_s > 0.0]), 1:] = np.nan
            values[np.ix_(waits, known)] = times_ms
        return unanswered_s

    def _windows(self, slots: Ints) -> tuple[Floats, Floats]:
        """(KEPT, M, n) the Samples in each slot's window, the newest first, NaN outside of it; and (M, n) each Sample's
        age in s, from its end to the end of the newest one."""
        for count in (USUAL, MOST):
            places = (self._at[slots][:, None] - 1 - np.arange(count)) % MOST
            window = np.moveaxis(self._last[slots[:, None], places], 2, 0).copy()
            periods_s = filled(window[_PERIOD], 0.0)
            ages_s = np.cumsum(periods_s, axis=1) - periods_s
            whole = ages_s[:, -1] + periods_s[:, -1] >= ROUNDING * WINDOW_S
            if (whole | np.isnan(window[_PERIOD, :, -1])).all():
                break
        window[:, ages_s >= ROUNDING * WINDOW_S] = np.nan
        return window, ages_s


def _others(utilisation: Floats, load: Floats, cgroups: Bools) -> Floats:
    """(M,) `SampleRows.others`."""
    others = filled(np.maximum(utilisation - load, 0.0), 0.0)
    surely = others >= np.maximum(OTHERS_BUSY, OTHERS_OVER_OWN * filled(load, np.inf))
    return np.where(cgroups | surely, others, 0.0)


def in_cgroup(values: Floats) -> Bools:
    """(M,) whether a Sample, (M, signals), is of a cgroup. A machine knows its steal, even if that is always 0."""
    return np.isnan(values[:, INDEX["steal"]])


def in_own_queue(values: Floats) -> Bools:
    """(M,) whether a neighbour shows in a Sample's own run queue: it is of a cgroup whose waits are known."""
    waits = values[:, [INDEX["run_delay_per_cpu"], INDEX["cpu_pressure"]]]
    return np.asarray(in_cgroup(values) & ~np.isnan(waits).all(axis=1))


def _window_row(columns: Columns, ratio: Floats, late_ms: Floats) -> Floats:
    """(M, KEPT) the values of each Sample that the window keeps."""
    period_s, utilisation = columns["period_s"], columns["cpu.utilisation"]
    cpu_s_per_s = columns["sched.cpu_s_per_s"]
    cpu_s_per_s = np.where(np.isnan(cpu_s_per_s), utilisation * columns["cpu.cores"], cpu_s_per_s)
    requests = columns["traffic.rps"] * period_s
    kept = [ratio, late_ms, cpu_s_per_s * period_s, requests, period_s, utilisation * period_s]
    return np.array([*kept, columns["sched.threads"]]).T


def _sums(window: Floats) -> Floats:
    """(2, pairs, M) sums of both columns of each of `_PAIRS` over the Samples of the window that have both; NaN where
    none has."""
    pairs = window[_PAIRS]
    known = ~(np.isnan(pairs[0]) | np.isnan(pairs[1]))
    return np.where(known.any(axis=2), np.where(known, pairs, 0.0).sum(axis=3), np.nan)
