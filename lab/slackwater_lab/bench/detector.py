#!/usr/bin/env python3
"""How long a Sample waits for its Verdict, with thousands of nodes on one core (`make bench-detector`).

The real detector core, fed with encoded Samples on a schedule: each node sends one every `--period` at its own offset,
or, with `--by-event`, as the monitors do by default while a tenth of the nodes are in episodes.
What it does with them (decode, judge, encode the Verdicts) is really done and timed; the schedule's clock moves on by
that time, so that Samples queue as they would behind a process that has one core. Not in it: the bus and its client.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from slackwater.core import messages
from slackwater.core.config import DetectorSettings
from slackwater.detector.baseline_checkpoint import BaselineCheckpoint
from slackwater.detector.classify import tree
from slackwater.detector.features import sample_decoder
from slackwater.detector.features.columns import row_of
from slackwater.detector.judge import Judge
from slackwater.detector.service import spare_the_collector
from slackwater_lab.bench import harness
from slackwater_lab.bench.harness import Report, spread
from slackwater_lab.cluster.paths import ROOT
from slackwater_lab.cluster.process_use import process_use

TEMPLATE = ROOT / "schema/examples/sample-full.json"
VARIANTS = 32
LOUD_SHARE = 0.01
"""Share of the nodes that get a neighbour in the middle of the last round."""
PER_NODE = ("v", "node", "pool", "time_unix_s", "boot_id", "seq", "period_s")
START_UNIX_S = 1_795_000_000.0
LEVELS, LEVEL_S = 8, 60.0
EPISODE_S, CYCLE_S = 6.0, 60.0
"""A tenth of the nodes are in an episode at any time, where Samples come by event."""


@dataclass(frozen=True)
class PaceSettings:
    """The monitor's (`monitor/src/pace.rs`), at their defaults.

    Seconds between two Samples in calm, in an event's first `burst_s`, and as it lasts.
    """

    quiet_s: float = 1.0
    event_s: float = 0.05
    burst_s: float = 0.6
    lasting_s: float = 0.2


PACE = PaceSettings()
Clock = Callable[[], float]


def bodies(seed: int, loud: bool, busy: float | None = None) -> list[bytes]:
    """The part of Samples that is not the node's own, in variants: every number moves a little.

    `busy` is the share of its CPU that the web server takes; None: the template's.
    """
    random = np.random.default_rng(seed)
    plain = json.loads(TEMPLATE.read_text())
    variants = []
    for _ in range(VARIANTS):
        sample = {key: value for key, value in plain.items() if key not in PER_NODE}
        for name in ("sched", "traffic", "counters", "canary", "cpu", "pressure", "disk", "network"):
            sample[name] = {key: _moved(value, random) for key, value in sample[name].items()}
        if busy is not None:
            sample["cpu"]["utilisation"] = busy
            sample["sched"]["cpu_s_per_s"] = busy * sample["cpu"]["cores"]
        if loud:
            sample["sched"]["run_delay_per_cpu_s"] = random.uniform(15.0, 40.0)
            sample["canary"]["wall_cpu_ratio"] = sample["counters"]["wall_cpu_ratio"] = random.uniform(2.0, 20.0)
            sample["traffic"]["rt_mean_ms"], sample["traffic"]["rt_p95_ms"] = 60.0, 180.0
            for route in sample["traffic"]["routes"]:
                route["rt_mean_ms"] = 250.0
        variants.append(json.dumps(sample, separators=(",", ":")).encode()[1:])
    return variants


def loud_nodes(nodes: int) -> int:
    """Number of nodes that get a neighbour."""
    return max(1, round(LOUD_SHARE * nodes))


def _moved(value: Any, random: np.random.Generator) -> Any:
    return round(value * random.normal(1.0, 0.03), 6) if isinstance(value, float) and value not in (0.0, 1.0) else value


@dataclass
class SampleLoad:
    """Encoded Samples of a pool of nodes in order of time: (seconds, message)."""

    nodes: int
    period_s: float
    loud_from_s: float
    levels: int = 1
    """The nodes' load climbs through this number of ranges, `LEVEL_S` each, and begins again."""

    def loud(self, _at_s: float) -> set[str]:
        """Names of the nodes that get a neighbour."""
        return {f"node{number}" for number in range(loud_nodes(self.nodes))}

    def __iter__(self) -> Iterator[tuple[float, bytes]]:
        levels = range(self.levels)
        calm = [bodies(1, False, (level + 0.5) / self.levels if self.levels > 1 else None) for level in levels]
        loud = bodies(2, True)
        names = [f"node{number}" for number in range(self.nodes)]
        loud_until = loud_nodes(self.nodes)
        seq = 0
        while True:
            level = calm[int(seq * self.period_s / LEVEL_S) % self.levels]
            for number, name in enumerate(names):
                at_s = (seq + number / self.nodes) * self.period_s
                choice = loud if number < loud_until and at_s >= self.loud_from_s else level
                yield at_s, head(name, at_s, seq, self.period_s) + choice[(seq * 7 + number * 13) % VARIANTS]
            seq += 1


