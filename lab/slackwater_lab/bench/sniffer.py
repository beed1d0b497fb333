#!/usr/bin/env python3
"""Measures the sniffer side by side with others, on files and traffic that it makes itself (`make bench-sniffer`).

Prints the machine, the commands, medians and ranges; `--write FILE` also writes them into a document. Needs root: it
works in network namespaces of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from slackwater_lab.bench.captures import CaptureFile, doubled, make, part
from slackwater_lab.bench.harness import Report, Usage, measure, peak_mib, run, scratch, spread
from slackwater_lab.bench.stage import Stage, oha, pin, stage, start_server
from slackwater_lab.cluster.paths import LabError, program

TSHARK_PACKETS = 100_000
REPLAY_PPS = 400_000
SENDER = Path(__file__).resolve().parent / "packet_sender.py"


def sniffer_command(file: CaptureFile) -> list[str]:
    return [program("slackwater-sniffer"), "read", str(file.path), "--port", "80", "--json"]


def offline(report: Report, site: Stage, packets: int, rounds: int) -> CaptureFile:
    """Reads both captures with everything, on one core."""
    core = str(max(os.sched_getaffinity(0)))
    pinned = ["taskset", "-c", core]
    report.add("\n## Files\n")
    kept: CaptureFile | None = None
    exchanges, rows = [], []
    for name, options in (("keep-alive", ("-c", "32")), ("short-connection", ("-c", "32", "--disable-keepalive"))):
        file = make(site, name, packets, *options)
        kept = kept or file
        short, twice = part(file, TSHARK_PACKETS), doubled(file)
        floor = [program("tcpdump"), "-Z", "root", "-r", str(file.path), "-w", "/dev/null"]
        measure([*pinned, *floor])
        pairs: list[tuple[Usage, Usage]] = []
        for _ in range(rounds):
            # One after the other in each round: what the machine does meanwhile, it does to both.
            pairs.append((measure([*pinned, *floor]), measure([*pinned, *sniffer_command(file)])))
        ratios = [sniffer.wall_s / tcpdump.wall_s for tcpdump, sniffer in pairs]
        walls = [sniffer.wall_s for _, sniffer in pairs]
        shark = [program("tshark"), "-n", "-r", str(short.path), "-Y", "http.time", "-T", "fields", "-e", "http.time"]
        shark_rate = short.packets / statistics.median(measure([*pinned, *shark]).wall_s for _ in range(3))
        rate = file.packets / statistics.median(walls)
        peaks = [peak_mib(sniffer_command(each)) for each in (file, twice)]
        times = (spread([t.wall_s for t, _ in pairs]), spread(walls), spread(ratios, ".2f"))
        rates = (f"{rate / 1e6:.2f}", f"{shark_rate:,.0f}", f"{rate / shark_rate:.0f}")
        rows.append((name, f"{file.packets:,}", f"{file.mib:.0f}", *times, *rates, *(f"{peak:.1f}" for peak in peaks)))
        summary = json.loads(pairs[0][1].output)
        exchanges.append(
            f"{name}: {summary['exchanges']:,} exchanges, {summary['unmatched_requests']} unmatched, "
            f"{summary['holes']} holes"
        )
    heads = ("tcpdump, s", "sniffer, s", "times tcpdump", "million packets/s", "tshark, packets/s", "times tshark")
    report.table(("file", "packets", "MiB", *heads, "sniffer's peak, MiB", "doubled, MiB"), rows)
    report.add(
        f"\nOne pinned core (`taskset -c {core}`), warm cache, medians of {rounds} (range). "
        "Commands: `tcpdump -r FILE -w /dev/null`, `slackwater-sniffer read FILE --port 80 --json`, "
        f"`tshark -n -r PART -Y http.time -T fields -e http.time` (the first {TSHARK_PACKETS:,} packets, median "
        f"of 3). {'; '.join(exchanges)}."
    )
    assert kept is not None
    return kept


def live_sniffer(
    site: Stage, interface: str, buffer_mib: int, *before: str
) -> Callable[[], tuple[dict[str, object], Usage]]:
    """Starts a live capture in the server's namespace; the result ends it and gives its summary and use."""
    command = [program("slackwater-sniffer"), "live", "-i", interface, "--port", "80", "--json"]
    running = site.start(
        site.server, *before, *command, "--buffer-mib", str(buffer_mib), "--user", "nobody", keep_output=True
    )
    time.sleep(1)

    def end() -> tuple[dict[str, object], Usage]:
        usage = running.stop()
        return json.loads(usage.output.splitlines()[-1]), usage

    return end


def number(summary: dict[str, object], name: str) -> int:
    value = summary[name]
    if not isinstance(value, int):
        raise LabError(f"the sniffer's summary has no {name}: {value!r}")
    return value


def replay(report: Report, site: Stage, file: CaptureFile, rounds: int, seconds: int) -> None:
    """Replays a capture on the veth pair at a steady rate."""
    cores = sorted(os.sched_getaffinity(0))
    rates, drops, costs, seen = [], [], [], []
    packets = REPLAY_PPS * seconds
    for _ in range(rounds):
        end = live_sniffer(site, "wire1", 64, "taskset", "-c", str(cores[-1]))
        sender = measure(
            site.inside(
                site.client, "taskset", "-c", str(cores[0]), sys.executable, str(SENDER), "wire0", str(file.path),
                "--packets", str(packets), "--pps", str(REPLAY_PPS),
            )
        )  # fmt: skip
        time.sleep(0.5)
        summary, usage = end()
        rates.append(float(json.loads(sender.output)["pps"]))
        count = number(summary, "packets")
        drops.append(number(summary, "drops"))
        seen.append(float(count))
        costs.append(usage.cpu_s / count * 1e6)
    report.add("\n## Live: replay on a veth pair\n")
    heads = ("packets/s sent", "packets seen", "dropped", "sniffer's CPU, microseconds a packet")
    report.table(heads, [(spread(rates, ",.0f"), spread(seen, ",.0f"), drops, spread(costs))])
    report.add(
        f"\n`lab/slackwater_lab/bench/packet_sender.py wire0 FILE --packets {packets} --pps "
        f"{REPLAY_PPS}` with the keep-alive capture on one core, `slackwater-sniffer live --buffer-mib 64` on another; "
        f"{rounds} rounds. The kernel copies packets into the sniffer's ring in the sender's time."
    )


