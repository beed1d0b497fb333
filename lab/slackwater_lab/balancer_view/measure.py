"""Measures the three ways on the same requests: how exact they are, what they cost, how soon they show a neighbour."""

from __future__ import annotations

import contextlib
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slackwater_lab.balancer_view import size
from slackwater_lab.balancer_view.front import SHAPES, Front, Shape, edges, front
from slackwater_lab.balancer_view.looks import Look, Looks, Packets, Poller, bucket_of, cpu_of, quantile_of_table
from slackwater_lab.cluster import machine
from slackwater_lab.cluster.commit import commit
from slackwater_lab.cluster.lab import Lab
from slackwater_lab.cluster.load import Demand, Load, joined
from slackwater_lab.experiment.steady import stay

PERCENTILES = (50, 95, 99)
PARTS = ("exactness", "cost", "onset", "size")
COUNTERS, PACKETS, TABLE = WAYS = ("counters", "packets", "table")
ASK_COUNTERS, ASK_TABLE = "show stat web 4 -1", "show table web"
CLIENTS = 48
WARM_UP_S = 1.5
NOISE = "llcprobe"
CUT_BYTES = 256
VARIANTS = ("nothing", COUNTERS, PACKETS, f"packets, {CUT_BYTES} bytes of each", "table, not read", TABLE)
CPU_OF = ("haproxy_us", "own_us", "hosts_us")
"""CPU time a request in microseconds: of HAProxy, of the way itself, of the hosts."""
CALM_HIT = 0.05
NOISY_HIT = 0.5
SIGN = math.log(1000.0)
"""A sum of log-likelihood ratios above which a server shows a neighbour: three looks in a row that are slower than 95%
of those in calm, or more with others between them."""


@dataclass(frozen=True)
class ViewTest:
    """How much is measured. `sniffer`: the command's path."""

    sniffer: str
    rate_rps: float = 500.0
    seconds: float = 6.0
    rounds: int = 2
    costs_rps: tuple[float, ...] = (400.0, 1400.0)
    look_s: float = 0.1
    calm_s: float = 20.0
    episodes: int = 6
    server_rates_rps: tuple[float, ...] = (80.0, 20.0)
    parts: Sequence[str] = PARTS
    shapes: Sequence[str] = tuple(shape.name for shape in SHAPES)
    seed: int = 1


def run(lab: Lab, test: ViewTest, progress: Callable[[str], None]) -> dict[str, Any]:
    """The parts that are asked for; gives the JSON. Raises LabError."""
    result: dict[str, Any] = {"commit": commit(), "machine": machine.describe(lab)}
    if "exactness" in test.parts:
        shapes = [shape for shape in SHAPES if shape.name in test.shapes]
        with edges(lab):
            result["exactness"] = [_exactness(lab, shape, test, progress) for shape in shapes]
    if "cost" in test.parts:
        result["cost"] = [row for rate in test.costs_rps for row in _cost(lab, test, rate, progress)]
    if "onset" in test.parts:
        result["onset"] = [row for rate in test.server_rates_rps for row in _onset(lab, test, rate, progress)]
    if "size" in test.parts:
        result["size"] = size.run(lab, test.sniffer, progress)
    return result


@contextlib.contextmanager
def _load(lab: Lab, running: Front, rate_rps: float, seconds: float) -> Iterator[list[Load]]:
    """Load on all balancers of the front. Each client waits for its answer, so a time has no wait of the generator."""
    share = Demand(rate_rps=rate_rps / len(running.urls), clients=CLIENTS)
    loads = [lab.load(share, seconds, url) for url in running.urls]
    try:
        yield loads
    finally:
        for load in loads:
            load.stop()


