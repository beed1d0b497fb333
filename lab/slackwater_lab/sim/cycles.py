"""The cycle-level model: from one decision to the next every server is in its stationary state for its load; what a
server cannot serve gathers as backlog. Vectorised over servers: made for 10 to 10,000 of them.

What it leaves out: the seconds that a queue takes to fill or empty, and that response times under processor sharing
scatter a little more than the exponential that is taken for each server. `slackwater_lab.sim.requests` has both.
"""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaincinv, ndtr

from slackwater.core.messages import Sample
from slackwater.detector.classify.tree import Model
from slackwater.detector.features.columns import Floats, Ints
from slackwater_lab.sim import signals
from slackwater_lab.sim.balance import SPLITS, alone
from slackwater_lab.sim.driver import Driver
from slackwater_lab.sim.episodes import Timeline
from slackwater_lab.sim.outcome import Outcome, Score
from slackwater_lab.sim.setup import Setup, SimulationError
from slackwater_lab.sim.tally import Mixture

TIMEOUT_S = 30.0
"""Requests that would wait longer in a full server fail."""
TOGETHER = 0.62
"""Rank correlation of the requests that come in a cycle and the queue's mean in it: 0.65, 0.62 and 0.58 at 30%, 50% and
70% load, found by 4,000 s of an M/M/1 queue with 250 requests/s in cycles of 0.2 s."""
REPORT_EVERY_S = 5.0


@dataclass
class State:
    """What a cycle made of the servers: (servers,) each."""

    asked: Ints
    """Requests that came, by balancer: (balancers, servers)."""
    served: Floats
    """Requests that ended."""
    mean_s: Floats
    """Their mean response time, as expected: the exponential about it holds the queue's ups and downs already."""
    seen_mean_s: Floats
    """The same as a monitor would see it in this cycle."""
    held: Floats
    """Requests in each server on average, as a monitor would see it."""
    in_flight: Ints
    """The same as one look counts it: a whole number, right on average."""
    cpu_s: Floats
    failed: float


class Servers:
    """The pool's servers from cycle to cycle."""

    def __init__(self, setup: Setup) -> None:
        if setup.balance not in SPLITS:
            raise SimulationError(
                f"{setup.balance}: expected {' or '.join(SPLITS)} in the cycle-level model; the request-level model has"
                " the others"
            )
        if setup.balancers > 1 and setup.balance != "roundrobin":
            raise SimulationError(
                f"{setup.balancers} balancers with {setup.balance}: expected roundrobin in the cycle-level model;"
                " the request-level model has the others"
            )
        self.setup = setup
        self.capacity = setup.capacities()
        self.total_rps = setup.load * float(self.capacity.sum())
        self.backlog: Floats = np.zeros(setup.servers)
        self._dice = np.random.default_rng([setup.seed, 3])

    def step(self, weights: Ints, taken: Floats, dt_s: float) -> State:
        """One cycle of `dt_s` with these weights, (balancers, servers)."""
        left = self.capacity * (1.0 - taken)
        split = SPLITS[self.setup.balance]
        per_rps = self.total_rps / self.setup.balancers
        parts = [split(one, left, per_rps) for one in weights]
        rates = np.sum([rate for rate, _ in parts], axis=0)
        # The rounds of several balancers fall together at random.
        held = alone(rates, left) if len(parts) > 1 else parts[0][1]
        asked = self._dice.poisson(np.stack([rate for rate, _ in parts]) * dt_s)
        came = asked.sum(axis=0).astype(np.float64)
        # Where more comes than can be served the rest waits; what waits longer than the timeout fails.
        full = left * dt_s
        waiting = np.maximum(self.backlog + np.where(rates >= left, came, rates * dt_s) - full, 0.0)
        served = np.where(waiting > 0.0, np.minimum(self.backlog + came, full), came)
        failed = np.maximum(waiting - TIMEOUT_S * left, 0.0)
        middle = (self.backlog + waiting) / 2.0
        self.backlog = waiting - failed
        seen = held * self._scatter(rates, left, dt_s, came) + middle
        through = np.maximum(np.minimum(rates, left), 1e-9)
        alone_s = 1.0 / np.maximum(left, 1e-9)
        mean_s, seen_s = (np.where(rates > 0.0, one / through, alone_s) for one in (held + middle, seen))
        in_flight = (seen + self._dice.random(len(seen))).astype(np.int64)
        return State(asked, served, mean_s, seen_s, seen, in_flight, served / self.capacity, float(failed.sum()))

    def _scatter(self, rates: Floats, left: Floats, dt_s: float, came: Floats) -> Floats:
        """How far a cycle's mean queue is from the expected one, as a factor.

        The mean over t of an M/M/1 queue's length has the relative variance 2(1 + u)/(u(1 - u)² μt) (W. Whitt,
        "Planning queueing simulations", Management Science 35(11), 1989). It is long when more came than expected:
        both follow one normal variable, `TOGETHER` of it (a Gaussian copula).
        """
        filled = np.clip(rates / np.maximum(left, 1e-9), 0.02, 0.95)
        variance = 2.0 * (1.0 + filled) / (filled * (1.0 - filled) ** 2 * np.maximum(left, 1e-9) * dt_s)
        shape = 1.0 / np.minimum(variance, 1.0)
        expected = np.maximum(rates * dt_s, 1e-9)
        more = np.clip((came - expected) / np.sqrt(expected), -4.0, 4.0)
        chance = TOGETHER * more + math.sqrt(1.0 - TOGETHER**2) * self._dice.standard_normal(len(more))
        return np.asarray(gammaincinv(shape, ndtr(chance)) / shape)


