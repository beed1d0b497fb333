"""Stated thresholds: which signals deviate, what follows from that without a model, and what keeps an episode open.

One signal alone proves nothing, since a busy server waits for itself too: a signal counts when it is beyond its limit
against the node's own calm baseline at this load *and* against its peers, and signals of different groups must agree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detector.features.columns import Bools, Floats, Ints
from detector.features.features import Frame, describe, describe_all, times
from detector.features.signals import INDEX, QUEUES, SIGNALS


@dataclass(frozen=True)
class Limit:
    """When a signal deviates."""

    own: float
    """Times its calm baseline."""
    peers: float
    """Times its peers' (each against its own baseline)."""


LIMITS: dict[str, Limit] = {
    "run_delay_per_cpu": Limit(2.5, 2.0),
    "canary_ratio": Limit(1.5, 1.4),
    "late": Limit(3.0, 2.5),
    "steal": Limit(2.5, 2.0),
    "cpu_pressure": Limit(2.0, 1.6),
    "cpi": Limit(1.4, 1.3),
    "cache_miss_rate": Limit(1.5, 1.4),
    "probe_cycles": Limit(1.4, 1.3),
    "probe_misses": Limit(1.5, 1.4),
    "probe_alu": Limit(1.4, 1.3),
    "cpu_per_request": Limit(1.5, 1.4),
    "io_pressure": Limit(3.0, 2.5),
    "disk_wait": Limit(4.0, 3.0),
    "memory_pressure": Limit(3.0, 2.5),
    "major_faults": Limit(4.0, 3.0),
    "net_saturation": Limit(3.0, 2.5),
    "retransmits": Limit(4.0, 3.0),
    "net_drops": Limit(4.0, 3.0),
    "rt_routes": Limit(2.5, 2.0),
    "rt_mean": Limit(2.5, 2.0),
    "rt_p95": Limit(3.0, 2.5),
    "rt_balancer": Limit(2.5, 2.0),
    "in_flight": Limit(4.0, 3.0),
}
STRONG = 3.0
"""A group deviates strongly when one of its signals is beyond this many times both limits."""
MIN_SPREADS = 6.0
"""A deviation is also this many calm spreads (robust standard deviations) away. The machine's own little jobs disturb
the probe now and then, which a spread does not know: signals of the core must also be above what is usual in calm."""
NOTHING = "no signal is beyond its limits"
SELF_INFLICTED_LOAD = 0.85
"""From this CPU share of its own programs on, in any of the last ticks, a server's waiting is self-inflicted."""
NO_BURST_LOAD = 0.6
"""A server that used less of its CPU than this in each of the last ticks had no burst: if its requests queue for a core
in two ticks in a row, a neighbour causes it. One tick proves nothing: a burst's first tick may hold little of it."""
STRONG_COMBINED = 16.0
"""A tick shows a neighbour strongly when two groups or more are beyond their limits and by how much, multiplied, is
this: each of two by 4 times. A machine's hiccups raise one a lot or two a little."""
WEAK_LIMITS: dict[str, Limit] = {
    "run_delay_per_cpu": Limit(2.2, 1.8),
    "steal": Limit(2.2, 1.8),
    "rt_routes": Limit(2.0, 1.6),
    "rt_mean": Limit(2.0, 1.6),
    "rt_balancer": Limit(2.0, 1.6),
}
"""A weak neighbour makes signals cross the other limits only now and then. A server that waits for a core, and makes
users wait, by this much in most ticks of a second has one too (`detector.classify.rules`)."""
UNKNOWN_OWN = 1.5
"""Without any baseline the peers' values of now are all there is: they must be beyond `own` times this."""
_PROBED = ("canary_ratio", "late", "steal", "probe_cycles")
RESIDUAL = ("kept_waiting", *_PROBED)
"""Signals that mean something on a server without requests: random moments, the monitor's probe, and steal. What idle
processes of the web server do is noise. Any of these makes a tick loud (`detector.classify.episodes`)."""
KEPT_WAITING = 2.5
"""Times its calm baseline. There are few moments in a Sample, so neither its spread nor its peers mean much."""

