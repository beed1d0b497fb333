#!/usr/bin/env python3
"""Measures the monitor, by event and at five times a second, beside node_exporter and collectd (`make bench-monitor`).

What each takes: CPU, memory, wake-ups; without traffic, and with requests through the sniffer. Then what the web
server's own p99 says to the monitor. Prints the machine, the commands, medians and ranges; `--write FILE` also writes
them into a document. Needs root: it works in network namespaces and a PID namespace of its own, so that no other web
server of the machine is looked at.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scipy.stats import quantile_test

from slackwater_lab.bench.harness import Report, memory_mib, run, scratch, spread
from slackwater_lab.bench.stage import SERVER_ADDRESS, Running, Stage, oha, stage, start_server
from slackwater_lab.cluster.paths import DEBIAN, LabError, program
from slackwater_lab.cluster.spawn import wait_until

PERIOD_S = 0.2
WARM_UP_S = 3.0
AT_REST_S = 62.0
"""After a minute without requests the monitor's canary runs once a second."""
STARTED = "has started"
"""The monitor logs this when it has given back what only its start needed."""
START_WITHIN_S = 30.0
CONNECTIONS = 32
PAGE = f"http://{SERVER_ADDRESS}/page.html"
METRICS = f"http://{SERVER_ADDRESS}:9100/metrics"
CONFIDENCE = 0.95
LEAST_PAIRS = 6
"""All of fewer are on one side of the median by chance more often than the confidence allows."""

NODE = """\
node = "bench"
pool = "web"
period_s = {period_s}
[pace]
by_event = {by_event}
[bus]
url = "nats://127.0.0.1:4222"
[sniffer]
interface = "eth0"
"""

COLLECTD = """\
Hostname "bench"
FQDNLookup false
BaseDir "{folder}/collectd"
PluginDir "{debian}/usr/lib/collectd"
TypesDB "{debian}/usr/share/collectd/types.db"
Interval {period_s}
LoadPlugin cpu
LoadPlugin memory
LoadPlugin load
LoadPlugin contextswitch
LoadPlugin interface
LoadPlugin disk
LoadPlugin processes
LoadPlugin network
<Plugin processes>
    Process "apache2"
    Process "php-fpm8.2"
</Plugin>
<Plugin network>
    Server "127.0.0.1" "25826"
</Plugin>
"""


@dataclass(frozen=True)
class Cost:
    """The cost of a process, measured over some seconds."""

    cpu_share: float
    rss_mib: float
    pss_mib: float
    wake_ups_per_s: float


@dataclass(frozen=True)
class Reading:
    at_s: float
    cpu_s: float
    switches: int


def read(pid: int) -> Reading:
    """CPU time in nanoseconds' steps and context switches, voluntary or not, of all threads."""
    cpu_ns, switches = 0, 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        cpu_ns += int((task / "schedstat").read_text().split()[0])
        status = (task / "status").read_text()
        switches += sum(map(int, re.findall(r"ctxt_switches:\s+(\d+)", status)))
    return Reading(time.monotonic(), cpu_ns / 1e9, switches)


def real_pid(running: Running, name: str) -> int:
    """`ip netns exec` and the wrappers call exec: the process is the program itself, once they did."""
    own = Path(f"/proc/{running.process.pid}/exe")
    wait_until(lambda: running.process.poll() is not None or name in str(own.resolve()), f"{name} starts", 10.0)
    if running.process.poll() is not None:
        raise LabError(f"{name} ended at once")
    return running.process.pid


def cost(pid: int, seconds: float) -> Cost:
    """Threads that end meanwhile take their figures with them; none of these programs ends any."""
    before = read(pid)
    time.sleep(seconds)
    after = read(pid)
    elapsed_s = after.at_s - before.at_s
    return Cost(
        (after.cpu_s - before.cpu_s) / elapsed_s,
        *memory_mib(pid),
        (after.switches - before.switches) / elapsed_s,
    )


# --- the programs


Start = Callable[[Stage], tuple[Running, str]]


def monitor(site: Stage, by_event: bool) -> tuple[Running, str]:
    config = site.folder / "node.toml"
    config.write_text(NODE.format(period_s=PERIOD_S, by_event=str(by_event).lower()))
    return site.start(site.server, program("slackwater-monitor"), "run", "--config", str(config)), "slackwater-monitor"


def node_exporter(site: Stage) -> tuple[Running, str]:
    command = (program("prometheus-node-exporter"), f"--web.listen-address={SERVER_ADDRESS}:9100", "--log.level=error")
    return site.start(site.server, *command), "prometheus-node-exporter"


def collectd(site: Stage) -> tuple[Running, str]:
    (site.folder / "collectd").mkdir(exist_ok=True)
    config = site.folder / "collectd.conf"
    config.write_text(COLLECTD.format(folder=site.folder, debian=DEBIAN, period_s=PERIOD_S))
    return site.start(site.server, program("collectd"), "-f", "-C", str(config)), "collectd"


