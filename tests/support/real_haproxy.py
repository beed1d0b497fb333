"""Starts a real HAProxy (2.2 or later, from PATH) in master-worker mode in front of a few tiny HTTP servers."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import socket
import socketserver
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from slackwater_lab.cluster.balancer import listens, master_hears
from tests.support.paths import ROOT
from tests.support.real_processes import free_port

HAPROXIES = ("haproxy-2.2", "haproxy-2.4", "haproxy", "haproxy-2.8", "haproxy-3", "haproxy-3.2", "haproxy-3.4")
"""The HAProxies of Debian and Ubuntu (`tools/setup_releases.py`); `haproxy` is Debian 12's."""
SLOW_AGENTS = ("haproxy-2.2", "haproxy-2.4")
PROGRAM = "haproxy"
"""The command that the tests run now: one of them (fixtures `haproxy_version` and `haproxy_in_full`)."""
PATIENCE_S = 30.0
"""Longest time of an answer: a busy machine may keep anybody waiting for some seconds."""


def quick_with(*names: str) -> list[Any]:
    """Values of a fixture: with these a test is quick, the others are for `make test-full`."""
    return [pytest.param(name, marks=[] if name in names else [pytest.mark.slow]) for name in HAPROXIES]


oldest_and_newest_too = pytest.mark.parametrize(
    "haproxy_in_full", quick_with("haproxy-2.2", "haproxy", "haproxy-3.2"), indirect=True
)
"""The versions for the tests that tell most of what differs between versions."""


def agent_inter_ms() -> int:
    """How often agents can be asked. An agent check takes 200 ms from 2.2 to 2.5 (the agent's host delays its ACK:
    https://github.com/haproxy/haproxy/issues/1839), and one that takes longer than this is a failed one."""
    return 400 if PROGRAM in SLOW_AGENTS else 50


def haproxy_program(name: str | None = None) -> str | None:
    """The HAProxy to run, or None: the tests that need it skip then, and say so."""
    return shutil.which(name or PROGRAM, path=f"{ROOT / '.build' / 'bin'}:{os.environ.get('PATH', '')}")


needs_haproxy = pytest.mark.skipif(haproxy_program() is None, reason="haproxy is neither in .build/bin nor in PATH")


def until(condition: Callable[[], Any], event: str, within_s: float = 60.0) -> Any:
    """Waits for the first true value of a condition; fails the test with `event` when it doesn't come."""
    deadline_s = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s, f"not within {within_s:g} s: {event}"
        time.sleep(0.01)
    return value


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each answer takes the 40 ms of a delayed acknowledgement

    def do_GET(self) -> None:
        body = b"here\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # a connection that does not fit comes again after a second only

    def handle_error(self, *_: object) -> None:
        """A connection that HAProxy dropped is no news."""


