#!/usr/bin/env python3
"""What a controller costs in calm: CPU time and memory of each process of `slackwater serve` (`make bench-controller`).

Everything is real (serve, its children, nats-server, HAProxy) but the nodes: their Samples, full ones of every
collector, are published here. A controller reads no requests, so the web servers' rate does not matter to it. Memory is
given twice: resident (pages that processes share count in each) and proportional (each page counts once).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import time
from pathlib import Path

import nats

from slackwater.core.state_dir import read_serve
from slackwater_lab.bench.detector import bodies
from slackwater_lab.bench.harness import Report, background, broker, memory_mib, run, scratch
from slackwater_lab.bench.lbengine import haproxy
from slackwater_lab.cluster.balancer import free_port
from slackwater_lab.cluster.paths import LabError
from slackwater_lab.cluster.process_use import ProcessUse, process_use
from slackwater_lab.cluster.spawn import wait_until

START_WITHIN_S = 60.0
BUSY = 0.4
"""Share of its CPU that each node's web server takes."""
OPTIONS = {
    "--nodes": (int, 3, "servers in the pool, each with a monitor"),
    "--per-second": (float, 5.0, "Samples a second from each"),
    "--warm": (float, 20.0, "seconds before the measurement"),
    "--seconds": (float, 60.0, "how long it is measured"),
    "--code": (Path, None, "folder of another checkout whose controller is measured instead"),
}


def uses(pids: dict[str, int]) -> dict[str, ProcessUse]:
    """What each has used so far; raises LabError when one is gone."""
    usage = {name: process_use(pid) for name, pid in pids.items()}
    if gone := [name for name, use in usage.items() if use is None]:
        raise LabError(f"{', '.join(gone)} ended during the measurement")
    return {name: use for name, use in usage.items() if use is not None}


async def talk(url: str, nodes: int, per_second: float) -> None:
    """Publishes the nodes' Samples for ever, evenly spread in time."""
    bus = await nats.connect(url)
    calm = bodies(1, False, BUSY)
    number, next_s = 0, time.monotonic()
    while True:
        seq, node = divmod(number, nodes)
        head = (
            f'{{"v":1,"node":"web{node}","pool":"web","time_unix_s":{time.time():.4f},'
            f'"boot_id":"b","seq":{seq},"period_s":{1 / per_second},"next_within_s":{1 / per_second},'
        )
        await bus.publish(f"slackwater.sample.web.web{node}", head.encode() + calm[(seq * 7 + node * 13) % len(calm)])
        number += 1
        next_s += 1 / (per_second * nodes)
        await asyncio.sleep(max(0.0, next_s - time.monotonic()))


def serve(config: Path, folder: Path, code: Path | None, stack: contextlib.ExitStack) -> dict[str, int]:
    """Starts a controller; gives the pids of its processes by name, once all of them work."""
    path = {"PYTHONPATH": str(code.resolve())} if code else {}
    command = [sys.executable, "-P", "-m", "slackwater.controller.cli.main", "serve", "--config", str(config)]
    pid = stack.enter_context(background(folder, "serve", *command, env=os.environ | path))

    def works() -> bool:
        serving = read_serve(folder) or {}
        return bool(serving) and all(serving["works"].values())

    wait_until(works, f"all parts of the controller work: see {folder / 'serve.log'}", START_WITHIN_S)
    children = (read_serve(folder) or {})["children"]
    return {"serve": pid, **{name: pid for name, pid in children.items() if pid is not None}}


def bench(report: Report, options: argparse.Namespace) -> None:
    with scratch() as folder, contextlib.ExitStack() as stack:
        socket_path = stack.enter_context(haproxy(folder, options.nodes, "roundrobin"))
        bus, bus_pid = stack.enter_context(broker(folder))
        url = f"nats://{bus}"
        config = folder / "controller.toml"
        config.write_text(
            f'state_dir = "{folder}/state"\n[bus]\nurl = "{url}"\n[web]\nlisten = "127.0.0.1:{free_port(0)}"\n'
            f'[[pool]]\nname = "web"\nbackend = "web"\nsocket = "{socket_path}"\nmode = "act"\n'
        )
        (folder / "state").mkdir()
        pids = serve(config, folder / "state", options.code, stack) | {"nats-server": bus_pid}

        async def measured() -> tuple[dict[str, ProcessUse], dict[str, ProcessUse], float]:
            talking = asyncio.create_task(talk(url, options.nodes, options.per_second))
            await asyncio.sleep(options.warm)
            before, began_s = uses(pids), time.monotonic()
            await asyncio.sleep(options.seconds)
            after, seconds = uses(pids), time.monotonic() - began_s
            if talking.done():
                talking.result()
            talking.cancel()
            return before, after, seconds

        before, after, seconds = asyncio.run(measured())
        rows = [
            (name, 100 * (after[name].cpu_s - before[name].cpu_s) / seconds, *memory_mib(pid))
            for name, pid in pids.items()
        ]
    report.note(
        f"{options.nodes} nodes in calm, {options.per_second:g} Samples a second from each, {seconds:.0f} s after "
        f"{options.warm:g} s of warming up."
    )
    _, *columns = zip(*rows, strict=True)
    cpu, resident, proportional = map(sum, columns)
    rows.append(("all", cpu, resident, proportional))
    heads = ("process", "% of a core", "resident MiB", "proportional MiB")
    report.table(heads, [(name, f"{cpu:.2f}", f"{rss:.1f}", f"{pss:.1f}") for name, cpu, rss, pss in rows])


if __name__ == "__main__":
    sys.exit(run("What a controller costs", __doc__, OPTIONS, bench))
