"""HAProxies in front of the lab's hosts, in the shapes that the three ways are compared in.

Where servers are asked over TLS or HTTP/2, each host has an HAProxy of its own that takes the connections and passes
the requests on to its web server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slackwater_lab.cluster.balancer import ask
from slackwater_lab.cluster.hosts import Host
from slackwater_lab.cluster.lab import Lab
from slackwater_lab.cluster.paths import LAB_DIR, LabError, program, system_program
from slackwater_lab.cluster.spawn import Program, call, wait_until
from slackwater_lab.experiment.steady import stop_programs

POOL = "web"
FIRST_PORT = 18090
EDGE = "edge"
"""The program's name of a host's own HAProxy."""
Speech = Literal["http1", "tls", "h2"]
PORTS: dict[Speech, int] = {"http1": 80, "tls": 8443, "h2": 8080}
"""Where a host takes connections of each kind."""
BUCKETS_MS = (1, 2, 3, 4, 5, 7, 10, 14, 20, 28, 40, 56, 80, 112, 160, 224, 320, 450, 640, 1000, 2000, 5000)
"""Lower bounds of the table's buckets; before the first one is another."""
READY_S = 20.0
WITHOUT_TABLE = ("haproxy", "haproxy-2.2", "haproxy-2.4", "haproxy-2.8")
"""Versions that do not know `res.timer.hdr`."""


@dataclass(frozen=True)
class Shape:
    """One way to put HAProxy before the servers."""

    name: str
    haproxy: str = "haproxy-3.4"
    speech: Speech = "http1"
    keeps_connections: bool = True
    threads: int = 1
    balancers: int = 1
    retries: bool = False
    """The pool has one more server, on whose address nobody listens: each of its requests is sent to another one."""
    table: bool = True

    @property
    def has_table(self) -> bool:
        return self.table and self.haproxy not in WITHOUT_TABLE


SHAPES = (
    Shape("kept connections"),
    Shape("a new connection for each request", keeps_connections=False),
    Shape("TLS to the servers", speech="tls"),
    Shape("TLS, a new connection for each request", speech="tls", keeps_connections=False),
    Shape("HTTP/2 to the servers", speech="h2"),
    Shape("2 threads", threads=2),
    Shape("2 balancers", balancers=2),
    Shape("retries", retries=True),
    Shape("HAProxy 3.0", haproxy="haproxy-3"),
    Shape("HAProxy 2.6", haproxy="haproxy"),
)


def server_line(host: Host, shape: Shape) -> str:
    options = {"http1": "", "tls": " ssl verify none alpn http/1.1", "h2": " proto h2"}[shape.speech]
    return f"    server {host.name} {host.address}:{PORTS[shape.speech]}{options}"


def table_lines() -> str:
    """A table with a row for each server: its requests, the sum of their times in ms, and how many took at least as
    long as each bound."""
    counts = "\n".join(
        f"    http-response sc-inc-gpc({place},1) if {{ res.timer.hdr ge {bound} }}"
        for place, bound in enumerate(BUCKETS_MS, start=2)
    )
    return f"""\
    stick-table type string len 64 size 2k store gpc({len(BUCKETS_MS) + 2})
    http-response track-sc1 srv_name
    http-response sc-inc-gpc(0,1)
    http-response sc-add-gpc(1,1) res.timer.hdr
{counts}
"""


def configuration(hosts: Sequence[Host], shape: Shape, number: int, admin_socket: Path) -> str:
    """The file of balancer `number`, counted from 0."""
    lines = "\n".join(server_line(host, shape) for host in hosts)
    if shape.retries:
        lines += f"\n    server nobody {hosts[0].address}:9"
    reuse = "always" if shape.keeps_connections else "never\n    option httpclose"
    return f"""\
global
    maxconn 4000
    nbthread {shape.threads}
    stats socket {admin_socket} mode 600 level admin
    stats timeout 60s
defaults
    mode http
    option redispatch 1
    retries 3
    timeout connect 5s
    timeout client 30s
    timeout server 30s
    timeout http-keep-alive 30s
    default-server pool-purge-delay 1h
frontend in
    bind 127.0.0.1:{FIRST_PORT + number}
    default_backend {POOL}
backend {POOL}
    balance roundrobin
    http-reuse {reuse}
{table_lines() if shape.has_table else ""}{lines}
"""


def edge_configuration(host: Host) -> str:
    """A host's own HAProxy: TLS and HTTP/2 in front of its web server."""
    return f"""\
global
    maxconn 2000
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 30s
    timeout http-keep-alive 60s
    default-server pool-purge-delay 1h
frontend in
    bind {host.address}:{PORTS["tls"]} ssl crt {host.folder}/edge.pem alpn h2,http/1.1
    bind {host.address}:{PORTS["h2"]} proto h2
    default_backend own
backend own
    http-reuse always
    server own {host.address}:80
"""


@contextlib.contextmanager
def edges(lab: Lab) -> Iterator[None]:
    """Each host takes TLS and HTTP/2 meanwhile."""
    for host in lab.hosts:
        key, certificate = host.folder / "edge.key", host.folder / "edge.crt"
        call(
            [
                *(system_program("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
                *("-subj", f"/CN={host.name}.lab", "-keyout", str(key), "-out", str(certificate)),
            ]
        )
        (host.folder / "edge.pem").write_text(certificate.read_text() + key.read_text())
        file = lab.machines[host.name].write("edge.cfg", edge_configuration(host))
        lab.add(lab.machines[host.name].start(EDGE, [program("haproxy-3"), "-db", "-f", str(file)], "edge.log"))
    try:
        yield
    finally:
        stop_programs(lab, EDGE)


@dataclass(frozen=True)
class Front:
    """The balancers of a shape, running."""

    shape: Shape
    programs: Sequence[Program]
    admin_sockets: Sequence[Path]
    urls: Sequence[str]

    @property
    def pids(self) -> list[int]:
        return [
            next(int(line.split()[1]) for line in ask(path, "show info").splitlines() if line.startswith("Pid:"))
            for path in self.admin_sockets
        ]


@contextlib.contextmanager
def front(lab: Lab, shape: Shape) -> Iterator[Front]:
    """Starts the shape's balancers; they end with the context."""
    programs, sockets = [], []
    try:
        for number in range(shape.balancers):
            file, admin_socket = LAB_DIR / f"view{number}.cfg", LAB_DIR / f"view{number}.sock"
            file.write_text(configuration(lab.hosts, shape, number, admin_socket))
            argv = lab.in_front([program(shape.haproxy), "-db", "-f", str(file)])
            programs.append(lab.add(Program.start(f"view {number}", argv, LAB_DIR / f"view{number}.log")))
            sockets.append(admin_socket)
        for path in sockets:
            wait_until(lambda path=path: answers(path), f"HAProxy at {path}", READY_S, watch=programs)  # type: ignore[misc]
        urls = [f"http://127.0.0.1:{FIRST_PORT + number}" for number in range(shape.balancers)]
        for url in urls:
            lab.wait_for_page(url + lab.app.paths[0])
        yield Front(shape, programs, sockets, urls)
    finally:
        stop_programs(lab, "view ")


def answers(path: Path) -> bool:
    try:
        return "Pid:" in ask(path, "show info")
    except LabError:
        return False
