"""What the balancer's view costs with a thousand servers that are all asked: a real HAProxy, nginx, nats-server and
sniffer on the loopback interface, without the lab.

`python -m slackwater_lab.balancer_view.busy` prints the row.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from slackwater.core.bus.bus import Bus
from slackwater.core.config import parse
from slackwater.core.messages import Ask, Sample
from slackwater.lbengine.view import agreement, service
from slackwater.lbengine.view.service import PoolWatcher
from slackwater_lab.balancer_view.looks import cpu_of
from slackwater_lab.cluster.paths import BIN, program

SERVERS = 1000
RATE_RPS = 4000
WARM_S, MEASURED_S = 14.0, 6.0
PORT, BACK_PORT, BUS_PORT = 18080, 18000, 14334
READY_S = 15.0
FEW_REQUESTS = 10
"""So many decide here whether packets show all requests: `agreement.REQUESTS` would take minutes."""


def address(number: int) -> str:
    """All are this machine's own: one nginx answers at each."""
    return f"127.1.{number // 250}.{number % 250 + 1}:{BACK_PORT}"


def haproxy_config(folder: Path) -> str:
    servers = "\n".join(f"  server s{n} {address(n)} weight 100" for n in range(SERVERS))
    return (
        f"global\n  nbthread 1\n  stats socket {folder}/admin.sock mode 600 level admin\ndefaults\n  mode http\n"
        "  timeout connect 5s\n  timeout client 30s\n  timeout server 30s\n"
        f"frontend in\n  bind 127.0.0.1:{PORT}\n  default_backend web\nbackend web\n  balance roundrobin\n{servers}\n"
    )


def nginx_config(folder: Path) -> str:
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "".join(f"{kind}_temp_path {folder}/temporary; " for kind in kinds)
    return (
        f"daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.log;\n"
        "events { worker_connections 8000; }\n"
        f"http {{ access_log off; keepalive_requests 1000000; {places}\n"
        f"server {{ listen 0.0.0.0:{BACK_PORT}; location / {{ return 200 'here'; }} }} }}\n"
    )


@contextlib.contextmanager
def running(*commands: Sequence[str]) -> Iterator[list[int]]:
    """The pids of these programs, which are ended afterwards."""
    programs: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            programs.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        yield [each.pid for each in programs]
    finally:
        for each in programs:
            each.terminate()
        for each in programs:
            each.wait()


def wait_for(port: int) -> None:
    until_s = time.monotonic() + READY_S
    while time.monotonic() < until_s:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.1)
    raise RuntimeError(f"nobody listens on port {port} within {READY_S:g} s")


async def measured(folder: Path, haproxy_pid: int) -> str:
    """A row of the table, from the CPU time of this process, the sniffer and HAProxy."""
    settings = parse(
        f'[balancer_view]\nmode = "on"\nsniffer = "{BIN}/slackwater-sniffer"\n'
        f'[[pool]]\nname = "web"\nbackend = "web"\nsocket = "{folder}/admin.sock"\n',
        "lab",
    )
    sent = 0
    bus = await Bus.connect(f"nats://127.0.0.1:{BUS_PORT}", "lab")

    async def publish(messages: Sequence[Sample | Ask]) -> None:
        nonlocal sent
        sent += len(messages)
        await bus.publish_together(messages)

    view = PoolWatcher(settings.pool[0], settings, publish, listens_s=0.0)
    stop = asyncio.Event()
    viewing = asyncio.create_task(view.run(stop))
    await asyncio.sleep(WARM_S)
    sniffers = [] if view._packets is None else [sniffer.pid for sniffer in view._packets._sniffers.values()]
    before = sent, time.process_time(), sum(map(cpu_of, sniffers)), cpu_of(haproxy_pid), time.monotonic()
    await asyncio.sleep(MEASURED_S)
    after = sent, time.process_time(), sum(map(cpu_of, sniffers)), cpu_of(haproxy_pid), time.monotonic()
    samples, own_s, sniffer_s, haproxy_s, took_s = (b - a for a, b in zip(before, after, strict=True))
    complete = sum(seen.complete for seen in view._servers)
    stop.set()
    await viewing
    await bus.close()
    return (
        f"{complete} of {SERVERS} servers with all requests in packets: {samples / took_s:.0f} Samples/s,"
        f" {own_s / max(samples, 1) * 1e6:.0f} us each; view {own_s / took_s:.1%} of a core, sniffer"
        f" {sniffer_s / took_s:.1%}, HAProxy with its requests {haproxy_s / took_s:.1%}"
    )


def main() -> None:
    gc.freeze()
    gc.set_threshold(service.COLLECT_AFTER, 20, 20)
    agreement.REQUESTS = FEW_REQUESTS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "haproxy.cfg").write_text(haproxy_config(folder))
        (folder / "nginx.conf").write_text(nginx_config(folder))
        servers = (
            [program("nginx"), "-c", f"{folder}/nginx.conf"],
            [program("haproxy-3.4"), "-db", "-f", f"{folder}/haproxy.cfg"],
            [program("nats-server"), "-a", "127.0.0.1", "-p", str(BUS_PORT)],
        )
        load_s = int(WARM_S + MEASURED_S + 5)
        load = [program("oha"), "--no-tui", "-q", str(RATE_RPS), "-c", "64", "-z", f"{load_s}s"]
        with running(*servers) as (_, haproxy_pid, _):
            for port in (BACK_PORT, PORT, BUS_PORT):
                wait_for(port)
            with running([*load, f"http://127.0.0.1:{PORT}/"]):
                print(asyncio.run(measured(folder, haproxy_pid)))


if __name__ == "__main__":
    main()