def head(name: str, at_s: float, seq: int, period_s: float) -> bytes:
    """The part of a Sample that is the node's own."""
    return (
        f'{{"v":1,"node":"{name}","pool":"web","time_unix_s":{START_UNIX_S + at_s:.4f},'
        f'"boot_id":"b","seq":{seq},"period_s":{period_s:.4f},'
    ).encode()


@dataclass
class EventLoad:
    """The same by event: a Sample each `quiet_s`, and in an episode as often as the monitor's pace has it.

    Each node has an episode of `EPISODE_S` in each `CYCLE_S`, at a time of its own; until `calm_s` all are calm.
    """

    nodes: int
    calm_s: float
    pace: PaceSettings = PACE

    def loud(self, at_s: float) -> set[str]:
        """Names of the nodes whose neighbour has been there for a second."""
        return {f"node{number}" for number in range(self.nodes) if self.age_s(number, at_s) >= 1.0}

    def age_s(self, number: int, at_s: float) -> float:
        """Age of a node's episode; negative: time until its next episode begins."""
        if at_s < self.calm_s:
            return -float("inf")
        age_s = (at_s + CYCLE_S * number / self.nodes) % CYCLE_S
        return age_s if age_s < EPISODE_S else age_s - CYCLE_S

    def next_s(self, number: int, at_s: float) -> float:
        """When a node that sent a Sample sends the next one."""
        age_s, pace = self.age_s(number, at_s), self.pace
        if age_s >= 0.0:
            return at_s + (pace.event_s if age_s < pace.burst_s else pace.lasting_s)
        return at_s + min(pace.quiet_s, max(pace.event_s, pace.event_s - age_s))

    def __iter__(self) -> Iterator[tuple[float, bytes]]:
        calm, loud = bodies(1, False), bodies(2, True)
        due = [(number / self.nodes * self.pace.quiet_s, number, 0, self.pace.quiet_s) for number in range(self.nodes)]
        while True:
            at_s, number, seq, covered_s = due[0]
            choice = loud if self.age_s(number, at_s) >= 0.0 else calm
            yield at_s, head(f"node{number}", at_s, seq, covered_s) + choice[(seq * 7 + number * 13) % VARIANTS]
            next_s = self.next_s(number, at_s)
            heapq.heapreplace(due, (next_s, number, seq + 1, next_s - at_s))


@dataclass
class Result:
    """The figures of a round."""

    latency_s: np.ndarray[Any, np.dtype[np.float64]]
    busy_s: float
    """Time on the core."""
    busy: float
    """Share of the core's time."""
    decode_share: float
    loud_found: int
    loud: int
    """Nodes beside a neighbour at its end."""
    samples: int
    behind_s: float
    """Age of the oldest Sample that is not judged at the round's end."""
    memory_mib: float
    """Resident at its end."""

    def ms(self, quantile: float) -> float:
        """A quantile of the latency."""
        return float(np.quantile(self.latency_s, quantile)) * 1e3

    @property
    def sample_us(self) -> float:
        """Time on the core for each Sample."""
        return self.busy_s / max(self.samples, 1) * 1e6


