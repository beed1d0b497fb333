"""The weight of each server in calm: its baseline, or with `balance_capacity` what its capacity allows. Pure.

Where the servers of a pool differ, weights that do not say so fill the weakest one most. What each server carries in
calm follows from the monitors' Verdicts, as a mean over half an hour. A difference counts where it is surely more than
its error; else the server counts as the others. The weights that fill all servers alike are in proportion to what they
carry (`slackwater.lbengine.laws.laws.equalise`). They are no higher than the baselines, since only their proportions
matter.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slackwater.core.messages import EvennessOutcome
from slackwater.lbengine.balancer import Snapshot
from slackwater.lbengine.decision.loads import LEAST_ERROR, Load
from slackwater.lbengine.decision.split import step_of

MEMORY_S = 1800.0
"""After this much calm an observation counts for 1/e."""
LOOK_S = 0.9
"""No look comes sooner after the one before."""
LONGEST_S = 2.0
"""A look stands for no more time than this."""
SEEN_S = 20.0
FEW_REQUESTS = 400
"""Nothing is known of a server before it had so many requests in so much calm: their number is known to 5% then."""
SHARE_OF_ERROR = 0.5
"""Share of a capacity's standard error that stays in the mean over half an hour and makes servers differ. The rest
wavers, or is the same for all servers of one application."""
SURE = 2.0
"""A difference counts from this many standard errors on."""
LEAST_GAIN = 0.03
"""The fullest server must become less full by this share at least."""
LOWEST, HIGHEST = 0.5, 1.5
"""A server's share of the requests stays within these multiples of its share by the baseline weights."""
STEP = 0.1
"""A step changes a weight by at most this share of its baseline."""
OVERLOAD_S = 30.0
"""An overload that lasts so long is no crowd that comes and goes."""
FINE = 100
"""Where the baselines are too coarse, weights are advised for a highest baseline of this."""
HALVINGS = 20


@dataclass(frozen=True)
class Pool:
    """The pool whose calm servers are compared."""

    baselines: Mapping[str, int]
    """Weights of the site's configuration, by server that takes requests; above 0."""
    step: int = 1
    """Weights are multiples of this."""
    by_concurrency: bool = False
    """Weights share the requests in flight."""

    def most_step(self, server: str) -> int:
        """The most by which a step changes the server's weight."""
        return max(round(STEP * self.baselines[server] / self.step), 1) * self.step


def pool_of(baselines: Mapping[str, int], snapshot: Snapshot) -> Pool:
    """The pool with these baselines, as the balancer shows it."""
    return Pool(baselines, step_of(list(baselines.values()), snapshot), snapshot.by_concurrency)


@dataclass(frozen=True)
class Seen:
    """What was seen of a server in calm; older time counts less."""

    seconds: float = 0.0
    precision: float = 0.0
    """Seconds over the squared standard error of the capacity, which is a share of it."""
    log_rps: float = 0.0
    """The same times the logarithm of the capacity in requests/s."""
    requests: float = 0.0
    rate_s: float = 0.0
    """The time since the weights in calm changed."""
    recent: float = 0.0
    """Requests in that time."""

    def after(self, passed_s: float, rps: float, capacity_rps: float, error: float) -> Seen:
        """Adds a look. `error`: standard error of the capacity, as a share of it."""
        kept = math.exp(-passed_s / MEMORY_S)
        weight = passed_s / max(error, LEAST_ERROR) ** 2
        return Seen(
            kept * self.seconds + passed_s,
            kept * self.precision + weight,
            kept * self.log_rps + weight * math.log(capacity_rps),
            kept * self.requests + passed_s * rps,
            kept * self.rate_s + passed_s,
            kept * self.recent + passed_s * rps,
        )

    @property
    def is_known(self) -> bool:
        """Whether its capacity is known."""
        return self.seconds >= SEEN_S and self.requests >= FEW_REQUESTS and self.precision > 0.0

    @property
    def has_rate(self) -> bool:
        """Whether its rate with the present weights is known."""
        return self.rate_s >= SEEN_S and self.recent >= FEW_REQUESTS

    @property
    def capacity_rps(self) -> float:
        return math.exp(self.log_rps / self.precision)

    @property
    def error(self) -> float:
        """Standard error of the capacity's logarithm."""
        return max(LEAST_ERROR, SHARE_OF_ERROR * math.sqrt(self.seconds / self.precision))

    @property
    def rps(self) -> float:
        return self.recent / self.rate_s


