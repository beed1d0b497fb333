"""A server whose requests fail, from what a real HAProxy counts to its weight."""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from slackwater.controller.cli.main import cli
from slackwater.core.messages import Cycle, Verdict
from slackwater.detector.classify.reported import reported
from slackwater.detector.judge import Judge
from slackwater.lbengine.backends.haproxy.haproxy import HAProxy
from slackwater.lbengine.view.counters import RecentCounters
from slackwater.lbengine.view.samples import Origin, sample_of
from slackwater.views.pool import pool_status
from slackwater_lab.played_verdict import verdict
from tests.support.engine_site import HOSTS, DrivenHAProxy
from tests.support.judges import new_judge
from tests.support.real_haproxy import backend, haproxy, needs_haproxy, web_servers
from tests.support.real_lab import eventually
from tests.support.real_processes import free_port

TIMEOUT_S = 20.0
LOOK_S = 0.2
UNIX_S = 1_795_000_000.0


@contextmanager
def answering(reply: bytes, *, reset: bool = False) -> Iterator[int]:
    """A server that gives this answer to each connection, and then closes or resets it."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(reply)
                    if reset:
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5.0)


BROKEN: set[int] = set()
"""Ports whose servers answer everything with 500."""


@contextmanager
def provoked_servers(count: int) -> Iterator[list[int]]:
    """Servers that fail where they are asked for it, or are `BROKEN`."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """HAProxy may end a connection at any time."""

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            assert isinstance(self.server, Server)
            fails = self.path == "/provoke" or self.server.server_port in BROKEN
            self.send_response(500 if fails else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ExitStack() as stack:
        ports = []
        for _ in range(count):
            server = stack.enter_context(Server(("127.0.0.1", 0), Answers))
            thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
            thread.start()
            stack.callback(server.shutdown)
            ports.append(int(server.server_address[1]))
        yield ports
        BROKEN.clear()


def provoke(port: int, server: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/provoke", headers={"Cookie": f"S={server}"})
        assert connection.getresponse().status == 500
    finally:
        connection.close()


def cycle_of(outbox: Sequence[object]) -> Cycle:
    return next(message for message in reversed(outbox) if isinstance(message, Cycle))


FAILURES = {
    "status 500": (b"HTTP/1.1 500 Broken\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", False, ""),
    "cut off": (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nab", False, ""),
    "reset": (b"", True, ""),
    "retried": (b"", False, "    retry-on all-retryable-errors\n    option redispatch\n"),
    "refused": (None, False, "    retries 0\n"),  # each would take a second
    "refused, sent to another": (None, False, "    option redispatch 1\n    retries 1\n"),
}


@dataclass
class Watched:
    """A HAProxy whose servers are judged by its counters alone, by a clock that only the test moves."""

    client: HAProxy
    judge: Judge = field(default_factory=new_judge)
    now_s: float = 100.0
    counters: RecentCounters = field(default_factory=RecentCounters)
    seq: int = 0

    def look(self) -> dict[str, Verdict]:
        self.now_s += LOOK_S
        self.seq += 1
        snapshot = self.client.read()
        self.counters = self.counters.after(self.now_s, snapshot)
        origin = Origin("web", "boot", 1.0)
        samples = [
            sample_of(origin, name, name, self.seq, UNIX_S + self.now_s, counted, None, "no packets here")
            for name, counted in self.counters.counted.items()
        ]
        return {verdict.node: verdict for verdict in self.judge.tick(self.now_s, samples)}

    def rounds(self, count: int, ask: Callable[[], object], requests: int = 9) -> dict[str, Verdict]:
        """Looks, with so many requests before each; the last Verdicts."""
        verdicts = self.look()
        for _ in range(count):
            for _ in range(requests):
                with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
                    ask()
            # A client has its answer before HAProxy counts it.
            eventually("the end of all requests", self.is_quiet, TIMEOUT_S)
            verdicts = self.look()
        return verdicts

    def is_quiet(self) -> bool:
        return not any(server.in_flight for server in self.client.read().servers)


@needs_haproxy
@pytest.mark.usefixtures("haproxy_version")
@pytest.mark.parametrize("kind", FAILURES)
def test_every_kind_of_failure_that_haproxy_counts_is_the_server_s_state(kind: str) -> None:
    reply, reset, options = FAILURES[kind]
    with ExitStack() as stack:
        good = stack.enter_context(web_servers(2))
        bad = free_port() if reply is None else stack.enter_context(answering(reply, reset=reset))
        lines = "\n".join(f"    server web{n} 127.0.0.1:{port}" for n, port in enumerate((good[0], bad, good[1]), 1))
        running = stack.enter_context(haproxy(f"backend web\n    balance roundrobin\n{options}{lines}\n"))
        watched = Watched(HAProxy(running.socket, "web", TIMEOUT_S))
        verdicts = watched.rounds(24, running.request_any)
        snapshot = watched.client.read()
    assert {name: verdict.state for name, verdict in verdicts.items()} == {
        "web1": "calm",
        "web2": "errors",
        "web3": "calm",
    }
    failing = verdicts["web2"]
    assert (failing.severity, failing.failed_share, failing.peers_failed_share) == (1.0, 1.0, 0.0)
    assert failing.path[0] == "100% of its last requests failed, and 0% of its peers'"
    assert (failing.calm_shows_within_s, failing.shown) == (None, True)
    bad_server = next(server for server in snapshot.servers if server.name == "web2")
    is_sent_again = kind in ("refused", "refused, sent to another", "retried")
    assert bad_server.unanswered == (bad_server.requests if is_sent_again else 0)


@needs_haproxy
@pytest.mark.usefixtures("haproxy_in_full")
def test_a_client_that_provokes_failures_on_one_server_does_not_drain_it() -> None:
    """Its cookie keeps it there; the others' requests are answered as before."""
    with provoked_servers(3) as ports:
        lines = "\n".join(f"    server web{n} 127.0.0.1:{port} cookie web{n}" for n, port in enumerate(ports, 1))
        with haproxy(f"backend web\n    balance roundrobin\n    cookie S insert\n{lines}\n") as running:
            watched = Watched(HAProxy(running.socket, "web", TIMEOUT_S))
            watched.rounds(6, running.request_any)

            def both() -> None:
                running.request_any()
                for _ in range(3):
                    provoke(running.port, "web2")

            states = {watched.rounds(1, both)["web2"].state for _ in range(15)}
            verdict = watched.look()["web2"]
    assert states == {"calm"}
    assert verdict.failed_share is not None
    assert verdict.failed_share > 0.7
    assert verdict.peers_failed_share == 0.0, "no load is moved there all the same"


