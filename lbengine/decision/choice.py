"""Which weights a pool with slow servers should have. Pure.

Of several candidates the choice takes the split that is predicted to hold the fewest requests, if that is no worse than
the baseline weights with a confidence of 90%.

Knowledge of the servers is uncertain: each capacity has a standard error, and each Verdict a probability. So all
candidates are predicted for the same `DRAWS` possible pools (common random numbers, spread evenly by a rank-1 lattice),
and compared pool by pool.

A split that fills servers is left again as soon as queues show it. So no pool counts as holding more than `RECOURSE`
times the requests that it would hold with the baseline weights: stochastic programming with recourse (G. B. Dantzig,
"Linear programming under uncertainty", Management Science 1, 1955), with a bound for the cost of the second stage.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import msgspec

from lbengine.balancer import Snapshot
from lbengine.decision import guard, prediction, two_choices
from lbengine.decision.calm import SPEEDS
from lbengine.decision.law_weights import LEAST_RPS, Load, Want, capacities, wanted_weights
from lbengine.decision.prediction import Alike
from slackwater.messages import WeightsMean

CONFIDENCE = 0.9
"""A split must be no worse than the baseline weights with at least this probability."""
KEPT = 0.5
"""The split that is set stays while it is no worse with at least this probability, since estimates waver."""
TOLERANCE = 0.01
"""A response time that rises by no more than this is no worse."""
RECOURSE = 2.0
"""A wrong split costs at most this many times as much as the baseline weights, before it is left again."""
LEAST_GAIN = 0.02
"""A split that gains less than this is not worth a change."""
ROUNDING = 1e-6
DRAWS = 20
LEAST_ERROR = 0.05
"""The standard error of a capacity is at least this share of it."""
MOST_ERROR = 1.0
SPREAD = 0.75487766624669276, 0.56984029099805327
"""Steps of the lattice, from Roberts' sequence in two dimensions: the draws of two servers never go together."""
LIKELY_LOSS = 0.5
"""A server beside a neighbour counts as having lost this share of its capacity, until more is known."""
UNSEEN_SPEED = 1.0
"""Speed of a server beside a neighbour whose queue was not seen: the least. If the unknown looked better than the
known, two slow servers would be drained in turns."""
UNLIKELY = 0.05
"""A server whose neighbour is less likely than this counts as calm."""
GRADES = 0.05
"""Capacities and errors are rounded to steps of this share, so that many servers of a large pool are predicted as one
group."""


@dataclass(frozen=True)
class Choice:
    """The wanted weights of the servers that may be reduced, by name. Servers at their baseline are left out."""

    wanted: Mapping[str, Want]
    why_not: str = ""
    """Why nothing is moved, in words; empty where something is."""


@dataclass(frozen=True)
class _Belief:
    """A server's capacity as it is believed: with a neighbour and without."""

    capacity_rps: float
    """Capacity with the neighbour."""
    error: float
    """Standard error of the logarithm of `capacity_rps`."""
    calm_rps: float
    """Capacity without a neighbour."""
    sure: float
    """Probability of the neighbour."""
    served_rps: float
    """A lower bound of the capacity: the rate that the server answers now."""
    speed: float
    """Speed with the neighbour, as `prediction.Alike.speed`."""