def run(
    load: SampleLoad | EventLoad,
    warm_s: float,
    seconds: float,
    rounds: int,
    tick_s: float,
    model: tree.Model,
    clock: Clock,
) -> Iterator[Result]:
    """Feeds a Judge `warm_s` of Samples, then for `rounds` times `seconds` that count. `clock` times what is done.

    What is done before is not timed, so that the rounds begin with nothing left to do, and with baselines of that age.
    """
    judge = Judge.of("web", DetectorSettings(), model)
    checkpoint = BaselineCheckpoint({"web": judge}, 0.0)
    arrivals = iter(load)
    at_s, raw = next(arrivals)
    now_s = 0.0
    spare_the_collector()
    for number in range(-1, rounds):
        end_s = warm_s + (number + 1) * seconds
        timed = stopped if number < 0 else clock
        busy_s, decode_s, counted, began_s = 0.0, 0.0, 0, now_s
        latency: list[float] = []
        detected: set[str] = set()
        while now_s < end_s:
            batch: list[tuple[float, bytes]] = []
            while at_s <= now_s:
                batch.append((at_s, raw))
                at_s, raw = next(arrivals)
            began = timed()
            rows = [row_of(sample_decoder.decode(raw)) for _, raw in batch]
            decoded = timed()
            verdicts = judge.take(now_s, rows)
            for verdict in verdicts:
                messages.encode(verdict)
            checkpoint.step(now_s, START_UNIX_S + now_s)
            done = timed()
            started_s, now_s = now_s, now_s + done - began
            busy_s, decode_s, counted = busy_s + done - began, decode_s + decoded - began, counted + len(batch)
            latency += [now_s - arrived_s for arrived_s, _ in batch]
            detected |= {verdict.node for verdict in verdicts if verdict.state == "interference"}
            now_s = max(now_s, started_s + tick_s)
        if number >= 0:
            loud = load.loud(end_s)
            yield Result(
                latency_s=np.array(latency),
                busy_s=busy_s,
                busy=busy_s / max(now_s - began_s, 1e-9),
                decode_share=decode_s / max(busy_s, 1e-9),
                loud_found=len(detected & loud),
                loud=len(loud),
                samples=counted,
                behind_s=max(0.0, now_s - at_s),
                memory_mib=memory_mib(),
            )


def memory_mib() -> float:
    """Resident memory of this process."""
    use = process_use(os.getpid())
    assert use is not None
    return use.rss_mib


def stopped() -> float:
    """The clock of what is not timed."""
    return 0.0


def measured(nodes: int, options: argparse.Namespace, model: tree.Model, clock: Clock) -> list[Result]:
    """The rounds with this number of nodes."""
    load: SampleLoad | EventLoad
    if options.by_event:
        load = EventLoad(nodes, options.warm - CYCLE_S / 2)
    else:
        load = SampleLoad(nodes, options.period, options.warm + (options.rounds - 0.5) * options.seconds)
    return list(run(load, options.warm, options.seconds, options.rounds, options.tick, model, clock))