_LIMITED = np.array([signal.key in LIMITS for signal in SIGNALS])
_OWN: Floats = np.array([LIMITS[s.key].own if s.key in LIMITS else np.inf for s in SIGNALS])
_PEERS: Floats = np.array([LIMITS[s.key].peers if s.key in LIMITS else np.inf for s in SIGNALS])
_WEAK_CAUSES = [INDEX["run_delay_per_cpu"], INDEX["steal"]]
_WEAK_USERS = [INDEX["rt_routes"], INDEX["rt_mean"], INDEX["rt_balancer"]]
_WEAK_OWN: Floats = np.array([WEAK_LIMITS[s.key].own if s.key in WEAK_LIMITS else np.inf for s in SIGNALS])
_WEAK_PEERS: Floats = np.array([WEAK_LIMITS[s.key].peers if s.key in WEAK_LIMITS else np.inf for s in SIGNALS])
_STRONG_OWN, _STRONG_PEERS = _OWN * STRONG, _PEERS * STRONG
_ALONE = _OWN * UNKNOWN_OWN
"""Times its peers' where it has no baseline of its own."""
_STRONG_ALONE = _ALONE * STRONG
_PROBED_COLUMNS = [INDEX[key] for key in _PROBED]
_GROUPS = ("run queue", "core", "cost", "disk", "network", "memory", "users")
_IN_GROUP: Bools = np.array([[signal.group == group for group in _GROUPS] for signal in SIGNALS]) & _LIMITED[:, None]
"""(signals, groups) which group each signal that has a limit is in."""
_RUN_QUEUE, _CORE, _USERS = (_GROUPS.index(group) for group in ("run queue", "core", "users"))
_CPU, _DEVICES, _CAUSES, _OTHER_CAUSES = slice(0, 3), slice(3, 6), slice(0, 6), slice(1, 6)
"""Of `_GROUPS`; the other causes are all but the run queue."""
_MIXED: Bools = np.array([signal.key in ("rt_mean", "rt_p95") for signal in SIGNALS])
"""Response times over all requests, which move with the mix of requests too."""


@dataclass(frozen=True)
class Deviations:
    """Which limits each row of a frame crossed."""

    votes: Bools
    """(M, signals) beyond both limits."""
    strong_votes: Bools
    """(M, signals) beyond `STRONG` times both limits."""
    latency_unknown: Bools
    """(M,) no response time is known."""
    interfering: Bools
    """(M,) by the thresholds alone: a neighbour."""
    queueing_suspected: Bools
    """(M,) the run queue and users deviate without a burst: a neighbour when it was so in the tick before too."""
    strong: Bools
    """(M,) `STRONG_COMBINED`."""
    stands_out: Bools
    """(M,) any signal is beyond both limits."""
    weak_votes: Bools
    """(M, signals) beyond both limits of `WEAK_LIMITS`."""
    slow: Bools
    """(M,) users wait far longer than at its own calm baseline, whatever its peers do."""
    residual: Bools
    """(M, len(RESIDUAL)) signs of a neighbour that show without requests too."""

    def affects_users_without(self, ignored: Bools) -> Bools:
        """(M,) a neighbour that users notice, by the thresholds alone and without the `ignored` (M, signals)."""
        votes, strong = self.votes & ~ignored, self.strong_votes & ~ignored
        beyond = _groups(votes)
        noticed = beyond[:, _USERS] | self.latency_unknown
        return np.asarray(_interfering(beyond, _groups(strong), self.latency_unknown) & noticed)

    def weak_signal_without(self, ignored: Bools) -> Bools:
        """(M,) a cause and users beyond `WEAK_LIMITS`, without the `ignored` (M, signals): it means something only if
        it persists."""
        kept = self.weak_votes & ~ignored
        return np.asarray(kept[:, _WEAK_CAUSES].any(axis=1) & kept[:, _WEAK_USERS].any(axis=1))


