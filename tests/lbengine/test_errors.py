"""Which servers fail well above their peers, from the balancer's counters, by what a real HAProxy counts."""

from __future__ import annotations

import http.client
import itertools
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from slackwater.controller.cli.main import cli
from slackwater.core.messages import Cycle
from slackwater.lbengine.backends.haproxy.haproxy import HAProxy
from slackwater.lbengine.balancer import Server, Snapshot
from slackwater.lbengine.decision.rates import Rates
from slackwater.lbengine.errors import WINDOW_S, Count, ErrorWindow, failing
from slackwater.views.pool import pool_status
from slackwater_lab.played_verdict import verdict
from tests.support.engine_site import HOSTS, DrivenHAProxy
from tests.support.real_haproxy import backend, haproxy, needs_haproxy, web_servers
from tests.support.real_processes import free_port

TIMEOUT_S = 20.0
COUNTS = st.dictionaries(
    st.sampled_from("abcdef"),
    st.tuples(st.integers(0, 5000), st.floats(0.0, 1.0)).map(lambda drawn: Count(drawn[0], round(drawn[0] * drawn[1]))),
)


def test_a_server_that_fails_37_of_100_requests_is_named_and_its_peers_are_not() -> None:
    named = failing({"web1": Count(600, 0), "web2": Count(600, 222), "web3": Count(600, 0)})
    assert {name: (server.share, server.peers) for name, server in named.items()} == {"web2": (0.37, 0.0)}


def test_a_few_failures_in_a_row_are_enough_and_one_is_not() -> None:
    peers = {"web1": Count(60, 0), "web3": Count(60, 0)}
    assert not failing({**peers, "web2": Count(1, 1)})
    assert not failing({**peers, "web2": Count(60, 1)})
    assert list(failing({**peers, "web2": Count(5, 5)})) == ["web2"]


@pytest.mark.parametrize("share", [0.03, 0.035, 0.04, 0.05])
def test_one_that_fails_just_so_often_is_named_once_and_not_by_turns(share: float) -> None:
    """20 requests a second each, for 3 minutes, and as long without a failure: load would move each time."""
    for seed in range(5):
        chance, looks, named = random.Random(seed), [Count(20, 0)] * 30, [False]
        for second in range(360):
            failed = sum(chance.random() < share for _ in range(20)) if second < 180 else 0
            looks = [*looks[1:], Count(20, failed)]
            counts = dict.fromkeys(("web1", "web3"), Count(600, 0))
            counts["web2"] = Count(600, sum(look.failed for look in looks))
            named.append("web2" in failing(counts, ["web2"] if named[-1] else []))
        assert sum(now != was for was, now in itertools.pairwise(named)) == 2
        assert not named[-1]


def test_all_that_fail_alike_have_no_peers_to_be_compared_with() -> None:
    assert not failing({name: Count(500, 200 + n) for n, name in enumerate(("web1", "web2", "web3"))})
    assert not failing({"web1": Count(500, 500)})
    assert not failing({"web1": Count(500, 500), "web2": Count(0, 0)})
    assert not failing({})


def test_two_that_fail_are_both_named() -> None:
    assert set(failing({"a": Count(300, 300), "b": Count(300, 280), "c": Count(300, 0)})) == {"a", "b"}


@given(COUNTS)
def test_whoever_is_named_fails_more_than_its_peers_and_never_are_all_named(counts: dict[str, Count]) -> None:
    named = failing(counts)
    assert all(counts[name].share == server.share > server.peers for name, server in named.items())
    assert len(named) < max(len(counts), 1)


@given(COUNTS, st.sampled_from("abcdef"))
def test_one_that_fails_nothing_is_never_named(counts: dict[str, Count], name: str) -> None:
    ended = counts.get(name, Count(0, 0)).ended
    assert name not in failing({**counts, name: Count(ended, 0)})


def look(*counts: tuple[int, int], in_flight: int = 0) -> Snapshot:
    servers = [
        Server(name=f"web{n}", weight=100, requests=requests, errors=errors, in_flight=in_flight)
        for n, (requests, errors) in enumerate(counts, start=1)
    ]
    return Snapshot(balance="roundrobin", weights_mean="share", servers=servers)


