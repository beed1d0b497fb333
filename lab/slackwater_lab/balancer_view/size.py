"""What a look at a thousand servers costs that have no requests: the balancer's answer, reading it, and all that the
balancer's view does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from slackwater.core.config import parse
from slackwater.core.messages import Ask, Sample, encode
from slackwater.lbengine.backends.haproxy.haproxy import HAProxy
from slackwater.lbengine.view.service import PoolWatcher
from slackwater_lab.balancer_view.front import FIRST_PORT, POOL, READY_S, answers
from slackwater_lab.balancer_view.looks import counters_of, cpu_of
from slackwater_lab.cluster.hosts import BRIDGE
from slackwater_lab.cluster.lab import Lab
from slackwater_lab.cluster.paths import LAB_DIR, program
from slackwater_lab.cluster.spawn import Program, wait_until

SERVERS = (100, 1000)
LOOKS = 20
TIMEOUT_S = 5.0
SNIFFED_S = 4.0
SETTLED_S = 3.0
"""Until the view asks the balancer as seldom as it does in the long run."""


def run(lab: Lab, sniffer: str, progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """CPU milliseconds of HAProxy and of who reads, for each look; gives a row for each size and way."""
    rows = []
    for servers in SERVERS:
        rows += [*_asked(lab, servers, sniffer), _sniffed(lab, servers, sniffer)]
        progress(f"{servers} servers looked at")
    return rows


def _asked(lab: Lab, servers: int, sniffer: str) -> list[dict[str, Any]]:
    file, path = LAB_DIR / "size.cfg", LAB_DIR / "size.sock"
    lines = "\n".join(f"    server s{n} {_address(n)} weight 100" for n in range(servers))
    file.write_text(
        f"global\n    stats socket {path} mode 600 level admin\n"
        "defaults\n    mode http\n    timeout connect 5s\n    timeout client 5s\n    timeout server 5s\n"
        f"frontend in\n    bind 127.0.0.1:{FIRST_PORT}\n    default_backend {POOL}\n"
        f"backend {POOL}\n{lines}\n"
    )
    running = lab.add(
        Program.start("size", lab.in_front([program("haproxy-3.4"), "-db", "-f", str(file)]), LAB_DIR / "size.log")
    )
    try:
        wait_until(lambda: answers(path), f"HAProxy at {path}", READY_S, watch=[running])
        balancer, pid = HAProxy(str(path), POOL, TIMEOUT_S), running.process.pid
        looks: dict[str, Callable[[], object]] = {
            "counters, with weights and states": balancer.read,
            "counters alone": lambda: counters_of(balancer.ask(f"show stat {POOL} 4 -1")[0]),
        }
        rows = [{"servers": servers, "what": kind, **_spent(look, pid)} for kind, look in looks.items()]
        viewed = asyncio.run(_viewed(str(path), pid, sniffer))
        return [*rows, {"servers": servers, "what": "the balancer's view, without sniffer and bus", **viewed}]
    finally:
        running.stop()
        lab.programs.remove(running)


def _spent(look: Callable[[], object], pid: int) -> dict[str, float]:
    look()
    own_s, haproxy_s = time.thread_time(), cpu_of(pid)
    for _ in range(LOOKS):
        look()
    return {
        "own_ms": (time.thread_time() - own_s) / LOOKS * 1000,
        "haproxy_ms": (cpu_of(pid) - haproxy_s) / LOOKS * 1000,
    }


async def _viewed(path: str, pid: int, sniffer: str) -> dict[str, float]:
    """CPU milliseconds for each look of the view at this HAProxy, Samples made and encoded."""
    settings = parse(
        f'[balancer_view]\nmode = "on"\nsniffer = "{sniffer}"\n[[pool]]\nname = "web"\n'
        f'backend = "{POOL}"\nsocket = "{path}"\n',
        "lab",
    )

    async def send(messages: Sequence[Sample | Ask]) -> None:
        for message in messages:
            encode(message)

    looks = 0

    def beat() -> None:
        nonlocal looks
        looks += 1

    stop = asyncio.Event()
    view = PoolWatcher(settings.pool[0], settings, send, listens_s=0.0)
    viewing = asyncio.create_task(view.run(stop, beat))
    await asyncio.sleep(SETTLED_S)
    begun_s, haproxy_s, looks_before = time.process_time(), cpu_of(pid), looks
    await asyncio.sleep(SNIFFED_S)
    own_s, count = time.process_time() - begun_s, looks - looks_before
    haproxy_s = cpu_of(pid) - haproxy_s
    stop.set()
    await viewing
    return {"own_ms": own_s / count * 1000, "haproxy_ms": haproxy_s / count * 1000}


def _sniffed(lab: Lab, servers: int, sniffer: str) -> dict[str, Any]:
    watched = [word for n in range(servers) for word in ("--server", _address(n))]
    argv = lab.in_front([sniffer, "servers", "-i", BRIDGE, *watched, "--every", "0.2"])
    running = lab.add(Program.start("size", argv, LAB_DIR / "size.log"))
    try:
        time.sleep(1.0)
        before_s, begun_s = cpu_of(running.process.pid), time.monotonic()
        time.sleep(SNIFFED_S)
        looks = (time.monotonic() - begun_s) / 0.2
        return {
            "servers": servers,
            "what": "packets, of servers without requests",
            "own_ms": (cpu_of(running.process.pid) - before_s) / looks * 1000,
            "haproxy_ms": 0.0,
        }
    finally:
        running.stop()
        lab.programs.remove(running)


def _address(number: int) -> str:
    return f"198.18.78.{number % 250 + 1}:{8000 + number // 250}"
