"""A simulation of every request, event by event. For pools of some tens of servers; exact processor sharing.

The detector and lbengine run on Samples made from what the servers did; see `slackwater_lab.sim.driver`.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable

import numpy as np

from slackwater.core.messages import Sample
from slackwater.detector.classify.tree import Model
from slackwater.detector.features.columns import Floats
from slackwater_lab.sim import signals
from slackwater_lab.sim.balancers.table import BALANCERS
from slackwater_lab.sim.driver import Driver
from slackwater_lab.sim.episodes import Timeline
from slackwater_lab.sim.outcome import Outcome, Score
from slackwater_lab.sim.server import Processors, Server, processors_of
from slackwater_lab.sim.setup import Setup
from slackwater_lab.sim.tally import felt_of

DECIDE_S = 0.1
"""Time between two turns of the detector and lbengine."""
REPORT_EVERY_S = 5.0
CHUNK = 4096
ARRIVAL, SERVER, LOOK, DECIDE, BEGIN = range(5)


class Dice:
    """Draws of one kind, many at a time."""

    def __init__(self, draw: Callable[[int], np.ndarray[tuple[int], np.dtype[np.float64]]]) -> None:
        self._draw = draw
        self._left: list[float] = []

    def __call__(self) -> float:
        if not self._left:
            self._left = self._draw(CHUNK).tolist()
        return self._left.pop()


def drawn(dice: np.random.Generator, cv2: float, count: int) -> Floats:
    """(count,) values of mean 1 with this variance: gamma, so exponential for 1, and all alike for 0."""
    return dice.gamma(1.0 / cv2, cv2, count) if cv2 else np.ones(count)


class Simulation:
    """One run; `run` gives its outcome."""

    def __init__(self, setup: Setup, policy: str, model: Model | None) -> None:
        self.setup, self.policy = setup, policy
        plan = setup.episodes()
        self.score = Score(setup, plan)
        self.driver = Driver(setup, policy, self.score, model)
        self.timeline = Timeline(setup.servers, plan)
        self.servers = [Server(setup.children, quota) for quota in setup.quotas().tolist()]
        self._processors = self._placed() if setup.machine_cores else []
        """Processors of each server; empty where each has its own."""
        capacities = setup.capacities()
        self._cores = (setup.quotas() if setup.quota_cores else np.ones(setup.servers)).tolist()
        self._work = (self._cores / capacities).tolist()
        rates = np.random.default_rng([setup.seed, 5])
        costs = np.random.default_rng([setup.seed, 6])
        rate = setup.load * float(capacities.sum())
        self._gap = Dice(lambda count: drawn(rates, setup.arrivals_cv2, count) / rate)
        self._cost = Dice(lambda count: drawn(costs, setup.cost_cv2, count))
        self._which = Dice(rates.random)
        self._probe = np.random.default_rng([setup.seed, 7])
        self._lost = Dice(np.random.default_rng([setup.seed, 8]).random)
        self.balancers = [
            BALANCERS[setup.balance](setup.servers, weights, np.random.default_rng([setup.seed, 9, number]))
            for number, weights in enumerate(self.driver.weights)
        ]
        self._slices = Dice(np.random.default_rng([setup.seed, 10]).random)
        self._sleeping: dict[int, float] = {}
        """Work of the requests that wait for a core."""
        self._held: list[dict[int, float]] = [{} for _ in self.servers]
        """Requests at each server that are not answered, with the times when they came, the oldest first."""
        self._stamp = [0] * setup.servers
        self._events: list[tuple[float, int, int, int]] = []
        self._began: list[float] = []
        self._where: list[tuple[int, int]] = []
        """Balancer and server of each request."""
        self._ended: dict[int, float] = {}
        self._answers: list[list[float]] = [[] for _ in self.servers]
        self._reported: list[tuple[float, float, float, int]] = [(0.0, 0.0, 0.0, 0)] * setup.servers
        """For each server: time of the last Sample, and its CPU time, runnable time and number of Samples then."""
        self._under_way: list[tuple[float, int, Sample]] = []

    def _placed(self) -> list[Processors]:
        """The processors of each server."""
        groups: dict[int, Processors] = {}
        for number in range(self.setup.servers):
            beside = self.setup.neighbours_of(number)
            if beside[0] not in groups:
                group = [self.servers[server] for server in beside]
                groups[beside[0]] = Processors(processors_of(self.setup.quota_cores), group)
                groups[beside[0]].share()
        return [groups[self.setup.neighbours_of(number)[0]] for number in range(self.setup.servers)]

    def run(self, progress: Callable[[str], None] = lambda _: None) -> Outcome:
        """Runs from the start to the end of the measured time."""
        setup, events = self.setup, self._events
        for number in range(setup.servers):
            phase_s = setup.period_s * (1.0 + number / setup.servers if self.driver.has_monitors else 1.0)
            heapq.heappush(events, (phase_s, LOOK, number, 0))
        heapq.heappush(events, (DECIDE_S, DECIDE, 0, 0))
        for _ in range(setup.clients or 1):
            heapq.heappush(events, (self._gap(), ARRIVAL, 0, 0))
        reported_s = time.monotonic()
        while events and events[0][0] < setup.end_s:
            now_s, kind, number, stamp = heapq.heappop(events)
            if self.timeline.next_s <= now_s:
                self._neighbours(now_s)
            if kind == SERVER:
                if stamp == self._stamp[number]:
                    self._serve(number, now_s)
            elif kind == BEGIN:
                self._bring(number, now_s)
                self._begin(number, stamp, self._sleeping.pop(stamp))
            elif kind == ARRIVAL:
                self._arrive(now_s)
                if not setup.clients:
                    heapq.heappush(events, (now_s + self._gap(), ARRIVAL, 0, 0))
            elif kind == LOOK:
                self._look(number, now_s)
                heapq.heappush(events, (now_s + setup.period_s, LOOK, number, 0))
            else:
                self._decide(now_s)
                heapq.heappush(events, (now_s + DECIDE_S, DECIDE, 0, 0))
                if time.monotonic() - reported_s >= REPORT_EVERY_S:
                    reported_s = time.monotonic()
                    progress(f"{self.policy}, {setup.servers} servers: {now_s:.0f} of {setup.end_s:.0f} s")
        return self.score.outcome(setup, self.policy, felt_of(*self.answered()))

    # -- events -----------------------------------------------------------------------------------------------------

    def _neighbours(self, now_s: float) -> None:
        """Neighbours that came or went since the last event, each at its time."""
        while (at_s := self.timeline.next_s) <= now_s:
            for server in self.timeline.advance(at_s):
                self._bring(server, at_s)
                self.servers[server].taken = float(self.timeline.now[server])
                self._schedule(server)
            self.score.advance(at_s)
            self.driver.neighbours_changed(at_s, self.timeline.now)
            self._apply()

    def _arrive(self, now_s: float) -> None:
        balancer = int(self._which() * self.setup.balancers)
        request = len(self._began)
        server = self.balancers[balancer].pick(request, now_s)
        self._bring(server, now_s)
        self._began.append(now_s)
        self._where.append((balancer, server))
        self._held[server][request] = now_s
        work = self._cost() * self._work[server]
        if self._processors and self._slices() < self.setup.behind_share * self._processors[server].taken_share:
            self._sleeping[request] = work
            begins_s = now_s + self._slices() * self.setup.slice_ms / 1e3
            heapq.heappush(self._events, (begins_s, BEGIN, server, request))
        else:
            self._begin(server, request, work)

    def _begin(self, server: int, request: int, work: float) -> None:
        self.servers[server].add(request, work)
        self._schedule(server)

    def _serve(self, number: int, now_s: float) -> None:
        self._bring(number, now_s)
        self._schedule(number)

    def _bring(self, number: int, now_s: float) -> None:
        """Brings a server, and those on the same processors, up to now and takes their answers."""
        for other in self.setup.neighbours_of(number):
            self._answer(other, now_s)

    def _answer(self, number: int, now_s: float) -> None:
        server = self.servers[number]
        server.advance(now_s)
        for request in server.finished():
            self._ended[request] = now_s
            self._answers[number].append(now_s - self._began[request])
            balancer, _ = self._where[request]
            self.balancers[balancer].answered(request, now_s)
            del self._held[number][request]
            if self.setup.clients:
                heapq.heappush(self._events, (now_s, ARRIVAL, 0, 0))

    def _schedule(self, number: int) -> None:
        """Something changed at this server, which is at the present: what comes next there, or anywhere beside it."""
        if self._processors:
            self._processors[number].share()
        for other in self.setup.neighbours_of(number):
            self._stamp[other] += 1
            at_s = self.servers[other].next_s()
            if at_s < self.setup.end_s:
                heapq.heappush(self._events, (at_s, SERVER, other, self._stamp[other]))

    def _look(self, number: int, now_s: float) -> None:
        """The Sample of the period that ends now: the monitor's, or the one of the balancer's view."""
        self._serve(number, now_s)
        server, setup = self.servers[number], self.setup
        last_s, cpu_s, runnable_s, seq = self._reported[number]
        answers = self._answers[number]
        self._answers[number] = []
        self._reported[number] = (now_s, server.cpu_s, server.runnable_s, seq + 1)
        if self.driver.idle or self._lost() < setup.loss:
            return
        if not self.driver.has_monitors:
            seen = signals.of_balancer(
                setup.names[number],
                seq,
                now_s,
                now_s - last_s,
                answered_s=answers,
                in_flight=len(self._held[number]),
                oldest_unanswered_s=now_s - next(iter(self._held[number].values()), now_s),
            )
            heapq.heappush(self._under_way, (now_s + setup.delay_s, number, seen))
            return
        used_s = server.cpu_s - cpu_s
        ratio, late_ms = signals.probe(self._probe, np.array([server.taken > 0.0]))
        sample = signals.sample(
            setup.names[number],
            seq,
            now_s,
            now_s - last_s,
            cores=self._cores[number],
            cpu_s=used_s,
            waited_s=max(0.0, server.runnable_s - runnable_s - used_s),
            requests=len(answers),
            rt_mean_ms=1e3 * float(np.mean(answers)) if answers else None,
            rt_p95_ms=1e3 * float(np.percentile(answers, 95)) if answers else None,
            in_flight=len(self._held[number]),
            probe_ratio=float(ratio[0]),
            probe_late_ms=float(late_ms[0]),
        )
        heapq.heappush(self._under_way, (now_s + setup.delay_s, number, sample))

    def _decide(self, now_s: float) -> None:
        arrived = []
        while self._under_way and self._under_way[0][0] <= now_s:
            arrived.append(heapq.heappop(self._under_way)[2])
        requests = [balancer.requests for balancer in self.balancers]
        self.driver.cycle(now_s, arrived, requests, [len(held) for held in self._held])
        self._apply()

    def _apply(self) -> None:
        for balancer, weights in zip(self.balancers, self.driver.take_changes(), strict=True):
            if weights is not None:
                balancer.set_weights(weights)

    def answered(self) -> tuple[Floats, Floats, int]:
        """The requests that began in the measured time: when each was answered and how long it took, in seconds, and
        how many were not, by the end."""
        asked = [number for number, began_s in enumerate(self._began) if began_s >= self.setup.warm_up_s]
        done = [number for number in asked if number in self._ended]
        ended_s = np.array([self._ended[number] for number in done])
        took_s = ended_s - np.array([self._began[number] for number in done])
        return ended_s, took_s, len(asked) - len(done)

    def waited(self) -> tuple[Floats, Floats, int]:
        """As `answered`, with the requests that had no answer by the end, as if they ended then. So a server that
        answers nothing any more counts as slow."""
        began_s = np.array(self._began)
        asked = np.flatnonzero(began_s >= self.setup.warm_up_s)
        ended_s = np.array([self._ended.get(number, self.setup.end_s) for number in asked.tolist()])
        return ended_s, ended_s - began_s[asked], 0


def simulate(
    setup: Setup, policy: str, model: Model | None, progress: Callable[[str], None] = lambda _: None
) -> Outcome:
    """Runs one simulation."""
    return Simulation(setup, policy, model).run(progress)