def calm_capacity(loads: Sequence[Load], known: Sequence[float]) -> tuple[float, float]:
    """A calm server's capacity per unit of weight, in requests/s, and its standard error as a share.

    `known`: capacity of each server in `loads`, in requests/s.
    """
    weighed = [(load, rps / load.baseline) for load, rps in zip(loads, known, strict=True) if load.baseline > 0]
    calm = [per for load, per in weighed if not load.reduce]
    per_weight = max(calm or [per / max(1.0 - load.severity, 0.05) for load, per in weighed], default=0.0)
    known_errors = (
        load.capacity_stderr_rps / load.capacity_rps for load in loads if not load.reduce and load.capacity_rps
    )
    errors = sorted(known_errors)
    return per_weight, min(max(errors[len(errors) // 2] if errors else LEAST_ERROR, LEAST_ERROR), MOST_ERROR)


def held_in_calm(loads: Sequence[Load], total_rps: float, weights_mean: WeightsMean | None) -> list[float] | None:
    """The requests in flight that are predicted for a calm pool, for each of `calm.SPEEDS`.

    None unless all servers are calm, at their baseline weights, and not full.
    """
    if any(_is_doubtful(load) or load.slow or load.weight_now != load.baseline for load in loads):
        return None
    known = _expected(loads)
    if known is None or total_rps >= prediction.FULL * math.fsum(known):
        return None
    alike = Counter((load.baseline, rps) for load, rps in zip(loads, known, strict=True))
    held_by_speed = []
    for speed in SPEEDS:
        groups = [Alike(count, weight, rps, speed) for (weight, rps), count in alike.items()]
        held = [model(groups, total_rps) for model in _models(weights_mean)]
        held_by_speed.append(math.fsum(held) / len(held))
    return held_by_speed


def _models(weights_mean: WeightsMean | None) -> Sequence[Callable[[Sequence[Alike], float], float]]:
    """The functions that predict a pool's requests; the truth is taken to lie between their results."""
    if weights_mean == "concurrency":
        return prediction.one_queue, prediction.own_queues
    return (two_choices.held_together if weights_mean == "draws" else prediction.by_share,)


def choose(
    loads: Sequence[Load],
    total_rps: float | None,
    law_name: str,
    u_threshold: float,
    snapshot: Snapshot,
    most_drained: int,
    speed: float = 1.0,
) -> Choice:
    """The best split for a pool that carries `total_rps`; where that is not known (None), the law alone decides.

    At most `most_drained` servers may stand below `guard.PART` of their baseline. `speed` is the speed of calm servers,
    as `calm.Calm.speed`.
    """
    reducible = [load for load in loads if load.reduce]
    if not reducible or len(loads) < 2:
        return Choice({})

    def law(caution: float, spare_slow: bool = True) -> dict[str, Want]:
        cautious = [_cautious(load, caution) for load in loads]
        return wanted_weights(cautious, total_rps, law_name, u_threshold, snapshot, spare_slow)

    by_law = law(1.0)
    known = _expected(loads)
    if known is None or total_rps is None or total_rps <= 0.0:
        return Choice(_within(by_law, reducible, most_drained))
    candidates = [law(0.0), by_law, law(2.0), _halfway(reducible, by_law)]
    if any(load.slow and not load.reduce for load in loads):
        unspared = law(1.0, spare_slow=False)
        candidates += [unspared, _halfway(reducible, unspared)]
    candidates += [_drained(reducible, count) for count in range(1, min(most_drained, len(reducible)) + 1)[:3]]
    candidates = [_within(candidate, reducible, most_drained) for candidate in candidates]
    now = {load.server: Want(load.weight_now, "") for load in reducible}
    splits = [{load.server: load.baseline for load in loads}]
    splits += [{**splits[0], **{name: want.weight for name, want in wants.items()}} for wants in (now, *candidates)]
    held = _held(loads, known, splits, total_rps, snapshot.weights_mean, speed)
    mean = [_mean(row, held[0]) for row in held]
    sure = [_no_worse(row, held[0]) for row in held]
    best = min((n for n in range(2, len(splits)) if sure[n] >= CONFIDENCE), key=mean.__getitem__, default=0)
    if mean[best] > (1.0 - LEAST_GAIN) * mean[0]:
        best = 0
    moved = splits[1] != splits[0]
    if (
        moved
        and sure[1] >= KEPT
        and mean[1] < (1.0 - ROUNDING) * mean[0]
        and _no_worse(held[best], held[1]) < CONFIDENCE
    ):
        best = 1
    if best == 0:
        likely = max(range(2, len(splits)), key=sure.__getitem__)
        return Choice({}, f"no split is surely better: the best is no worse with {sure[likely]:.0%}")
    chosen = now if best == 1 else candidates[best - 2]
    gain = f"{mean[0]:.1f} -> {mean[best]:.1f} requests in the pool, no worse with {sure[best]:.0%}"
    return Choice(
        {
            load.server: Want(
                chosen[load.server].weight,
                f"{by_law[load.server].why}; predicted {gain}",
            )
            for load in reducible
            if chosen[load.server].weight < load.baseline
        }
    )


def _cautious(load: Load, caution: float) -> Load:
    """The load with `caution` times its standard error: the law counts its capacity that much lower."""
    return msgspec.structs.replace(load, capacity_stderr_rps=caution * load.capacity_stderr_rps)


def _expected(loads: Sequence[Load]) -> list[float] | None:
    """Expected capacities in requests/s, without caution; None where none is known."""
    return capacities([_cautious(load, 0.0) for load in loads])


def _halfway(loads: Sequence[Load], law: Mapping[str, Want]) -> dict[str, Want]:
    return {load.server: Want((load.baseline + law[load.server].weight + 1) // 2, "") for load in loads}


def _drained(loads: Sequence[Load], count: int) -> dict[str, Want]:
    worst = {load.server for load in sorted(loads, key=_least_likely_last)[:count]}
    return {load.server: Want(0 if load.server in worst else load.baseline, "") for load in loads}


def _least_likely_last(load: Load) -> tuple[float, str]:
    return -load.probability * load.severity, load.server


def _within(wanted: Mapping[str, Want], loads: Sequence[Load], most_drained: int) -> dict[str, Want]:
    """Limits the number of drained servers: those beyond it keep `guard.PART` of their baseline.

    A server that is drained now stays so for a while, so until then no other is drained in its place.
    """
    now = {load.server for load in loads if guard.is_drained(load.weight_now, load.baseline)}
    low = [load for load in loads if guard.is_drained(wanted[load.server].weight, load.baseline)]
    low.sort(key=lambda load: (load.server not in now, *_least_likely_last(load)))
    room = max(most_drained - len(now - {load.server for load in low}), 0)
    kept = {load.server: Want(guard.least_weight(load.baseline), wanted[load.server].why) for load in low[room:]}
    return {**wanted, **kept}


def _mean(held: Sequence[float], baseline: Sequence[float]) -> float:
    """Mean requests over the possible pools, with the recourse to the baseline weights."""
    return math.fsum(
        min(requests, RECOURSE * at_baseline) for requests, at_baseline in zip(held, baseline, strict=True)
    ) / len(held)


def _no_worse(held: Sequence[float], than: Sequence[float]) -> float:
    return sum(requests <= (1.0 + TOLERANCE) * others for requests, others in zip(held, than, strict=True)) / len(held)


def _held(
    loads: Sequence[Load],
    known: Sequence[float],
    splits: Sequence[Mapping[str, int]],
    total_rps: float,
    weights_mean: WeightsMean | None,
    speed: float,
) -> list[list[float]]:
    """(splits, DRAWS) requests that the pool is predicted to hold."""
    per_weight, kept_error = calm_capacity(loads, known)
    alike = Counter((load.baseline, rps) for load, rps in zip(loads, known, strict=True) if not _is_doubtful(load))
    classes = Counter(
        (_belief(load, rps, per_weight, kept_error), tuple(split[load.server] for split in splits))
        for load, rps in zip(loads, known, strict=True)
        if _is_doubtful(load)
    )
    held: list[list[float]] = [[] for _ in splits]
    for draw in range(DRAWS):
        common = math.exp(kept_error * _normal(draw, 0))
        fixed = [(count, weight, max(rps * common, LEAST_RPS)) for (weight, rps), count in alike.items()]
        drawn = [
            (count, weights, *_draw(belief, draw, number + 1, common, speed))
            for number, ((belief, weights), count) in enumerate(classes.items())
        ]
        models = _models(weights_mean)
        model = models[draw % len(models)]
        for number, row in enumerate(held):
            groups = [Alike(*group, speed) for group in fixed]
            groups += [Alike(count, weights[number], rps, fast) for count, weights, rps, fast in drawn]
            row.append(model(groups, total_rps))
    return held


def _is_doubtful(load: Load) -> bool:
    return load.reduce or load.probability >= UNLIKELY


def _belief(load: Load, rps: float, per_weight: float, kept_error: float) -> _Belief:
    error = load.capacity_stderr_rps / load.capacity_rps if load.capacity_rps else kept_error
    error = min(max(error, LEAST_ERROR), MOST_ERROR)
    if not load.slow:
        rps, error = (1.0 - LIKELY_LOSS) * load.baseline * per_weight, LIKELY_LOSS
    return _Belief(
        _graded(rps),
        GRADES * round(error / GRADES),
        load.baseline * per_weight,
        load.probability,
        _graded(load.served_rps),
        _graded(_speed(load)),
    )


def _speed(load: Load) -> float:
    return load.speed or UNSEEN_SPEED


def _graded(rps: float) -> float:
    return math.exp(GRADES * round(math.log(max(rps, LEAST_RPS)) / GRADES))


def _draw(belief: _Belief, draw: int, number: int, common: float, speed: float) -> tuple[float, float]:
    """A possible capacity of the server in this draw, in requests/s, and its speed. `speed`: that of a calm server."""
    capacity_rps = belief.calm_rps * common
    if (0.5 + draw * 0.618033988749895 + number * SPREAD[1]) % 1.0 < belief.sure:
        drawn_rps = max(belief.capacity_rps * math.exp(belief.error * _normal(draw, number)), belief.served_rps)
        capacity_rps, speed = min(drawn_rps, capacity_rps), belief.speed
    return max(capacity_rps, LEAST_RPS), speed


@lru_cache(maxsize=4096)
def _normal(draw: int, number: int) -> float:
    """Value of the standard normal variable `number` in this draw."""
    point = ((draw + 0.5) / DRAWS + draw * number * SPREAD[0] + number * SPREAD[1]) % 1.0
    return NormalDist().inv_cdf(min(max(point, 0.5 / DRAWS), 1.0 - 0.5 / DRAWS))