def tables(report: Report, by_nodes: dict[int, list[Result]], options: argparse.Namespace, model: tree.Model) -> None:
    """Adds two tables: medians by number of nodes, and each round."""
    pace = f"{1 / options.period:g} Samples/s of each node"
    loud = f"{LOUD_SHARE:.0%} of the nodes get a neighbour in the middle of the last round"
    if options.by_event:
        pace = (
            f"Samples by event: each node one in {PACE.quiet_s:g} s, in an episode one each {PACE.event_s * 1e3:g} ms"
            f" at first and each {PACE.lasting_s * 1e3:g} ms later"
        )
        loud = f"{EPISODE_S / CYCLE_S:.0%} of the nodes are in an episode at any time, each for {EPISODE_S:g} s"
    report.note(
        f"{pace} ({TEMPLATE.name} with moving numbers, {len(bodies(1, False)[0])} bytes), judged every"
        f" {options.tick * 1e3:g} ms by {model.name}; {options.warm:g} s of Samples"
        f" before, not timed, then {options.rounds} rounds of {options.seconds:g} s. {loud}."
    )
    report.add("Medians of the rounds (range):\n")
    rows = []
    for nodes, results in by_nodes.items():
        cells = [
            spread([100 * result.busy for result in results], ".0f"),
            *(spread([result.ms(quantile) for result in results], ".1f") for quantile in (0.5, 0.99)),
            spread([result.sample_us for result in results], ".1f"),
        ]
        rows.append((nodes, *cells, f"{results[-1].loud_found} of {results[-1].loud}"))
    report.table(("nodes", "core busy, %", "p50 ms", "p99 ms", "a Sample us", "neighbours found"), rows)
    report.add()
    heads = ("nodes", "round", "Samples", "p50 ms", "p99 ms", "longest ms", "core busy", "decoding", "behind s")
    rounds = [
        (
            *(nodes, number, result.samples, *(f"{result.ms(quantile):.1f}" for quantile in (0.5, 0.99, 1.0))),
            *(f"{result.busy:.0%}", f"{result.decode_share:.0%}", f"{result.behind_s:.2f}", f"{result.memory_mib:.0f}"),
        )
        for nodes, results in by_nodes.items()
        for number, result in enumerate(results, 1)
    ]
    report.table((*heads, "memory MiB"), rounds)


def hour(report: Report, options: argparse.Namespace, model: tree.Model) -> None:
    """Memory over an hour's Samples (or less), fed as quickly as they are judged."""
    load = SampleLoad(options.hour, options.period, float("inf"), LEVELS)
    memory = []
    for number, result in enumerate(run(load, 1.0, options.minutes * 10, 6, options.period, model, stopped), 1):
        memory.append(f"{result.memory_mib:.0f} after {number * options.minutes / 6:g} min")
    report.add(
        f"\nMemory (MiB resident) of {options.hour} nodes over {options.minutes:g} minutes' "
        f"{options.hour * round(60 * options.minutes / options.period)} "
        f"Samples, as quickly as they are judged, while the load climbs through all its ranges every "
        f"{LEVELS * LEVEL_S / 60:g} min: {', '.join(memory)}."
    )


OPTIONS = {
    "--nodes": (int, [2500, 5000, 7500, 10_000], "one or more numbers of nodes"),
    "--period": (float, 0.2, "seconds between a node's Samples"),
    "--by-event": (bool, False, "Samples follow events, a tenth of the nodes in episodes; without --period"),
    "--warm": (float, 60.0, "seconds before the measured ones"),
    "--seconds": (float, 10.0, "seconds of a measured round"),
    "--rounds": (int, 5, "measured rounds"),
    "--tick": (float, 0.05, "detector.tick_s"),
    "--hour": (int, 0, "also an hour of so many nodes, quickly"),
    "--minutes": (float, 60.0, "length of that hour"),
    "--wall": (bool, False, "time by the wall, not by the time on the core"),
}


def bench(report: Report, options: argparse.Namespace) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    model = tree.load(tree.SHIPPED)
    clock = time.perf_counter if options.wall else time.process_time
    tables(report, {nodes: measured(nodes, options, model, clock) for nodes in options.nodes}, options, model)
    if options.hour:
        hour(report, options, model)
    report.note(
        f"From the arrival of a Sample to its encoded Verdict, on one core, with the baselines encoded for the disk."
        f" A core busy 100% falls behind without end: the times then show how long it ran. Timed by "
        f"{'the wall' if options.wall else 'the time on the core'}. The bus and its client are not in it. numpy "
        f"{np.__version__}, msgspec {msgspec.__version__}."
    )


if __name__ == "__main__":
    sys.exit(harness.run("The detector's speed", __doc__, OPTIONS, bench))