class Monitors:
    """Makes the Samples of a cycle, loses some, and holds the others back for the delay."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._names = setup.names
        self._dice = np.random.default_rng([setup.seed, 4])
        self._seq = 0
        self._under_way: list[tuple[float, list[Sample]]] = []

    def look(self, end_s: float, state: State, taken: Floats) -> None:
        """Samples of the cycle that ends now."""
        period_s, setup = self.setup.period_s, self.setup
        runnable_s = np.minimum(state.held, setup.children) * period_s
        waited_s = np.maximum(runnable_s - state.cpu_s, 0.0)
        ratios, late_ms = signals.probe(self._dice, taken > 0.0)
        heard = self._dice.random(setup.servers) >= setup.loss
        # Of some requests a p95 comes out anywhere around the true one.
        off = np.exp(self._dice.normal(0.0, 1.0, setup.servers) / np.sqrt(np.maximum(state.served, 1.0)))
        columns = (
            self._names,
            heard.tolist(),
            state.cpu_s.tolist(),
            waited_s.tolist(),
            state.served.tolist(),
            (1e3 * state.seen_mean_s).tolist(),
            (3e3 * state.seen_mean_s * off).tolist(),
            state.in_flight.tolist(),
            ratios.tolist(),
            late_ms.tolist(),
        )
        samples = [
            signals.sample(
                name,
                self._seq,
                end_s,
                period_s,
                cores=1.0,
                cpu_s=cpu_s,
                waited_s=waited,
                requests=round(served),
                rt_mean_ms=mean_ms if served >= 0.5 else None,
                rt_p95_ms=p95_ms if served >= 0.5 else None,
                in_flight=in_flight,
                probe_ratio=ratio,
                probe_late_ms=late,
            )
            for name, is_heard, cpu_s, waited, served, mean_ms, p95_ms, in_flight, ratio, late in zip(
                *columns, strict=True
            )
            if is_heard
        ]
        self._seq += 1
        self._under_way.append((end_s + setup.delay_s, samples))

    def arrived(self, now_s: float) -> list[Sample]:
        """What has come by now."""
        found: list[Sample] = []
        while self._under_way and self._under_way[0][0] <= now_s:
            found += self._under_way.pop(0)[1]
        return found


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Without Python's search for cyclic garbage: it would walk all Samples again and again, and the product reads them
    into structs that it does not watch (`detector/features/sample_decoder.py`)."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def simulate(
    setup: Setup, policy: str, model: Model | None, progress: Callable[[str], None] = lambda _: None
) -> Outcome:
    """Runs the cycle-level model; a decision is made `delay_s` after the end of each period.

    Raises SimulationError for several balancers that do not go by weights alone.
    """
    with _uncollected():
        return _simulate(setup, policy, model, progress)


def _simulate(setup: Setup, policy: str, model: Model | None, progress: Callable[[str], None]) -> Outcome:
    plan = setup.episodes()
    servers, monitors, timeline = Servers(setup), Monitors(setup), Timeline(setup.servers, plan)
    score, mixture = Score(setup, plan), Mixture()
    driver = Driver(setup, policy, score, model)
    asked = np.zeros((setup.balancers, setup.servers), dtype=np.int64)
    cycles = round(setup.end_s / setup.period_s)
    model_ms: list[float] = []
    cycle_s: list[float] = []
    began_s = time.thread_time()
    reported_s = time.monotonic()
    for number in range(cycles):
        began = time.thread_time()
        now_s, end_s = number * setup.period_s, (number + 1) * setup.period_s
        changed = timeline.advance(now_s)
        score.advance(now_s)
        if changed:
            driver.neighbours_changed(now_s, timeline.now)
        state = servers.step(driver.weights, timeline.now, setup.period_s)
        asked += state.asked
        if now_s >= setup.warm_up_s:
            mixture.add(state.served, state.mean_s, state.failed)
        monitors.look(end_s, state, timeline.now)
        decided_s = end_s + setup.delay_s
        deciding_s = driver.cycle(decided_s, monitors.arrived(decided_s), asked.tolist(), state.in_flight.tolist())
        took_s = time.thread_time() - began
        model_ms.append(1e3 * (took_s - deciding_s))
        if now_s >= setup.warm_up_s:
            cycle_s.append(took_s)
        if time.monotonic() - reported_s >= REPORT_EVERY_S:
            reported_s = time.monotonic()
            progress(f"{policy}, {setup.servers} servers: {end_s:.0f} of {setup.end_s:.0f} s")
    costs = {
        "model": model_ms,
        "detector": [1e3 * one for one in driver.costs.detector_s],
        "lbengine": [1e3 * one for one in driver.costs.lbengine_s],
    }
    return score.outcome(setup, policy, "cycles", mixture.felt(), costs, time.thread_time() - began_s, cycle_s)