@dataclass(frozen=True)
class Advice:
    """How evenly the servers are filled in calm, and which weights would even them."""

    outcome: EvennessOutcome
    carries: Mapping[str, float] = field(default_factory=dict)
    """Capacity for each unit of baseline weight, over the highest in the pool, by server; where it is known."""
    weights: Mapping[str, int] = field(default_factory=dict)
    """Weights that fill all alike, by server; with `coarse` for a highest baseline of `FINE`."""
    mean: float = 0.0
    """Utilisation that all servers would have if they were filled alike."""
    fullest: float = 0.0
    """Utilisation of the fullest server."""
    evened: float = 0.0
    """Utilisation of the fullest server with `weights`."""

    @property
    def saved(self) -> float:
        """Servers of mean size that could be saved if no server were fuller than the fullest is."""
        return len(self.carries) * (1.0 - self.evened / self.fullest) if 0.0 < self.evened < self.fullest else 0.0

    @property
    def strongest(self) -> str:
        """The server that carries most for its weight."""
        return max(self.carries, key=lambda name: (self.carries[name], name), default="")


@dataclass(frozen=True)
class Full:
    """A server's weight in calm, and why it is not its baseline."""

    weight: int
    baseline: int
    carries: float | None
    """As in `Advice`; None: it is not known any more."""
    strongest: str
    """The server that this is compared with."""


@dataclass(frozen=True)
class CalmWeights:
    """The weights in calm, and what was seen of the servers."""

    lowered: Mapping[str, int] = field(default_factory=dict)
    """Weights below their baselines, by server; the other servers have their baselines."""
    seen: Mapping[str, Seen] = field(default_factory=dict)
    """By server."""
    seen_s: float | None = None
    """Time of the last look."""
    stepped_s: float | None = None
    """Time of the last step, or of the first look."""
    advice: Advice | None = None
    """None before the first look."""
    overfilled_s: float | None = None
    """Since when a server that gets more than by the baselines is overloaded, and another is not; None: none is."""
    phase: str = ""
    """The engine's phase in which these weights were chosen."""

    def of(self, server: str, baseline: int) -> int:
        """The server's weight in calm."""
        return min(self.lowered.get(server, baseline), baseline)

    def full(self, server: str, baseline: int) -> Full:
        """The server's weight in calm, with the reason."""
        advice = self.advice or Advice("not_known")
        return Full(self.of(server, baseline), baseline, advice.carries.get(server), advice.strongest)

    def undone(self, now_s: float | None = None) -> CalmWeights:
        """The baselines again; the next step comes no sooner than after a whole pause."""
        return replace(self, lowered={}, stepped_s=now_s, seen=_since_now(self.seen)) if self.lowered else self

    def in_phase(self, phase: str) -> CalmWeights:
        """The same in this phase: the weights of another phase were put back, or never set."""
        return self if phase == self.phase else replace(self.undone(), phase=phase)

    def beside(self, now_s: float, overloaded: Collection[str], pool: Pool) -> CalmWeights:
        """The weights beside these overloaded servers: the baselines where one that gets more than by these has been so
        for `OVERLOAD_S`, and another server is not. What was believed of their capacities was wrong then."""
        if (
            not self.lowered
            or not overloaded
            or len(overloaded) == len(pool.baselines)
            or not self._gives_more(overloaded, pool)
        ):
            return replace(self, overfilled_s=None) if self.overfilled_s is not None else self
        since_s = now_s if self.overfilled_s is None else self.overfilled_s
        if now_s - since_s < OVERLOAD_S:
            return replace(self, overfilled_s=since_s)
        return replace(self.undone(now_s), seen={}, overfilled_s=None)

    def _gives_more(self, servers: Collection[str], pool: Pool) -> bool:
        """Whether one of these servers gets a larger share than by the baselines."""
        whole = sum(self.of(name, weight) for name, weight in pool.baselines.items())
        before = sum(pool.baselines.values())
        return any(self.of(name, pool.baselines[name]) * before > pool.baselines[name] * whole for name in servers)

    def after(self, now_s: float, loads: Sequence[Load], measured: Collection[str], pool: Pool) -> CalmWeights:
        """Adds a look at a calm pool. `measured`: servers whose capacity a monitor measures."""
        passed_s = math.inf if self.seen_s is None else now_s - self.seen_s
        if passed_s < LOOK_S:
            return self
        passed_s = 0.0 if math.isinf(passed_s) else min(passed_s, LONGEST_S)
        seen = {load.server: self.seen.get(load.server, Seen()) for load in loads}
        seen |= {name: _looked_at(seen[name], load, passed_s) for load in loads if (name := load.server) in measured}
        stepped_s = now_s if self.stepped_s is None else self.stepped_s
        return replace(self, seen=seen, seen_s=now_s, stepped_s=stepped_s, advice=advice(seen, pool, self.advice))

    def stepped(self, now_s: float, pool: Pool, apart_s: float) -> CalmWeights:
        """The weights a step nearer to the advised ones, where the last step was `apart_s` ago."""
        is_due = self.stepped_s is not None and now_s - self.stepped_s >= apart_s
        if not is_due or self.advice is None or self.advice.outcome != "uneven":
            return self
        weights = {}
        for name, advised in self.advice.weights.items():
            now, most = self.of(name, pool.baselines[name]), pool.most_step(name)
            weights[name] = now + min(max(advised - now, -most), most)
        lowered = {**self.lowered, **weights}
        lowered = {name: weight for name, weight in lowered.items() if weight < pool.baselines.get(name, weight + 1)}
        return replace(self, lowered=lowered, stepped_s=now_s, seen=_since_now(self.seen))