def find_deviations(frame: Frame, suspected_before: Bools | None = None) -> Deviations:
    """Compares a frame of M nodes with the limits. Absent values cross nothing.

    `suspected_before` (M,): the nodes of which `queueing_suspected` held one tick before.
    """
    with np.errstate(invalid="ignore"):
        far = (frame.spreads >= MIN_SPREADS) & ((frame.usual > 1.0) | ~_IN_GROUP[:, _CORE])
        # A server that used nearly all of its CPU a moment ago, or replaces its processes, waits for itself: its queues
        # prove nothing then.
        self_inflicted = ((frame.peak >= SELF_INFLICTED_LOAD) | frame.replaced)[:, None] & QUEUES
        # Response times by route replace those over all requests, which change with the mix of requests too.
        left_out = self_inflicted | (_MIXED & ~np.isnan(frame.values[:, INDEX["rt_routes"], None]))
        far &= ~left_out
        # CPU pressure stands in for the run delay where that is not known.
        far[:, INDEX["cpu_pressure"]] &= np.isnan(frame.values[:, INDEX["run_delay_per_cpu"]])
        beyond_own = (frame.own >= _OWN) & far
        no_peers = np.isnan(frame.peers)
        no_own = np.isnan(frame.own) & ~left_out
        beyond_peers = (frame.peers >= _PEERS) | no_peers
        votes = np.where(no_own, frame.peers >= _ALONE, beyond_own & beyond_peers)
        strong = (frame.own >= _STRONG_OWN) & far
        strong_votes = (strong | (no_own & (frame.peers >= _STRONG_ALONE))) & (
            (frame.peers >= _STRONG_PEERS) | (no_peers & ~no_own)
        )
        weak_votes = (frame.own >= _WEAK_OWN) & (frame.peers >= _WEAK_PEERS) & ~left_out
        kept_waiting = frame.own[:, INDEX["kept_waiting"]] >= KEPT_WAITING
        residual: Bools = np.column_stack([kept_waiting, (beyond_own & beyond_peers)[:, _PROBED_COLUMNS]])
    mean_ms, p95_ms = frame.values[:, INDEX["rt_mean"]], frame.values[:, INDEX["rt_p95"]]
    latency_unknown: Bools = np.isnan(mean_ms) & np.isnan(p95_ms)
    stands_out: Bools = np.asarray(votes.any(axis=1))
    beyond = _groups(votes)
    queueing_suspected: Bools = beyond[:, _RUN_QUEUE] & beyond[:, _USERS] & np.asarray(frame.peak < NO_BURST_LOAD)
    interfering = _interfering(beyond, _groups(strong_votes), latency_unknown)
    return Deviations(
        votes=votes,
        strong_votes=strong_votes,
        latency_unknown=latency_unknown,
        interfering=interfering if suspected_before is None else interfering | (queueing_suspected & suspected_before),
        queueing_suspected=queueing_suspected,
        strong=_strong_combined(frame, votes, stands_out),
        stands_out=stands_out,
        weak_votes=weak_votes,
        slow=_slow(_groups(beyond_own), _groups(strong)),
        residual=residual,
    )


def _groups(marks: Bools) -> Bools:
    """(M, groups) in which of `_GROUPS` any of the marked signals, (M, signals), is."""
    return np.asarray(marks @ _IN_GROUP)


def _strong_combined(frame: Frame, votes: Bools, some: Bools) -> Bools:
    """(M,) `STRONG_COMBINED`; `some` (M,) are the rows with a vote."""
    found = np.zeros(len(votes), dtype=bool)
    if some.any():
        beyond = np.fmin(frame.own[some] / _OWN, frame.peers[some] / _PEERS)
        beyond = np.where(votes[some], np.maximum(np.nan_to_num(beyond, nan=1.0), 1.0), 0.0)
        by_group = np.stack([beyond[:, columns].max(axis=1) for columns in _IN_GROUP.T], axis=1)
        combined = np.where(by_group > 0.0, by_group, 1.0).prod(axis=1)
        found[some] = ((by_group > 0.0).sum(axis=1) >= 2) & (combined >= STRONG_COMBINED)
    return found


def _interfering(beyond: Bools, far_beyond: Bools, latency_unknown: Bools) -> Bools:
    """Two causes of the CPU; or one but the run queue, and users' waiting, strongly; or the run queue, strongly, and
    users; or a disk, network or memory that waits, and users: strongly, or with a cause of the CPU beside it.

    A burst of the own requests raises run delay and response time together, but not so far beyond calm and peers.
    A backup of the server's own makes its disk wait too: as long as no request waits for it, nothing is to be done.
    Where no request ends nobody waits; then the run delay is believed alone.
    """
    causes = beyond[:, _CPU].sum(axis=1)
    users = beyond[:, _USERS]
    return np.asarray(
        (causes >= 2)
        | (beyond[:, _OTHER_CAUSES].any(axis=1) & far_beyond[:, _USERS])
        | (far_beyond[:, _RUN_QUEUE] & (users | latency_unknown))
        | (beyond[:, _DEVICES].any(axis=1) & users & (causes >= 1))
    )


