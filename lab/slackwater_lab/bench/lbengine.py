#!/usr/bin/env python3
"""Measures lbengine on a real HAProxy (`make bench-lbengine`): Verdict to weight set, and large batches of weights.

"On the bus": real processes (nats-server, lbengine, journal), a Sample and a Verdict from every node five times a
second, and the time from publishing a Verdict until HAProxy itself shows the lower weight (it is asked every
half millisecond, past the code that is measured), and until the Change is heard that was made and read back. "In the
engine": one turn, from the Verdict in its inbox to the weight read back. Servers are not behind the backend: weights
need none.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from slackwater.core.bus.bus import Bus
from slackwater.core.config import LbengineSettings
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import Change, Cpu, Sample, State, Traffic, Verdict
from slackwater.lbengine.backends.haproxy.haproxy import HAProxy
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.lbengine.balancer import BalancerError
from slackwater.lbengine.engine import Engine
from slackwater_lab import played_verdict
from slackwater_lab.bench.harness import Report, background, broker, measure, run, scratch
from slackwater_lab.cluster.paths import LabError, program
from slackwater_lab.cluster.spawn import wait_until

START_WITHIN_S = 10.0
HEARD_WITHIN_S = 30.0
PERIOD_S = 0.2
POLL_S = 0.0005
"""How often HAProxy is asked for a weight."""
ENOUGH = 100
"""Below this number of rounds a 99th percentile is only the worst value."""


@contextmanager
def haproxy(folder: Path, servers: int, balance: str) -> Iterator[str]:
    """A HAProxy with this number of servers; gives its admin socket."""
    path = folder / "admin.sock"
    lines = "\n".join(f"    server web{n} 127.0.0.1:{1 + n % 60000} weight 100 maxconn 100" for n in range(servers))
    configuration = folder / "haproxy.cfg"
    configuration.write_text(
        f"global\n    stats socket {path} mode 600 level admin\ndefaults\n    mode http\n    timeout connect 1s\n"
        f"    timeout client 5s\n    timeout server 5s\nbackend web\n    balance {balance}\n{lines}\n"
    )

    def answers() -> bool:
        try:
            HAProxy(str(path), "web", 1.0).read()
        except BalancerError:
            return False
        return True

    with background(folder, "haproxy", program("haproxy"), "-db", "-f", str(configuration)):
        wait_until(answers, f"HAProxy answers: {folder / 'haproxy.log'}", START_WITHIN_S)
        yield str(path)


class Timed(HAProxy):
    """Notes when the last weights were set and read back."""

    set_s = 0.0

    def set_weights(self, weights: Mapping[str, int]) -> None:
        super().set_weights(weights)
        self.set_s = time.perf_counter()


def verdict(node: str, state: State, time_unix_s: float) -> Verdict:
    rt_p95_ms = 60.0 if state == "interference" else 4.0
    return played_verdict.verdict(
        node, state, time_unix_s=time_unix_s, capacity_stderr_rps=3.0, rps=150.0, rt_p95_ms=rt_p95_ms
    )


def verdict_to_weight(folder: Path, servers: int, rounds: int, law: str) -> list[float]:
    """Milliseconds from waking the engine with a Verdict to the weight set in HAProxy and read back.

    With everything in between: the look at HAProxy, the law, the baseline on disk, the Change in the journal on disk.
    """
    taken_ms = []
    with haproxy(folder, servers, "roundrobin") as path, Journal.open(journal_path(folder)) as journal:
        pool = HAProxyPool(name="web", backend="web", socket=path, mode="act", law=law)  # type: ignore[arg-type]
        balancer = Timed(path, "web", 10.0)
        engine = Engine(pool, LbengineSettings(), folder, journal, balancer=balancer)
        now_s = 0.0
        for number in range(rounds):
            for state in ("calm", "calm", "calm", "interference"):
                now_s += 1.0
                for n in range(servers):
                    slow = state == "interference" and n == number % servers
                    engine.inbox.put(verdict(f"web{n}", "interference" if slow else "calm", now_s), now_s)
                began_s = time.perf_counter()
                engine.cycle(now_s)
                if state == "interference":
                    taken_ms.append((balancer.set_s - began_s) * 1e3)
            engine.outbox.clear()
            if not any(change.after != 100 for change in journal.changes("web", 1)):
                raise LabError("the weight was not lowered")
    return taken_ms


class Shown:
    """A connection to HAProxy's admin socket, in the interactive mode, that watches a weight."""

    def __init__(self, path: str) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.settimeout(HEARD_WITHIN_S)
        self._connection.connect(path)
        self._ask("prompt")

    def lowered(self, server: str, initial: int = 100) -> float:
        """Waits until HAProxy shows less than the initial weight; when that was, by `time.perf_counter`."""
        until_s = time.perf_counter() + HEARD_WITHIN_S
        while int(self._ask(f"get weight web/{server}").split()[0]) >= initial:
            if time.perf_counter() > until_s:
                raise LabError(f"HAProxy shows no lower weight for {server} within {HEARD_WITHIN_S:g} s")
            time.sleep(POLL_S)
        return time.perf_counter()

    def _ask(self, line: str) -> str:
        self._connection.sendall(line.encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n> "):
            answer += self._connection.recv(65536)
        return answer.decode()

    def close(self) -> None:
        self._connection.close()


class Nodes:
    """A controller's processes, and what 100 nodes send; measures from outside, on the bus and in HAProxy."""

    def __init__(self, bus: Bus, servers: int, shown: Shown) -> None:
        self.bus = bus
        self.shown = shown
        self.states: dict[str, State] = {f"web{n}": "calm" for n in range(servers)}
        self._heard: asyncio.Queue[tuple[Change, float]] = asyncio.Queue()

    async def listen(self) -> None:
        await self.bus.subscribe(
            "change", lambda change: self._heard.put_nowait((change, time.perf_counter())), pool="web"
        )

    async def talk(self) -> None:
        """Every node's Sample and Verdict, each period."""
        seq = 0
        while True:
            began_s, now_unix_s = time.perf_counter(), time.time()
            for node, state in self.states.items():
                await self.bus.publish(
                    Sample(
                        v=1,
                        node=node,
                        pool="web",
                        time_unix_s=now_unix_s,
                        boot_id="bench",
                        seq=seq,
                        period_s=PERIOD_S,
                        cpu=Cpu(scope="system", utilisation=0.4),
                        traffic=Traffic(rps=150.0, rt_p50_ms=2.0, rt_p95_ms=4.0),
                    )
                )
                await self.bus.publish(verdict(node, state, now_unix_s))
            seq += 1
            await asyncio.sleep(max(0.0, began_s + PERIOD_S - time.perf_counter()))

    async def change(self, node: str, state: State, expected: Callable[[Change], bool]) -> float:
        """Publishes another state of a node; gives the seconds until the expected Change is heard."""
        while not self._heard.empty():
            self._heard.get_nowait()
        self.states[node] = state
        began_s = time.perf_counter()
        await self.bus.publish(verdict(node, state, time.time()))
        async with asyncio.timeout(HEARD_WITHIN_S):
            while True:
                change, heard_s = await self._heard.get()
                if change.what == "weight" and change.applied and change.target == node and expected(change):
                    return heard_s - began_s

    async def episodes(self, rounds: int) -> tuple[list[float], list[float]]:
        """Milliseconds from the Verdict until HAProxy shows the lower weight, and until the Change is heard."""
        shown_ms, heard_ms = [], []
        dice = random.Random(1)
        for number in range(rounds):
            await asyncio.sleep(dice.uniform(0.0, PERIOD_S))  # at any time of the engine's own turns
            node = f"web{number % len(self.states)}"
            watching = asyncio.create_task(asyncio.to_thread(self.shown.lowered, node))
            await asyncio.sleep(0.0)  # it watches from before the Verdict
            began_s = time.perf_counter()
            heard_ms.append(1e3 * await self.change(node, "interference", lambda change: int(change.after or 0) < 100))
            shown_ms.append(1e3 * (await watching - began_s))
            await self.change(node, "calm", lambda change: change.after == 100)
        return shown_ms, heard_ms


def on_the_bus(folder: Path, servers: int, rounds: int) -> tuple[list[float], list[float]]:
    """`Nodes.episodes`, with everything running."""
    config = folder / "controller.toml"
    run = [sys.executable, "-m", "slackwater.controller.cli.main", "run"]
    with contextlib.ExitStack() as stack:
        listen, _ = stack.enter_context(broker(folder))
        admin_socket = stack.enter_context(haproxy(folder, servers, "roundrobin"))
        config.write_text(
            f'state_dir = "{folder}"\n[bus]\nurl = "nats://{listen}"\n'
            f'[[pool]]\nname = "web"\nbackend = "web"\nsocket = "{admin_socket}"\nmode = "act"\n'
        )
        stack.enter_context(background(folder, "journal", *run, "journal", "--config", str(config)))
        stack.enter_context(background(folder, "lbengine", *run, "lbengine", "--config", str(config)))

        shown = Shown(admin_socket)
        stack.callback(shown.close)

        async def measure() -> tuple[list[float], list[float]]:
            bus = await Bus.connect(f"nats://{listen}", "bench")
            nodes = Nodes(bus, servers, shown)
            await nodes.listen()
            talking = asyncio.create_task(nodes.talk())
            await nodes.change("web0", "interference", lambda change: int(change.after or 0) < 100)  # all are up then
            await nodes.change("web0", "calm", lambda change: change.after == 100)
            taken_ms = await nodes.episodes(rounds)
            talking.cancel()
            await bus.close()
            return taken_ms

        return asyncio.run(measure())


def batches(folder: Path, changes: int, rounds: int) -> list[float]:
    """Milliseconds for `changes` weights in one call, each answer read, and all weights read back."""
    taken_ms = []
    with haproxy(folder, changes, "roundrobin") as path:
        client = HAProxy(path, "web", 10.0)
        for number in range(rounds):
            weights = {f"web{n}": (number + n) % 200 for n in range(changes)}
            began_s = time.perf_counter()
            client.set_weights(weights)
            taken_ms.append((time.perf_counter() - began_s) * 1e3)
    return taken_ms


def row(title: str, taken_ms: Sequence[float]) -> tuple[str, ...]:
    ordered = sorted(taken_ms)
    p99 = f"{ordered[int(0.99 * len(ordered))]:.1f}" if len(ordered) >= ENOUGH else "-"
    return title, f"{statistics.median(ordered):.1f}", p99, f"{ordered[-1]:.1f}", str(len(ordered))


OPTIONS = {
    "--servers": (int, 100, "servers in the pool"),
    "--changes": (int, 1000, "weights in one batch"),
    "--rounds": (int, 200, "episodes, cycles and batches; a 99th percentile needs 100"),
}


def bench(report: Report, options: argparse.Namespace) -> None:
    servers, rounds = options.servers, options.rounds
    with scratch() as folder:
        shown, heard = on_the_bus(folder, servers, rounds)
    rows = [
        row(f"Verdict to weight shown by HAProxy, {servers} servers, on the bus", shown),
        row(f"Verdict to Change heard, {servers} servers, on the bus", heard),
    ]
    for law in ("optimal", "ice"):
        with scratch() as folder:
            taken = verdict_to_weight(folder, servers, rounds, law)
        rows.append(row(f"Verdict to weight set, {servers} servers, in the engine, law {law}", taken))
    with scratch() as folder:
        taken = batches(folder, options.changes, rounds)
    rows.append(row(f"{options.changes} weights in one batch, set and read back", taken))
    report.note(measure([program("haproxy"), "-v"]).output.splitlines()[0])
    report.table(("what", "median ms", "p99 ms", "worst ms", "rounds"), rows)


if __name__ == "__main__":
    sys.exit(run("lbengine's speed", __doc__, OPTIONS, bench))
