"""A pool simulated tick by tick: noise goes on and off, the detector's state machines judge, lbengine decides."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slackwater.core.config import LbengineSettings
from slackwater.core.messages import State, Verdict
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.lbengine.baseline import Baseline
from slackwater.lbengine.decision.position import Position
from slackwater.lbengine.decision.state import PoolState, PoolView
from slackwater.lbengine.decision.step import step
from tests.support.one_machine import OneMachine, Shows
from tests.support.pool_shown import server, snapshot

TICK_S = 0.2
CALM_RPS, NOISY_RPS = 300.0, 60.0
MOMENTS = 4
"""Random moments a tick."""
WAITS_BESIDE, WAITS_IN_CALM = 0.7, 0.1
"""Share of the random moments at which the machine does not run the monitor."""
FEW_RPS = 1.0
"""A server with fewer requests has none to speak of."""
FOLLOWS = 0.4
"""How fast the severity of an episode follows its ticks, as in detector/estimator.py."""
Noise = Callable[[int, float], bool]
"""Is there noise beside this server at this time?"""
Rate = Callable[[float], float]
"""Requests per second that the pool gets at this time."""


@dataclass
class Tick:
    """What stood at the end of a tick."""

    at_s: float
    noisy: list[bool]
    states: list[str]
    weights: list[int]
    utilisation: list[float]


def simulate(
    noise: Noise,
    *,
    servers: int,
    seconds: float,
    total_rps: float | Rate,
    balance: str = "roundrobin",
    seed: int = 1,
    down: Noise = lambda server, at_s: False,  # noqa: ARG005
    waits_beside: float = WAITS_BESIDE,
    waits_in_calm: float = WAITS_IN_CALM,
) -> list[Tick]:
    """Runs it with default settings. A slow server's capacity is known within 10%, a calm one's within 2%.

    As the detector's does, a severity follows the ticks with requests, and without them can only rise. `down`: the
    server takes no requests then. Without requests a neighbour shows in random moments alone: in `waits_beside` of
    them, and as often as in calm if it does not show at all.
    """
    chance = random.Random(seed)
    names = [f"host{n + 1}" for n in range(servers)]
    machines = {name: OneMachine(2.0, 0.0, 0.0) for name in names}
    state = PoolState(
        "acting",
        baselines={name: Baseline(100, 100) for name in names},
        positions={name: Position(100) for name in names},
    )
    pool, settings = HAProxyPool(name="web", backend="web", socket="/s", mode="act"), LbengineSettings()
    severity = dict.fromkeys(names, 0.0)
    trace = []
    for number in range(int(seconds / TICK_S)):
        now_s = number * TICK_S
        noisy = [noise(n, now_s) for n in range(servers)]
        offered_rps = total_rps(now_s) if callable(total_rps) else total_rps
        up = [not down(n, now_s) for n in range(servers)]
        rates = share(balance, [state.positions[name].weight * up[n] for n, name in enumerate(names)], offered_rps)
        verdicts = {}
        for n, name in enumerate(names):
            idle = rates[n] < FEW_RPS
            answered = chance.random() < 1.0 - math.exp(-rates[n] * TICK_S)
            seen: State = "interference" if noisy[n] and answered and not idle else "calm"
            waits = waits_beside if noisy[n] else waits_in_calm
            waited = sum(chance.random() < waits for _ in range(MOMENTS))
            shown = Shows(MOMENTS, waited, answered=answered, slow=answered and noisy[n])
            status = machines[name].step(now_s, now_s, seen, low_traffic=idle, shows=shown)
            slow = status.state == "interference"
            severity[name] = follow(severity[name], noisy[n] and answered, not answered) if slow else 0.0
            wavers = chance.uniform(0.9, 1.1) if slow else chance.uniform(0.98, 1.02)
            verdicts[name] = Verdict(
                v=1,
                node=name,
                pool="web",
                time_unix_s=now_s,
                state=status.state,
                since_unix_s=0.0,
                severity=severity[name],
                path=["simulated"],
                model="simulated",
                capacity_rps=CALM_RPS * (1.0 - severity[name]) * wavers,
                rps=rates[n],
                shown=not status.waits,
                probability=status.probability,
                calm_shows_within_s=status.calm_shows_within_s if math.isfinite(status.calm_shows_within_s) else None,
            )
        servers_shown = [server(name, state.positions[name].weight, up[n]) for n, name in enumerate(names)]
        # Rates as the nodes report them: those of this tick, where counters would give the last second's.
        pool_shown = dataclasses.replace(snapshot(servers_shown, balance), counts="connections")
        state, _ = step(state, PoolView(now_s=now_s, snapshot=pool_shown, verdicts=verdicts), pool, settings)
        weights = [state.positions[name].weight for name in names]
        rates = share(balance, [weight * up[n] for n, weight in enumerate(weights)], offered_rps)
        full = [NOISY_RPS if loud else CALM_RPS for loud in noisy]
        trace.append(
            Tick(
                now_s,
                noisy,
                [machines[name].state for name in names],
                weights,
                [rate / mu for rate, mu in zip(rates, full, strict=True)],
            )
        )
    return trace


def follow(severity: float, shows: bool, idle: bool) -> float:
    """The next severity of a server in an episode."""
    now = 1.0 - NOISY_RPS / CALM_RPS if shows else 0.0
    if severity == 0.0:
        return now
    return severity if idle and now <= severity else severity + FOLLOWS * (now - severity)


def share(balance: str, weights: Sequence[int], total_rps: float) -> list[float]:
    """Rates by weight; under least connections servers with a weight share evenly, as they do when idle."""
    parts = [float(weight > 0) if balance == "leastconn" else float(weight) for weight in weights]
    return [total_rps * part / max(sum(parts), 1.0) for part in parts]


def falls(trace: Sequence[Tick], server: int, least: int = 10) -> int:
    """How often the server's weight went down by `least` or more from where it had last climbed to."""
    count, top, falling = 0, trace[0].weights[server], False
    bottom = top
    for tick in trace:
        weight = tick.weights[server]
        if not falling:
            top = max(top, weight)
            if top - weight >= least:
                count, falling, bottom = count + 1, True, weight
        else:
            bottom = min(bottom, weight)
            if weight - bottom >= least:
                falling, top = False, weight
    return count


def onsets(trace: Sequence[Tick], server: int) -> int:
    """How often noise began beside the server."""
    before = [False, *(tick.noisy[server] for tick in trace)]
    return sum(now and not was for was, now in itertools.pairwise(before))


def as_text(trace: Sequence[Tick]) -> str:
    """A line for each tick on which something changed: time, noise (`*`), weights."""
    lines, last = [], None
    for tick in trace:
        shown = (tick.noisy, tick.weights)
        if shown != last:
            cells = (f"{weight}{'*' if loud else ''}" for weight, loud in zip(tick.weights, tick.noisy, strict=True))
            lines.append(f"{tick.at_s:6.1f} " + " ".join(f"{cell:>5}" for cell in cells))
        last = shown
    return "\n".join(lines) + "\n"