def _since_now(seen: Mapping[str, Seen]) -> dict[str, Seen]:
    """The rates are those of weights that are no more; the capacities stay."""
    return {name: replace(server, rate_s=0.0, recent=0.0) for name, server in seen.items()}


def _looked_at(seen: Seen, load: Load, passed_s: float) -> Seen:
    if not load.capacity_rps or not load.capacity_stderr_rps or load.rps is None:
        return seen
    return seen.after(passed_s, load.rps, load.capacity_rps, load.capacity_stderr_rps / load.capacity_rps)


def advice(seen: Mapping[str, Seen], pool: Pool, before: Advice | None) -> Advice:
    """What the servers carry, and the weights that fill them alike. The advice of `before` goes on until the rates with
    new weights are known."""
    baselines, step = pool.baselines, pool.step
    known = {name: server for name, server in seen.items() if server.is_known}
    carries = {name: server.capacity_rps / baselines[name] for name, server in known.items()}
    most = max(carries.values(), default=1.0)
    carries = {name: rps / most for name, rps in carries.items()}
    if len(known) < max(len(seen), 2):
        return Advice("not_known", carries)
    if not all(server.has_rate for server in known.values()):
        return before or Advice("not_known", carries)
    total_rps = math.fsum(server.rps for server in known.values())
    mean = total_rps / math.fsum(server.capacity_rps for server in known.values())
    fullest = max(server.rps / server.capacity_rps for server in known.values())

    def filled(weights: Mapping[str, float]) -> float:
        whole = math.fsum(weights.values())
        return max(total_rps * weights[name] / whole / server.capacity_rps for name, server in known.items())

    sure = _sure(carries, known)
    if all(part == 1.0 for part in sure.values()):
        return Advice("even", carries, {}, mean, fullest, fullest)
    parts = _parts(sure, baselines)
    exact = {name: part * baselines[name] for name, part in parts.items()}
    rounded = {name: max(round(weight / step), 1) * step for name, weight in exact.items()}
    enough = (1.0 - LEAST_GAIN) * fullest
    if filled(exact) > enough:
        return Advice("even", carries, {}, mean, fullest, fullest)
    if pool.by_concurrency:
        return Advice("by_itself", carries, {}, mean, fullest, fullest)
    if filled(rounded) > enough:
        scale = FINE / max(baselines[name] for name in exact)
        weights = {name: max(round(scale * weight), 1) for name, weight in exact.items()}
        return Advice("coarse", carries, weights, mean, fullest, filled(weights))
    return Advice("uneven", carries, rounded, mean, fullest, filled(rounded))


def _sure(carries: Mapping[str, float], known: Mapping[str, Seen]) -> dict[str, float]:
    """What each server carries over the mean, 1 where the difference is within its error."""
    logs = {name: math.log(part) for name, part in carries.items()}
    mean, count = math.fsum(logs.values()) / len(logs), len(logs)
    every = math.fsum(server.error**2 for server in known.values())
    sure = {}
    for name, log in logs.items():
        own = known[name].error ** 2
        error = math.sqrt(own * (1.0 - 1.0 / count) ** 2 + (every - own) / count**2)
        sure[name] = math.exp(log - mean) if abs(log - mean) >= SURE * error else 1.0
    return sure


def _parts(carries: Mapping[str, float], baselines: Mapping[str, int]) -> dict[str, float]:
    """The part of its baseline that each server gets, at most 1, so that its share of the requests is in proportion to
    what it carries, within `LOWEST` and `HIGHEST` of its share by the baselines."""
    whole = math.fsum(baselines[name] for name in carries)

    def shares(factor: float) -> dict[str, float]:
        return {name: min(max(factor * part, LOWEST), HIGHEST) for name, part in carries.items()}

    low, high = LOWEST / max(carries.values()), HIGHEST / min(carries.values())
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        sum_here = math.fsum(baselines[name] * part for name, part in shares(middle).items())
        low, high = (low, middle) if sum_here > whole else (middle, high)
    given = shares(high)
    most = max(given.values())
    return {name: part / most for name, part in given.items()}