def _exactness(lab: Lab, shape: Shape, test: ViewTest, progress: Callable[[str], None]) -> dict[str, Any]:
    """One shape, with a neighbour in one host: percentiles and means beside the load generator's."""
    with front(lab, shape) as running, contextlib.ExitStack() as stack:
        packets = Packets(lab, running, test.sniffer, None)
        total_s = WARM_UP_S + test.seconds
        noise = lab.noise(lab.noisy, NOISE, 1.0, total_s + 30.0)
        stack.callback(noise.stop)
        pollers = {COUNTERS: stack.enter_context(Poller(running, test.look_s, ASK_COUNTERS))}
        if shape.has_table:
            pollers[TABLE] = stack.enter_context(Poller(running, test.look_s, ASK_TABLE))
        loads = stack.enter_context(_load(lab, running, test.rate_rps, total_s))
        begun_s = loads[0].begin_mono_s + WARM_UP_S
        stay(lab, begun_s + test.seconds, loads[0], [noise])
        ended_s = begun_s + test.seconds - 0.2
        requests = joined([load.finish() for load in loads])
        lines = packets.finish()
    ahead_s = time.time() - time.monotonic()
    done_s = requests.due_mono_s + requests.seconds
    truth_ms = requests.seconds[(done_s >= begun_s) & (done_s < ended_s)] * 1000.0
    seen_ms = packets.requests_ms(lines, begun_s + ahead_s, ended_s + ahead_s)
    by_packets = [ms for times in seen_ms.values() for ms in times]
    answered = _answered(pollers[COUNTERS].looks, begun_s, ended_s)
    figures: dict[str, Any] = {
        "shape": shape.name,
        "requests": len(truth_ms),
        "lost": requests.lost_count,
        "truth": _figures(truth_ms),
        PACKETS: {"requests": len(by_packets), **_figures(by_packets)},
        COUNTERS: {"requests": sum(answered.values()), "mean": _by_littles_law(pollers, begun_s, ended_s)},
        "by_server": {name: {COUNTERS: count, PACKETS: len(seen_ms.get(name, ()))} for name, count in answered.items()},
    }
    if shape.has_table:
        at_least = _table_between(pollers[TABLE].looks, begun_s, ended_s)
        quantiles = {f"p{percent}": quantile_of_table(at_least, percent / 100) for percent in PERCENTILES}
        same = {
            f"p{percent}": bucket_of(quantiles[f"p{percent}"] or 0.0) - bucket_of(figures["truth"][f"p{percent}"])
            for percent in PERCENTILES
        }
        figures[TABLE] = {"requests": at_least[0], **quantiles, "buckets_off": same}
    progress(f"{shape.name}: {len(truth_ms)} requests, p95 {figures['truth']['p95']:.1f} ms")
    return figures


def _figures(times_ms: Any) -> dict[str, float | None]:
    if not len(times_ms):
        return {"mean": None, **{f"p{percent}": None for percent in PERCENTILES}}
    return {
        "mean": float(np.mean(times_ms)),
        **{f"p{percent}": float(np.percentile(times_ms, percent)) for percent in PERCENTILES},
    }


def _within(looks: Sequence[Look], begun_s: float, ended_s: float) -> list[Look]:
    return [look for look in looks if begun_s <= look.mono_s < ended_s]


def _answered(looks: Looks, begun_s: float, ended_s: float) -> dict[str, float]:
    return {
        name: sum(look.requests for look in _within(all_, begun_s, ended_s)) for name, all_ in looks.by_server.items()
    }


def _by_littles_law(pollers: dict[str, Poller], begun_s: float, ended_s: float) -> float | None:
    """Mean time in ms of all servers' requests: those in flight over those answered a second."""
    looks = [look for all_ in pollers[COUNTERS].looks.by_server.values() for look in _within(all_, begun_s, ended_s)]
    servers = len(pollers[COUNTERS].looks.by_server)
    rate_rps = sum(look.requests for look in looks) / (ended_s - begun_s)
    held = statistics.mean(look.in_flight or 0.0 for look in looks) * servers if looks else 0.0
    return held / rate_rps * 1000.0 if rate_rps else None


def _table_between(looks: Looks, begun_s: float, ended_s: float) -> list[int]:
    """All servers' counts that came then."""
    total: list[int] | None = None
    for all_ in looks.by_server.values():
        mine = [look for look in all_ if look.mono_s < ended_s]
        while len(mine) > 2 and mine[1].mono_s < begun_s:
            mine = mine[1:]
        if len(mine) < 2:
            continue
        new = [b - a for a, b in zip(mine[0].answered_at_least, mine[-1].answered_at_least, strict=True)]
        total = new if total is None else [a + b for a, b in zip(total, new, strict=True)]
    return total or [0]