def _slow(beyond: Bools, far_beyond: Bools) -> Bools:
    """Users wait far longer, or longer and with a cause beside it."""
    return np.asarray((beyond[:, _USERS] & beyond[:, _CAUSES].any(axis=1)) | far_beyond[:, _USERS])


def explain(frame: Frame, deviations: Deviations, row: int) -> list[str]:
    """The crossed limits of a row in words with values, the furthest first; a line saying so when there is none."""
    return explain_all(frame, deviations, np.array([row]))[0]


def explain_all(frame: Frame, deviations: Deviations, rows: Ints) -> list[list[str]]:
    """As `explain`, of some rows, (K,). Nearly all have crossed nothing, which costs next to nothing."""
    lines = [[NOTHING] for _ in rows]
    places = deviations.stands_out[rows].nonzero()[0]
    some = rows[places]
    votes = deviations.votes[some]
    beyond = frame.own[some] / _OWN
    beyond = np.where(np.isnan(beyond), 1.0, beyond)
    crossed: list[list[tuple[float, int, str]]] = [[] for _ in some]
    for column in np.flatnonzero(votes.any(axis=0)).tolist():
        mine = votes[:, column].nonzero()[0]
        for at, how_far, line in zip(
            mine.tolist(), beyond[mine, column].tolist(), _crossed(frame, some[mine], column), strict=True
        ):
            crossed[at].append((-how_far, column, line))
    for place, its in zip(places.tolist(), crossed, strict=True):
        if its:
            lines[place] = [line for _, _, line in sorted(its)]
    return lines


def _crossed(frame: Frame, rows: Ints, column: int) -> list[str]:
    """A signal that crossed its limit in these rows, in words: (K,)."""
    key = SIGNALS[column].key
    lines = describe_all(f"{key}:own", frame, rows, f" (>= {_OWN[column]:g}x)")
    peers = frame.peers[rows, column]
    for at in (~np.isnan(peers)).nonzero()[0].tolist():
        lines[at] += f" and {times(peers[at])} its peers' (>= {_PEERS[column]:g}x)"
    unknown = np.isnan(frame.own[rows, column]).nonzero()[0]
    limit = f" (>= {_OWN[column] * UNKNOWN_OWN:g}x; it has no calm baseline yet)"
    for at, line in zip(unknown.tolist(), describe_all(f"{key}:peers", frame, rows[unknown], limit), strict=True):
        lines[at] = line
    return lines


def explain_slow(frame: Frame, row: int) -> list[str]:
    """How far a row is from its own calm baseline, without regard to its peers; the furthest two."""
    ratio = np.where(_LIMITED, np.nan_to_num(frame.own[row] / _OWN, nan=0.0), 0.0)
    ratio[np.isnan(frame.spreads[row]) | (frame.spreads[row] < MIN_SPREADS)] = 0.0
    columns = [int(column) for column in np.argsort(-ratio)[:2] if ratio[column] >= 1.0]
    return [f"{describe(f'{SIGNALS[column].key}:own', frame, row)} (>= {_OWN[column]:g}x)" for column in columns]


def explain_weak_signal(frame: Frame, row: int) -> list[str]:
    """What a row shows beyond the limits of `WEAK_LIMITS`, in words."""
    with np.errstate(invalid="ignore"):
        beyond = (frame.own[row] >= _WEAK_OWN) & (frame.peers[row] >= _WEAK_PEERS)
    return [
        f"{describe(f'{SIGNALS[column].key}:own', frame, row)} (>= {_WEAK_OWN[column]:g}x) and "
        f"{times(frame.peers[row, column])} its peers' (>= {_WEAK_PEERS[column]:g}x)"
        for column in np.flatnonzero(beyond).tolist()
    ]


def explain_residual(frame: Frame, deviations: Deviations, row: int) -> list[str]:
    """What still shows of a neighbour on a row, in words."""
    return [describe(f"{RESIDUAL[number]}:own", frame, row) for number in np.flatnonzero(deviations.residual[row])]
