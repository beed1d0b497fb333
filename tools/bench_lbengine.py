#!/usr/bin/env python3
"""Measures lbengine on a real HAProxy (`make bench-lbengine`): Verdict to weight set, and large batches of weights.

Prints the machine, the command and the numbers. The servers of the backend are not there: weights need none.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from lbengine.engine import Engine
from lbengine.haproxy import BalancerError, HAProxy
from slackwater.config import LbengineSettings, PoolSettings
from slackwater.journal import Journal, journal_path
from slackwater.messages import State, Verdict

START_WITHIN_S = 10.0


@contextmanager
def haproxy(folder: Path, servers: int, balance: str) -> Iterator[str]:
    """A HAProxy with so many servers; gives its admin socket."""
    program = shutil.which("haproxy")
    if program is None:
        sys.exit("error: haproxy is not on the PATH")
    path = folder / "admin.sock"
    lines = "\n".join(f"    server web{n} 127.0.0.1:{1 + n % 60000} weight 100 maxconn 100" for n in range(servers))
    configuration = folder / "haproxy.cfg"
    configuration.write_text(
        f"global\n    stats socket {path} mode 600 level admin\ndefaults\n    mode http\n    timeout connect 1s\n"
        f"    timeout client 5s\n    timeout server 5s\nbackend web\n    balance {balance}\n{lines}\n"
    )
    with (folder / "haproxy.log").open("wb") as log:
        process = subprocess.Popen([program, "-db", "-f", str(configuration)], stdout=log, stderr=log)
    try:
        deadline_s = time.monotonic() + START_WITHIN_S
        while True:
            try:
                HAProxy(str(path), "web", 1.0).read()
                break
            except BalancerError as error:
                if process.poll() is not None or time.monotonic() > deadline_s:
                    sys.exit(f"error: HAProxy does not start: {error}\n{(folder / 'haproxy.log').read_text()}")
                time.sleep(0.02)
        yield str(path)
    finally:
        process.terminate()
        process.wait()


class Timed(HAProxy):
    """Notes when the last weights were set and read back."""

    set_s = 0.0

    def set_weights(self, weights: Mapping[str, int]) -> None:
        super().set_weights(weights)
        self.set_s = time.perf_counter()


def verdict(node: str, state: State, number: int) -> Verdict:
    slow = state == "interference"
    return Verdict(
        v=1,
        node=node,
        pool="web",
        time_unix_s=float(number),
        state=state,
        since_unix_s=0.0,
        severity=0.8 if slow else 0.0,
        path=["bench"],
        model="bench",
        capacity_rps=60.0 if slow else 300.0,
        capacity_stderr_rps=3.0,
        rps=150.0,
        rt_p95_ms=60.0 if slow else 4.0,
    )


def verdict_to_weight(folder: Path, servers: int, rounds: int, law: str) -> list[float]:
    """Milliseconds from waking the engine with a Verdict to the weight set in HAProxy and read back.

    With everything in between: the look at HAProxy, the law, the baseline on disk, the Change in the journal on disk.
    """
    taken_ms = []
    with haproxy(folder, servers, "roundrobin") as path, Journal.open(journal_path(folder)) as journal:
        pool = PoolSettings(name="web", backend="web", socket=path, mode="act", law=law)  # type: ignore[arg-type]
        balancer = Timed(path, "web", 10.0)
        engine = Engine(pool, LbengineSettings(ramp_s=0.001), folder, journal, balancer=balancer)
        now_s = 0.0
        for number in range(rounds):
            for state in ("calm", "calm", "calm", "interference"):
                now_s += 1.0
                for n in range(servers):
                    slow = state == "interference" and n == number % servers
                    engine.inbox.put(verdict(f"web{n}", "interference" if slow else "calm", number), now_s)
                began_s = time.perf_counter()
                engine.cycle(now_s)
                if state == "interference":
                    taken_ms.append((balancer.set_s - began_s) * 1e3)
            engine.outbox.clear()
            if not any(change.after != 100 for change in journal.changes("web", 1)):
                sys.exit("error: the weight was not lowered")
    return taken_ms


def batches(folder: Path, changes: int, rounds: int) -> list[float]:
    """Milliseconds for so many weights in one call, each answer read, and all weights read back."""
    taken_ms = []
    with haproxy(folder, changes, "roundrobin") as path:
        client = HAProxy(path, "web", 10.0)
        for number in range(rounds):
            weights = {f"web{n}": (number + n) % 200 for n in range(changes)}
            began_s = time.perf_counter()
            client.set_weights(weights)
            taken_ms.append((time.perf_counter() - began_s) * 1e3)
    return taken_ms


def show(what: str, taken_ms: Sequence[float]) -> None:
    ordered = sorted(taken_ms)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    print(f"| {what} | {statistics.median(ordered):.1f} | {p99:.1f} | {ordered[-1]:.1f} | {len(ordered)} |")


def cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="Example: make bench-lbengine")
    parser.add_argument("--servers", type=int, default=100, help="servers in the pool (default 100)")
    parser.add_argument("--changes", type=int, default=1000, help="weights in one batch (default 1000)")
    parser.add_argument("--rounds", type=int, default=200, help="episodes, and a tenth as many batches (default 200)")
    options = parser.parse_args()
    version = subprocess.run(["haproxy", "-v"], capture_output=True, text=True).stdout.splitlines()[0]
    print(f"{cpu_model()}, {os.cpu_count()} cores, kernel {platform.release()}, Python {platform.python_version()}")
    print(f"{version}; load average {os.getloadavg()[0]:.1f}")
    print(f"`{' '.join(['python', *sys.argv])}`\n")
    print("| what | median ms | p99 ms | worst ms | rounds |\n|---|---|---|---|---|")
    for law in ("optimal", "tail"):
        with tempfile.TemporaryDirectory(prefix="sw-") as name:
            taken = verdict_to_weight(Path(name), options.servers, options.rounds, law)
        show(f"Verdict to weight set, {options.servers} servers, law {law}", taken)
    with tempfile.TemporaryDirectory(prefix="sw-") as name:
        taken = batches(Path(name), options.changes, max(1, options.rounds // 10))
    show(f"{options.changes} weights in one batch, set and read back", taken)


if __name__ == "__main__":
    main()