@needs_haproxy
@pytest.mark.usefixtures("haproxy_in_full")
@pytest.mark.parametrize("balance", ["leastconn", "random", "roundrobin"])
def test_a_server_that_answers_500_at_once_gets_nothing_until_a_trial_shows_that_it_is_well(
    tmp_path: Path, balance: str
) -> None:
    with provoked_servers(3) as ports:
        lines = "\n".join(f"    server host{n} 127.0.0.1:{port} weight 100" for n, port in enumerate(ports, 1))
        with haproxy(f"backend web\n    balance {balance}\n{lines}\n") as running:
            site = DrivenHAProxy(running, ports, tmp_path)
            watched = Watched(HAProxy(running.socket, "web", TIMEOUT_S), now_s=site.now_s)
            seen: list[Verdict] = []

            def turn() -> list[int]:
                """A look and a cycle. The clock is not that of the requests, so a capacity is given."""
                verdicts = watched.rounds(1, running.request_any, requests=15)
                seen.append(verdicts["host1"])
                for verdict in verdicts.values():
                    site.engine.inbox.put(msgspec.structs.replace(verdict, capacity_rps=300.0), watched.now_s)
                site.engine.cycle(watched.now_s)
                watched.judge.failures.report(
                    watched.now_s, reported(cycle_of(site.engine.outbox), {}), watched.judge.sorter.slot
                )
                return site.weights()

            for _ in range(5):
                assert turn() == [100, 100, 100]
            BROKEN.add(ports[0])
            assert any(turn() == [0, 100, 100] for _ in range(12))
            assert {tuple(turn())[1:] for _ in range(10)} == {(100, 100)}
            BROKEN.discard(ports[0])
            assert any(turn() == [100, 100, 100] for _ in range(60))
            assert any(turn() and seen[-1].state == "calm" for _ in range(100))
            causes = {change.cause for change in site.changes() if change.what == "weight"}
            whys = [change.why for change in site.changes() if change.cause == "errors"]
            site.journal.close()
    begins = [verdict.since_unix_s for verdict in seen]
    assert begins == sorted(begins), "the calm after it began at its end, so its end is known"
    assert {"errors", "tried"} <= causes <= {"errors", "tried", "fast", "calm"}
    assert whys[0].startswith("errors: ")
    assert "of its last requests failed, and 0% of its peers'" in whys[0]


@needs_haproxy
@pytest.mark.usefixtures("haproxy_in_full")
def test_one_server_that_answers_500_at_once_is_named_by_status_and_the_api(tmp_path: Path) -> None:
    reply, _, _ = FAILURES["status 500"]
    assert reply is not None
    with web_servers(2) as good, answering(reply) as bad, haproxy(backend([good[0], bad, good[1]])) as running:
        site = DrivenHAProxy(running, [good[0], bad, good[1]], tmp_path)
        (tmp_path / "controller.toml").write_text(
            f'state_dir = "{tmp_path}"\n[[pool]]\nname = "web"\nbackend = "web"\nsocket = "{running.socket}"\n'
        )
        site.cycle()
        assert sorted(running.request_any() for _ in range(60)) == [200] * 40 + [500] * 20
        now = time.time()
        verdicts = [verdict(host, "calm", time_unix_s=now, since_unix_s=now - 60.0) for host in HOSTS]
        verdicts[1] = msgspec.structs.replace(
            verdicts[1], state="errors", severity=1.0, failed_share=1.0, peers_failed_share=0.0, path=["100% fail"]
        )
        for judged in verdicts:
            site.engine.inbox.put(judged, site.now_s + 1.0)
        site.silent_cycle(after_s=1.0)
        cycle = cycle_of(site.engine.outbox)
        assert "host2 fails far more than the others" in cycle.sentence
        cycle.time_unix_s = now
        site.journal.record(cycle, *verdicts)
        printed = CliRunner().invoke(cli, ["status", "--config", str(tmp_path / "controller.toml")]).stdout
        view = pool_status(site.journal, "web", now, {}, "HAProxy")
        site.journal.close()
    assert "2 of 3 calm; host2 fails 100 of 100 requests, its peers 0" in " ".join(printed.split())
    assert "errors/s" in printed
    failing = view.rows[1]
    assert (failing.failed_share, failing.peers_failed_share, failing.state) == (1.0, 0.0, "errors")
    assert failing.errors_per_s == pytest.approx(20.0 / 1.0, rel=0.2)
    assert "its requests fail, and those of its peers do not, so it gets weight 0 instead of 100" in failing.summary
    assert [row.exceptions for row in view.rows] == [[], ["fails 100 of 100 requests, its peers 0"], []]