@contextmanager
def web_servers(count: int) -> Iterator[list[int]]:
    """That many HTTP servers on free loopback ports."""
    servers = [_Server(("127.0.0.1", 0), _Answers) for _ in range(count)]
    threads = [threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield [server.server_address[1] for server in servers]
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()


def pid_in(info: str) -> int:
    """The worker's pid in an answer to `show info`."""
    return int(next(line for line in info.splitlines() if line.startswith("Pid: ")).split()[1])


@dataclass
class RealHAProxy:
    """A running HAProxy. `socket` has level admin, `operator` and `user` the lower levels."""

    folder: Path
    process: subprocess.Popen[bytes]
    port: int

    @property
    def socket(self) -> str:
        return str(self.folder / "admin.sock")

    @property
    def operator(self) -> str:
        return str(self.folder / "operator.sock")

    @property
    def user(self) -> str:
        return str(self.folder / "user.sock")

    def send(self, command: str) -> str:
        """One line to the admin socket, past the code under test."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE_S)
            connection.connect(self.socket)
            connection.sendall(command.encode() + b"\n")
            answer = b""
            while chunk := connection.recv(65536):
                answer += chunk
        return answer.decode()

    def weight(self, server: str, backend: str = "web") -> int:
        return int(self.send(f"get weight {backend}/{server}").split()[0])

    def pid(self) -> int:
        """The worker's pid."""
        return pid_in(self.send("show info"))

    def connection(self, source: tuple[str, int] | None = None) -> http.client.HTTPConnection:
        """A connection to the frontend."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S, source_address=source)

    def request(self, count: int = 1, cookie: str = "") -> None:
        """Requests through the frontend, on one kept connection."""
        connection = self.connection()
        for _ in range(count):
            connection.request("GET", "/", headers={"Cookie": cookie} if cookie else {})
            answer = connection.getresponse()
            assert answer.status == 200, answer.status
            answer.read()
        connection.close()

    def shares(self, count: int, distinct_sources: bool = False) -> list[float]:
        """Share of each server of so many requests, each with its own path, header, parameter and, if asked, source."""
        before = self.counts()
        connection = self.connection()
        for number in range(count):
            if distinct_sources:
                connection.close()
                source = (f"127.0.{1 + number // 250}.{1 + number % 250}", 0)
                connection = self.connection(source)
            connection.request("GET", f"/{number}?id={number}", headers={"X-Key": str(number)})
            connection.getresponse().read()
        connection.close()
        return [(after - first) / count for first, after in zip(before, self.counts(), strict=True)]

    def counts(self) -> list[int]:
        """Requests so far of each server of backend `web`."""
        rows = [line.split(",") for line in self.send("show stat web 4 -1").splitlines()[1:] if line]
        return [int(row[7]) for row in rows]

    def request_any(self) -> int:
        """One request on a connection of its own, read to its end; the status of the answer, whatever it is."""
        connection = self.connection()
        connection.request("GET", "/")
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.status

    def reload(self, backends: str | None = None) -> None:
        """SIGUSR2 to the master, with a new configuration if given; returns when only the new worker answers."""
        until(self._master_hears, "HAProxy's master is ready")
        before = self.pid()
        if backends is not None:
            write_configuration(self.folder, self.port, backends)
        self.process.send_signal(signal.SIGUSR2)
        until(lambda: (answered := self._info()) and pid_in(answered) != before, "the reloaded HAProxy answers")
        until(
            lambda: not listens(before, self.socket),
            "the HAProxy of before has closed the sockets that both listened on",
        )

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _info(self) -> str:
        """Its answer to `show info`; empty while nobody gives one."""
        try:
            answered = self.send("show info")
        except OSError:
            return ""
        return answered if "Pid: " in answered else ""

    def _master_hears(self) -> bool:
        answered = self._info()
        return bool(answered) and master_hears(self.process.pid, answered)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that is stopped (SIGSTOP) meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: "\nState:\tT" in Path(f"/proc/{pid}/status").read_text(), "the process is stopped")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def tcp_to(path: str) -> Iterator[str]:
    """HOST:PORT that leads to a Unix socket: one question and its answer a connection."""

    class Relay(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            # Who asks may have given up meanwhile, and HAProxy may just be reloading: the next one asks anew.
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as inner:
                inner.connect(path)
                if question := self.request.recv(65536):
                    inner.sendall(question)
                    while chunk := inner.recv(65536):
                        self.request.sendall(chunk)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Relay) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def servers_of(ports: Sequence[int], options: str = "weight 100") -> str:
    return "\n".join(f"    server host{n} 127.0.0.1:{port} {options}" for n, port in enumerate(ports, start=1))


def backend(ports: Sequence[int], balance: str = "roundrobin", options: str = "weight 100", name: str = "web") -> str:
    """A backend section with servers host1..hostN; `balance` may carry more lines."""
    return f"backend {name}\n    balance {balance}\n{servers_of(ports, options)}\n"


def write_configuration(folder: Path, port: int, backends: str) -> Path:
    path = folder / "haproxy.cfg"
    path.write_text(
        f"""global
    stats socket {folder}/admin.sock mode 600 level admin expose-fd listeners
    stats socket {folder}/operator.sock mode 600 level operator
    stats socket {folder}/user.sock mode 600 level user
    maxconn 200
    hard-stop-after 2s
defaults
    mode http
    timeout connect 2s
    timeout client 10s
    timeout server 10s
frontend in
    bind 127.0.0.1:{port}
    default_backend web
{backends}""",
        encoding="utf-8",
    )
    return path


@contextmanager
def haproxy(backends: str) -> Iterator[RealHAProxy]:
    """A real HAProxy with these backend sections, one of them `web`; ended and cleaned up afterwards."""
    program = haproxy_program()
    assert program is not None
    # A short path: the socket's may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="sw-", ignore_cleanup_errors=True) as name:
        folder, port = Path(name), free_port()
        configuration = write_configuration(folder, port, backends)
        with (folder / "haproxy.log").open("wb") as log:
            process = subprocess.Popen(
                [program, "-W", "-db", "-f", str(configuration)], stdout=log, stderr=subprocess.STDOUT
            )
        running = RealHAProxy(folder, process, port)
        try:
            until(lambda: running._info() or process.poll() is not None, "HAProxy answers")
            assert process.poll() is None, (folder / "haproxy.log").read_text()
            yield running
        finally:
            running.stop()