def test_the_window_forgets_and_starts_again_with_the_balancer() -> None:
    window, now_s = ErrorWindow(), 0.0
    for turn in range(int(WINDOW_S) * 5):
        now_s = turn * 0.2
        window = window.after(now_s, look((turn, 0), (turn, turn)), restarted=False)
    assert window.counts()["web2"] == Count(turn, turn)
    assert len(window.looks) <= WINDOW_S + 2
    for more in range(int(WINDOW_S) * 5 + 10):
        window = window.after(now_s + more * 0.2, look((turn + more, 0), (turn + more, turn)), restarted=False)
    assert window.counts()["web2"].failed == 0
    assert window.after(1e3, look((3, 0), (3, 0)), restarted=True).counts()["web1"] == Count(0, 0)
    assert window.after(1e3, look((3, 0), (3, 0)), restarted=False).counts()["web2"] == Count(0, 0)


def test_where_connections_are_counted_no_errors_are_known() -> None:
    seen = Snapshot(balance="wrr", weights_mean="share", servers=[Server(name="a", weight=1)], counts="connections")
    assert Rates().after(0.0, seen, {}).failing == {}
    assert ErrorWindow().after(0.0, seen, restarted=False).counts() == {}


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


FAILURES = {
    "status 500": (b"HTTP/1.1 500 Broken\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", False, ""),
    "cut off": (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nab", False, ""),
    "reset": (b"", True, ""),
    "retried": (b"", False, "    retry-on all-retryable-errors\n    option redispatch\n"),
    "refused": (None, False, "    retries 0\n"),  # each would take a second
    "refused, sent to another": (None, False, "    option redispatch 1\n    retries 1\n"),
}


@needs_haproxy
@pytest.mark.usefixtures("haproxy_version")
@pytest.mark.parametrize("kind", FAILURES)
def test_every_kind_of_failure_that_haproxy_counts_names_the_server(kind: str) -> None:
    reply, reset, options = FAILURES[kind]
    with ExitStack() as stack:
        good = stack.enter_context(web_servers(2))
        bad = free_port() if reply is None else stack.enter_context(answering(reply, reset=reset))
        lines = "\n".join(f"    server web{n} 127.0.0.1:{port}" for n, port in enumerate((good[0], bad, good[1]), 1))
        running = stack.enter_context(haproxy(f"backend web\n    balance roundrobin\n{options}{lines}\n"))
        client = HAProxy(running.socket, "web", TIMEOUT_S)
        rates = Rates().after(0.0, client.read(), {})
        for _ in range(30):
            try:
                running.request_any()
            except (OSError, ValueError, http.client.HTTPException):
                continue
        snapshot = client.read()
        rates = rates.after(3.0, snapshot, {})
    assert list(rates.failing) == ["web2"]
    assert rates.failing["web2"].share == 1.0
    assert rates.errors is not None
    assert rates.errors["web1"] == rates.errors["web3"] == 0.0 < rates.errors["web2"]
    bad_server = next(server for server in snapshot.servers if server.name == "web2")
    is_sent_again = kind in ("refused", "refused, sent to another", "retried")
    assert bad_server.unanswered == (bad_server.requests if is_sent_again else 0)


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
        site.cycle(after_s=1.0)
        cycle = site.engine.outbox[-1]
        assert isinstance(cycle, Cycle)
        assert "host2 fails well above its peers" in cycle.sentence
        now = cycle.time_unix_s = time.time()
        calm = [verdict(host, "calm", time_unix_s=now, since_unix_s=now - 60.0) for host in HOSTS]
        site.journal.record(cycle, *calm)
        printed = CliRunner().invoke(cli, ["status", "--config", str(tmp_path / "controller.toml")]).stdout
        view = pool_status(site.journal, "web", now, {}, "HAProxy")
        site.journal.close()
    assert "2 of 3 calm; host2 fails 100 of 100 requests, its peers 0" in " ".join(printed.split())
    assert "errors/s" in printed
    failing = view.rows[1]
    assert (failing.failed_share, failing.peers_failed_share) == (1.0, 0.0)
    assert failing.errors_per_s == pytest.approx(20.0 / 1.0, rel=0.2)
    assert [row.exceptions for row in view.rows] == [[], ["fails 100 of 100 requests, its peers 0"], []]