def real(report: Report, site: Stage, rounds: int, seconds: int) -> None:
    """Real requests, as many as the machine serves, with the sniffer and without."""
    without, with_sniffer, drops, costs, exchanges = [], [], [], [], []
    load = ("-z", f"{seconds}s", "-c", "32")
    for _ in range(rounds):
        without.append(oha(site, "page.html", *load)["summary"]["requestsPerSec"])
        end = live_sniffer(site, "eth0", 64)
        with_sniffer.append(oha(site, "page.html", *load)["summary"]["requestsPerSec"])
        time.sleep(0.5)
        summary, usage = end()
        drops.append(number(summary, "drops"))
        exchanges.append(number(summary, "exchanges"))
        costs.append(usage.cpu_s / number(summary, "packets") * 1e6)
    losses = [100 * (1 - w / o) for o, w in zip(without, with_sniffer, strict=True)]
    report.add("\n## Live: real requests\n")
    heads = ("requests/s without", "with", "lost, %", "dropped", "exchanges seen", "CPU, microseconds a packet")
    counts = [spread(values, ",.0f") for values in (without, with_sniffer, exchanges)]
    report.table(heads, [(*counts[:2], spread(losses, ".1f"), drops, counts[2], spread(costs))])
    report.add(
        f"\nApache serves a static page to `oha -z {seconds}s -c 32` (closed loop, as many as it can: both and the"
        f" sniffer share all cores); {rounds} rounds, without and with the sniffer."
    )


def accuracy(report: Report, site: Stage, rounds: int, seconds: int, rate: int) -> None:
    """Percentiles of the sniffer against the load generator's own, open loop and far from saturation."""
    cores = sorted(os.sched_getaffinity(0))
    pin(site, cores[-1])
    load = ("-z", f"{seconds}s", "-q", str(rate), "-c", "32", "--wait-ongoing-requests-after-deadline")
    starts = {"sent": (), "due": ("--latency-correction",)}
    report.add("\n## Accuracy\n")
    rows = []
    off: dict[tuple[str, str], list[float]] = {(start, name): [] for start in starts for name in ("p95", "p99")}
    for index in range(rounds):
        for start, correction in starts.items():
            end = live_sniffer(site, "eth0", 8, "taskset", "-c", str(cores[-1]))
            figures = oha(site, "page.php", *load, *correction, core=cores[0])
            time.sleep(0.5)
            summary, _ = end()
            times = summary["last_byte_ms"]
            cells = []
            for name in ("p95", "p99"):
                oha_ms = figures["latencyPercentiles"][name] * 1e3
                ours = times[name] if isinstance(times, dict) else 0.0
                off[start, name].append(100 * (oha_ms / ours - 1))
                cells += [f"{oha_ms:.3f}", f"{ours:.3f}", f"{oha_ms - ours:+.3f} ms, {off[start, name][-1]:+.2f}%"]
            rows.append((index + 1, start, *cells))
    percentiles = [head for name in ("p95", "p99") for head in (f"oha {name}, ms", f"sniffer {name}", "off by")]
    report.table(("round", "oha counts from", *percentiles), rows)
    medians = {key: f"{statistics.median(values):+.2f}%" for key, values in off.items()}
    report.add(
        f"\nMedians: from when it was sent p95 {medians['sent', 'p95']}, p99 {medians['sent', 'p99']}; from when it "
        f"was due p95 {medians['due', 'p95']}, p99 {medians['due', 'p99']}. The sniffer's times are those of the wire "
        "at the server. What oha has more is its own: from the call that sends to the wire, and from the wire until it "
        "is woken up for the answer; from when it was due also how late its timer is. These are times, not shares: "
        "on a page that takes a tenth of the time they are ten times as many percent."
    )
    report.add(
        f"\n`oha -z {seconds}s -q {rate} -c 32` on a PHP page that computes 1 to 3 ms and waits 10 to "
        f"90 ms, as one that asks a database: some {rate * 0.052:.0f} of 32 connections are busy, so no request waits "
        f"for one (open loop, unsaturated). oha has core {cores[0]} for itself, the server and the sniffer core "
        f"{cores[-1]}. oha counts from the moment at which it sent a request, or with `--latency-correction` from the "
        f"moment at which it was due; {rounds} rounds of each, in turns, {seconds * rate:,} requests a round."
    )


OPTIONS = {
    "--packets": (int, 1_000_000, "packets of each capture"),
    "--rounds": (int, 5, "rounds of each measurement"),
    "--seconds": (int, 10, "length of each live measurement"),
    "--rate": (int, 150, "requests a second of the accuracy rounds"),
}


def bench(report: Report, options: argparse.Namespace) -> None:
    with scratch() as folder, stage(folder) as site:
        start_server(site)
        file = offline(report, site, options.packets, options.rounds)
        replay(report, site, file, options.rounds, options.seconds)
        real(report, site, options.rounds, options.seconds)
        accuracy(report, site, options.rounds, 3 * options.seconds, options.rate)


if __name__ == "__main__":
    sys.exit(run("Benchmark of the sniffer", __doc__, OPTIONS, bench))