BY_EVENT = "slackwater-monitor, by event"
"""The pace of a monitor as it is installed."""
MONITORS: dict[str, Start] = {
    BY_EVENT: partial(monitor, by_event=True),
    "slackwater-monitor, each period": partial(monitor, by_event=False),
}
PROGRAMS: dict[str, Start] = {
    **MONITORS,
    "node_exporter": node_exporter,
    "collectd": collectd,
}


def times_started(site: Stage) -> int:
    return site.errors.read_text().count(STARTED) if site.errors.exists() else 0


@contextmanager
def running(site: Stage, start: Start, warm_up_s: float = WARM_UP_S) -> Iterator[int]:
    """The program's process id, while it runs; it has settled."""
    started_before = times_started(site)
    process, name = start(site)
    try:
        pid = real_pid(process, name)
        if start in MONITORS.values():
            wait_until(
                lambda: times_started(site) > started_before, f"the monitor logs that it {STARTED}", START_WITHIN_S
            )
        time.sleep(warm_up_s)
        yield pid
    finally:
        process.stop()


@contextmanager
def load(site: Stage, rate: float, seconds: float, url: str = PAGE, connections: int = CONNECTIONS) -> Iterator[None]:
    """`rate` requests a second from the client's namespace for at least `seconds`; none at a rate of zero."""
    if rate == 0:
        yield
        return
    options = ("-z", f"{seconds:.0f}s", "-q", f"{rate:g}", "-c", str(connections))
    generator = site.start(site.client, program("oha"), "--no-tui", *options, url)
    try:
        yield
    finally:
        generator.process.terminate()
        generator.wait()


def fetch(site: Stage, namespace: str, url: str) -> str:
    """A page, from inside a namespace. Raises LabError."""
    code = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())"
    done = subprocess.run(site.inside(namespace, sys.executable, "-c", code, url), capture_output=True, text=True)
    if done.returncode != 0:
        raise LabError(f"{url} does not answer: {done.stderr.strip()}")
    return done.stdout.removesuffix("\n")


def requests_seen(site: Stage) -> float:
    """What the monitor's page counted; it is on loopback of the server's namespace."""
    page = fetch(site, site.server, "http://127.0.0.1:9465/metrics")
    match = re.search(r"^slackwater_requests_total (\S+)", page, re.MULTILINE)
    if match is None:
        raise LabError("the monitor's page does not have the requests")
    return float(match[1])


# --- the parts of the report


def side_by_side(report: Report, site: Stage, rounds: int, seconds: float, rate: int) -> None:
    """Each program alone, one after the other in each round."""
    title = f"{rate:,} requests/s" if rate else "Without traffic"
    report.add(f"\n## {title}\n")
    costs: dict[str, list[Cost]] = {name: [] for name in PROGRAMS}
    rates: list[float] = []
    for _ in range(rounds):
        for name, start in PROGRAMS.items():
            warm_up_s = AT_REST_S if name in MONITORS and not rate else WARM_UP_S
            with load(site, rate, WARM_UP_S + seconds + 30), running(site, start, warm_up_s) as pid:
                if name == "node_exporter":
                    fetch(site, site.client, METRICS)
                    with load(site, 1 / PERIOD_S, seconds + 30, METRICS, 1):
                        costs[name].append(cost(pid, seconds))
                elif name in MONITORS:
                    before, start_s = requests_seen(site), time.monotonic()
                    costs[name].append(cost(pid, seconds))
                    rates.append((requests_seen(site) - before) / (time.monotonic() - start_s))
                else:
                    costs[name].append(cost(pid, seconds))
    exporter_share = statistics.median(each.cpu_share for each in costs["node_exporter"])
    rows = [
        (
            name,
            spread([100 * each.cpu_share for each in measured]),
            *(
                spread([getattr(each, key) for each in measured], ".1f")
                for key in ("rss_mib", "pss_mib", "wake_ups_per_s")
            ),
            f"{statistics.median(each.cpu_share for each in measured) / exporter_share:.2f}" if exporter_share else "-",
        )
        for name, measured in costs.items()
    ]
    heads = ("", "CPU, % of one core", "resident, MiB", "proportional, MiB", "wake-ups/s", "CPU to node_exporter's")
    report.table(heads, rows)
    how = "The monitor after a minute without traffic: its canary then runs once a second."
    if rate:
        how = f"`oha -q {rate} -c {CONNECTIONS}` on Apache's static page of a kilobyte, through the sniffer."
    report.add(f"\n{how} The monitors saw {spread(rates, ',.0f')} requests/s.")


