#!/usr/bin/env python3
"""How long a Sample waits for its Verdict, with thousands of nodes on one core (`make bench-detector`).

The real detector core, fed with encoded Samples on a schedule: each node sends one every `--period` at its own offset.
What it does with them (decode, judge, encode the Verdicts) is really done and timed; the schedule's clock moves on by
that time, so that Samples queue as they would behind a process that has one core. Not in it: the bus and its client.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from detector import reading, tree
from detector.judge import Judge
from slackwater import messages

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = ROOT / "schema/examples/sample-full.json"
VARIANTS = 32
LOUD_SHARE = 0.01
"""Of the nodes get a neighbour in the second half of the measured time."""
PER_NODE = ("v", "node", "pool", "time_unix_s", "boot_id", "seq", "period_s")
START_UNIX_S = 1_795_000_000.0


def bodies(seed: int, loud: bool) -> list[bytes]:
    """The part of Samples that is not the node's own, in variants: every number moves a little."""
    random = np.random.default_rng(seed)
    plain = json.loads(TEMPLATE.read_text())
    made = []
    for _ in range(VARIANTS):
        sample = {key: value for key, value in plain.items() if key not in PER_NODE}
        for name in ("sched", "traffic", "counters", "canary", "cpu", "pressure", "disk", "network"):
            sample[name] = {key: _moved(value, random) for key, value in sample[name].items()}
        if loud:
            sample["sched"]["run_delay_per_cpu_s"] = random.uniform(15.0, 40.0)
            sample["canary"]["wall_cpu_ratio"] = sample["counters"]["wall_cpu_ratio"] = random.uniform(2.0, 20.0)
            sample["traffic"]["rt_mean_ms"], sample["traffic"]["rt_p95_ms"] = 60.0, 180.0
            for route in sample["traffic"]["routes"]:
                route["rt_mean_ms"] = 250.0
        made.append(json.dumps(sample, separators=(",", ":")).encode()[1:])
    return made


def _moved(value: Any, random: np.random.Generator) -> Any:
    return round(value * random.normal(1.0, 0.03), 6) if isinstance(value, float) and value not in (0.0, 1.0) else value


@dataclass
class Load:
    """Encoded Samples of a pool of nodes in order of time: (seconds, message)."""

    nodes: int
    period_s: float
    loud_from_s: float

    def __iter__(self) -> Iterator[tuple[float, bytes]]:
        calm, loud = bodies(1, False), bodies(2, True)
        names = [f"node{number}" for number in range(self.nodes)]
        loud_nodes = max(1, round(LOUD_SHARE * self.nodes))
        seq = 0
        while True:
            for number, name in enumerate(names):
                at_s = (seq + number / self.nodes) * self.period_s
                some = loud if number < loud_nodes and at_s >= self.loud_from_s else calm
                head = (
                    f'{{"v":1,"node":"{name}","pool":"web","time_unix_s":{START_UNIX_S + at_s:.4f},'
                    f'"boot_id":"b","seq":{seq},"period_s":{self.period_s},'
                )
                yield at_s, head.encode() + some[(seq * 7 + number * 13) % VARIANTS]
            seq += 1


@dataclass
class Result:
    """What a run showed."""

    latency_s: np.ndarray[Any, np.dtype[np.float64]]
    busy: float
    """Share of the core's time."""
    decode_share: float
    loud_found: int
    samples: int


def run(
    nodes: int,
    period_s: float,
    warm_s: float,
    seconds: float,
    tick_s: float,
    model: tree.Model | None,
    clock: Callable[[], float],
) -> Result:
    """Feeds a Judge for `warm_s`, then for `seconds` that count. `clock` times what is done."""
    judge = Judge("web", stale_after_s=1.0, calm_dwell_s=2.0, model=model)
    arrivals = iter(Load(nodes, period_s, warm_s + seconds / 2))
    at_s, raw = next(arrivals)
    now_s, busy_s, decode_s, counted = 0.0, 0.0, 0.0, 0
    latency: list[float] = []
    found: set[str] = set()
    end_s = warm_s + seconds
    while now_s < end_s:
        batch: list[tuple[float, bytes]] = []
        while at_s <= now_s:
            batch.append((at_s, raw))
            at_s, raw = next(arrivals)
        began = clock()
        samples = [reading.decode(raw) for _, raw in batch]
        decoded = clock()
        verdicts = judge.tick(now_s, samples)
        for verdict in verdicts:
            messages.encode(verdict)
        took_s = clock() - began
        started_s, now_s = now_s, now_s + took_s
        if started_s >= warm_s:
            busy_s += took_s
            decode_s += decoded - began
            counted += len(batch)
            latency += [now_s - arrived_s for arrived_s, _ in batch]
            found |= {verdict.node for verdict in verdicts if verdict.state == "interference"}
        now_s = max(now_s, started_s + tick_s)
    measured_s = max(now_s - warm_s, 1e-9)
    return Result(np.array(latency), busy_s / measured_s, decode_s / max(busy_s, 1e-9), len(found), counted)


def machine() -> str:
    """Processor, cores, kernel, Python."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return (
        f"{model}, {os.cpu_count()} cores, kernel {platform.release()}, Python {platform.python_version()}, "
        f"numpy {np.__version__}, msgspec {msgspec.__version__}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--period", type=float, default=0.2, help="seconds between a node's Samples (default 0.2)")
    parser.add_argument("--warm", type=float, default=60.0, help="seconds before the measured ones (default 60)")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds that are measured (default 60)")
    parser.add_argument("--tick", type=float, default=0.05, help="detector.tick_s (default 0.05)")
    parser.add_argument("--thresholds", action="store_true", help="without the shipped model")
    parser.add_argument("--wall", action="store_true", help="time by the wall, not by the time on the core")
    parser.add_argument("--write", type=Path, help="also write the table to this Markdown file")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    model = None if options.thresholds else tree.load(tree.SHIPPED)
    clock = time.perf_counter if options.wall else time.process_time
    before_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    load_before = os.getloadavg()[0]
    result = run(options.nodes, options.period, options.warm, options.seconds, options.tick, model, clock)
    after_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    p50, p99, worst = np.quantile(result.latency_s, [0.5, 0.99, 1.0]) * 1e3
    lines = [
        f"{options.nodes} nodes, {1 / options.period:g} Samples/s each ({TEMPLATE.name} with moving numbers, "
        f"{len(bodies(1, False)[0])} bytes), judged every {options.tick * 1e3:g} ms by "
        f"{model.name if model else 'the thresholds'}; {options.warm:g} s before, {options.seconds:g} s measured.",
        "",
        "| Samples | p50 ms | p99 ms | longest ms | core busy | of that decoding | memory MiB (before) | loud found |",
        "|---|---|---|---|---|---|---|---|",
        f"| {result.samples} | {p50:.1f} | {p99:.1f} | {worst:.1f} | {result.busy:.0%} | {result.decode_share:.0%} "
        f"| {after_mib:.0f} ({before_mib:.0f}) | {result.loud_found} |",
        "",
        f"From the arrival of a Sample to its encoded Verdict, on one core. A core busy 100% falls behind without end: "
        f"the times then say how long it ran. Timed by {'the wall' if options.wall else 'the time on the core'}. "
        f"The bus and its client are not in it. Load of the machine at the start: "
        f"{load_before:.1f}.",
        "",
        f"Machine: {machine()}",
        "",
        f"Command: `python {shlex.join([str(Path(sys.argv[0])), *sys.argv[1:]])}`",
    ]
    print("\n".join(lines))
    if options.write:
        options.write.write_text("# The detector's speed\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