def _cost(lab: Lab, test: ViewTest, rate_rps: float, progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """CPU time a request of HAProxy, of the way itself, and of the hosts; each round in random order."""
    dice = random.Random(test.seed)
    runs: list[dict[str, Any]] = []
    for number in range(test.rounds):
        for variant in dice.sample(VARIANTS, len(VARIANTS)):
            runs.append({"round": number, "variant": variant, **_cost_of(lab, variant, rate_rps, test)})
            taken_us = runs[-1]["haproxy_us"]
            progress(f"{rate_rps:g} requests/s, round {number + 1}, {variant}: HAProxy {taken_us:.1f} us a request")
    rows = []
    for variant in VARIANTS:
        mine = [run for run in runs if run["variant"] == variant]
        medians = {key: statistics.median(float(run[key]) for run in mine) for key in CPU_OF}
        rows.append({"rate_rps": rate_rps, "variant": variant, **medians})
    return [*rows, {"rate_rps": rate_rps, "variant": "runs", "runs": runs}]


def _cost_of(lab: Lab, variant: str, rate_rps: float, test: ViewTest) -> dict[str, float]:
    shape = Shape(variant, table=variant.startswith("table"))
    with front(lab, shape) as running, contextlib.ExitStack() as stack:
        packets = poller = None
        if variant.startswith(PACKETS):
            cut = CUT_BYTES if variant != PACKETS else None
            packets = Packets(lab, running, test.sniffer, 0.2, snap_length=cut)
        elif variant in (COUNTERS, TABLE):
            command = ASK_COUNTERS if variant == COUNTERS else ASK_TABLE
            poller = stack.enter_context(Poller(running, 0.2, command))
        (load,) = stack.enter_context(_load(lab, running, rate_rps, WARM_UP_S + test.seconds))
        (pid,) = running.pids
        stay(lab, load.begin_mono_s + WARM_UP_S, load)

        def spent_s() -> tuple[float, float, float]:
            own_s = cpu_of(packets.program.process.pid) if packets else poller.cpu_s if poller else 0.0
            return cpu_of(pid), own_s, lab.vm_cpu_s()

        begun_s, before_s = time.monotonic(), spent_s()
        stay(lab, begun_s + test.seconds - 0.5, load)
        ended_s, after_s = time.monotonic(), spent_s()
        requests = load.finish()
        if packets:
            packets.finish()
    done_s = requests.due_mono_s + requests.seconds
    count = int(((done_s >= begun_s) & (done_s < ended_s)).sum())
    return {
        "requests": count,
        **{name: (b - a) / count * 1e6 for name, a, b in zip(CPU_OF, before_s, after_s, strict=True)},
    }


def _onset(lab: Lab, test: ViewTest, server_rps: float, progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """How long after a neighbour's onset each way shows it in its host, and what it shows in calm."""
    noises: list[tuple[float, float]] = []
    noisy_s, pause_s = 3.0, 4.0
    total_s = WARM_UP_S + test.calm_s + test.episodes * (noisy_s + pause_s)
    with front(lab, Shape("onset")) as running, contextlib.ExitStack() as stack:
        packets = Packets(lab, running, test.sniffer, test.look_s)
        pollers = {
            COUNTERS: stack.enter_context(Poller(running, test.look_s, ASK_COUNTERS)),
            TABLE: stack.enter_context(Poller(running, test.look_s, ASK_TABLE)),
        }
        (load,) = stack.enter_context(_load(lab, running, server_rps * len(lab.hosts), total_s + 20.0))
        calm_from_s = load.begin_mono_s + WARM_UP_S
        stay(lab, calm_from_s + test.calm_s, load)
        for _ in range(test.episodes):
            noise = lab.noise(lab.noisy, NOISE, 1.0, noisy_s + 30.0)
            stay(lab, noise.on_mono_s + noisy_s, load, [noise])
            noise.stop()
            assert noise.off_mono_s is not None
            noises.append((noise.on_mono_s, noise.off_mono_s))
            stay(lab, time.monotonic() + pause_s, load)
        lines = packets.finish()
    looks = {COUNTERS: pollers[COUNTERS].looks, PACKETS: packets.looks(lines), TABLE: pollers[TABLE].looks}
    rows = []
    for way in WAYS:
        row = _signs(looks[way].by_server, lab.noisy.name, (calm_from_s, calm_from_s + test.calm_s), noises)
        rows.append({"server_rps": server_rps, "way": way, **row})
        delays = [f"{value:.2f}" if value is not None else "-" for value in row["delays_s"]]
        progress(f"{way} at {server_rps:g} requests/s a server: {' '.join(delays)} s")
    return rows


def _figure(look: Look) -> float | None:
    """What a look is judged by: how slow the slowest was, or the requests in flight where no more is known."""
    return look.slowest_ms if look.slowest_ms is not None or look.answered_at_least else look.in_flight


def _signs(
    by_server: dict[str, list[Look]], noisy: str, calm: tuple[float, float], noises: Sequence[tuple[float, float]]
) -> dict[str, Any]:
    """Page's cumulative sum over a server's looks, each of which is slower than 95% of those in calm or is not."""
    delays: list[float | None] = []
    false = 0
    for name, looks in by_server.items():
        quiet = [value for look in _within(looks, *calm) if (value := _figure(look)) is not None]
        limit = float(np.percentile(quiet, 100 * (1 - CALM_HIT)))
        share = max(CALM_HIT, sum(value > limit for value in quiet) / len(quiet))
        hit, miss = math.log(NOISY_HIT / share), math.log((1 - NOISY_HIT) / (1 - share))

        def first(begin_s: float, end_s: float) -> float | None:
            total = 0.0
            for look in _within(looks, begin_s, end_s):  # noqa: B023
                value = _figure(look)
                if value is not None:
                    total = max(0.0, total + (hit if value > limit else miss))  # noqa: B023
                if total >= SIGN:
                    return look.mono_s - begin_s
            return None

        if name == noisy:
            delays = [first(on_s, off_s) for on_s, off_s in noises]
        step_s = 3.0
        pieces = [calm[0] + step_s * number for number in range(int((calm[1] - calm[0]) / step_s))]
        false += sum(first(begin_s, begin_s + step_s) is not None for begin_s in pieces)
    shown = sorted(value for value in delays if value is not None)
    return {
        "delays_s": delays,
        "median_s": statistics.median(shown) if shown else None,
        "worst_s": shown[-1] if shown else None,
        "missed": delays.count(None),
        "false_in_calm": false,
        "calm_s": (calm[1] - calm[0]) * len(by_server),
    }