def bytes_per_sample(report: Report, site: Stage) -> None:
    """The size of what goes over the wire once a period."""
    command = site.inside(
        site.server, program("slackwater-monitor"), "once", "--json", "--config", str(site.folder / "node.toml")
    )
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=30)
    if done.returncode != 0:
        raise LabError(f"`slackwater-monitor once` failed: {done.stderr.decode().strip()}")
    sample = len(done.stdout.strip())
    with running(site, node_exporter):
        page = len(fetch(site, site.client, METRICS))
    report.add(f"\nBytes a period: a Sample {sample:,} (JSON), a page of node_exporter {page:,}.")


def effect(report: Report, site: Stage, rounds: int, seconds: float, rate: int) -> None:
    """The web server's p99 with the monitor on and off, one after the other in each round, in random order."""
    p99: dict[bool, list[float]] = {False: [], True: []}
    options = ("-z", f"{seconds:.0f}s", "-q", str(rate), "-c", str(CONNECTIONS), "--latency-correction")

    def measured() -> float:
        figures = oha(site, "page.html", *options)
        value: float = figures["latencyPercentiles"]["p99"]
        return value * 1e3

    for _ in range(rounds):
        for is_on in random.sample((False, True), 2):
            if is_on:
                with running(site, MONITORS[BY_EVENT], warm_up_s=0.0):
                    p99[True].append(measured())
            else:
                p99[False].append(measured())
    pairs = [on - off for on, off in zip(p99[True], p99[False], strict=True)]
    change = statistics.median(pairs)
    noise = statistics.median(abs(before - after) for before, after in itertools.pairwise(p99[False]))
    low, high = quantile_test(pairs).confidence_interval(CONFIDENCE)
    report.add("\n## The web server's own p99\n")
    heads = ("p99 without, ms", "with, ms", "difference of each round, ms")
    report.table(heads, [(spread(p99[False]), spread(p99[True]), spread(pairs, "+.3f"))])
    verdict = "within" if abs(change) <= noise else "beyond"
    report.add(
        f"\nThe median difference, {change:+.3f} ms, lies between {low:+.3f} and {high:+.3f} ms with {CONFIDENCE:.0%}"
        f" confidence at least (sign test). It is {verdict} the noise: a run without the monitor differs from the next"
        f" one by {noise:.3f} ms (median).\n\n`oha -z {seconds:.0f}s -q {rate} -c {CONNECTIONS} --latency-correction`"
        f" (open loop), {rounds} rounds with the monitor by event and without, in random order."
    )


def go_alone() -> None:
    """Starts anew as the first process of a PID namespace."""
    if os.geteuid() == 0 and os.getpid() != 1:
        words = [sys.executable, "-m", "slackwater_lab.bench.monitor", *sys.argv[1:]]
        command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *words]
        os.execvp(command[0], command)


def server_threads() -> int:
    """Threads of the web server: no other one is in this PID namespace."""
    names = [path for path in Path("/proc").glob("[0-9]*/comm") if path.read_text().startswith(("apache2", "php-fpm"))]
    return sum(len(list((path.parent / "task").iterdir())) for path in names)


def start_bus(site: Stage) -> None:
    """A NATS of its own in the server's namespace, where the monitor finds it on loopback."""
    site.start(site.server, program("nats-server"), "-a", "127.0.0.1", "-p", "4222")


OPTIONS = {
    "--rounds": (int, 5, "rounds of each measurement"),
    "--seconds": (float, 20.0, "length of each measurement"),
    "--rate": (int, 2000, "requests a second through the sniffer"),
    "--pairs": (int, 15, "runs with and without the monitor for p99"),
}


def bench(report: Report, options: argparse.Namespace) -> None:
    if options.pairs < LEAST_PAIRS:
        raise LabError(f"--pairs {options.pairs}: expected at least {LEAST_PAIRS}, for an interval")
    with scratch() as folder, stage(folder) as site:
        start_server(site)
        start_bus(site)
        report.note(
            f"All take their figures every {PERIOD_S} s: `slackwater-monitor run` (canary,"
            " capture, page) with `pace.by_event = false`, `prometheus-node-exporter` fetched that often over HTTP,"
            " `collectd -f` with"
            f" `Interval {PERIOD_S}` (cpu, memory, load, contextswitch, interface, disk, processes) to a UDP port."
            " By event, as it is installed, the monitor sends a Sample a second while nothing happens."
            f" {options.rounds} rounds of {options.seconds:g} s, medians and ranges. CPU time is the scheduler's"
            " (/proc/PID/task/*/schedstat), wake-ups are context switches of all threads. The web server (Apache,"
            f" php-fpm) has {server_threads()} threads."
        )
        for rate in (0, options.rate):
            side_by_side(report, site, options.rounds, options.seconds, rate)
        bytes_per_sample(report, site)
        effect(report, site, options.pairs, options.seconds / 2, options.rate)


if __name__ == "__main__":
    go_alone()
    sys.exit(run("Benchmark of the monitor", __doc__, OPTIONS, bench))
