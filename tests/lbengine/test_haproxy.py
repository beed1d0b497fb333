"""HAProxy as a backend, against a real one; faults that it won't show on demand come from a socket of our own."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slackwater.lbengine.backends.haproxy.answers import parse
from slackwater.lbengine.backends.haproxy.haproxy import HAProxy
from slackwater.lbengine.backends.haproxy.replies import Replies
from slackwater.lbengine.balancer import BalancerError, BalancerUnreachable
from tests.support.real_haproxy import RealHAProxy, backend, haproxy, needs_haproxy, stopped, tcp_to, until, web_servers
from tests.support.real_processes import free_port

TIMEOUT_S = 20.0
pytestmark = pytest.mark.usefixtures("haproxy_version")


@pytest.fixture
def running() -> Iterator[RealHAProxy]:
    with web_servers(3) as ports, haproxy(backend(ports)) as balancer:
        yield balancer


@contextmanager
def answering(path: Path, reply: bytes | None) -> Iterator[None]:
    """A socket that takes one connection and answers this; None: it takes it and says nothing until the end."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        done = threading.Event()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                if reply is None:
                    done.wait(30.0)
                else:
                    connection.sendall(reply)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join(5.0)


@needs_haproxy
def test_a_snapshot_shows_process_algorithm_and_servers(running: RealHAProxy) -> None:
    running.request(30)
    seen = HAProxy(running.socket, "web", TIMEOUT_S).read()
    assert seen.pid == running.pid()
    assert seen.balance == "roundrobin"
    assert [server.name for server in seen.servers] == ["host1", "host2", "host3"]
    assert [server.requests for server in seen.servers] == [10, 10, 10]
    assert all(server.available and server.weight == server.configured == 100 for server in seen.servers)
    assert all(server.rt_mean_ms is not None and server.errors == 0 for server in seen.servers)


@needs_haproxy
def test_a_server_without_requests_has_no_response_time(running: RealHAProxy) -> None:
    assert HAProxy(running.socket, "web", TIMEOUT_S).read().servers[0].rt_mean_ms is None


@needs_haproxy
def test_weights_are_set_and_heeded(running: RealHAProxy) -> None:
    client = HAProxy(running.socket, "web", TIMEOUT_S)
    client.set_weights({"host1": 0, "host2": 256, "host3": 1})
    assert [running.weight(f"host{n}") for n in (1, 2, 3)] == [0, 256, 1]
    running.request(20)
    assert client.read().servers[0].requests == 0


@needs_haproxy
def test_weight_zero_is_not_taken_for_an_operators_drain(running: RealHAProxy) -> None:
    client = HAProxy(running.socket, "web", TIMEOUT_S)
    client.set_weights({"host1": 0})
    running.send("set server web/host2 state drain; set server web/host3 state maint")
    assert [server.condition for server in client.read().servers] == ["unchecked", "draining", "maintenance"]


@needs_haproxy
@pytest.mark.parametrize(
    "name", ["host1;shutdown sessions server web/host2", "host1\nshow info", "host 1", "", "host1/x", "ho\x00st"]
)
def test_a_name_that_would_start_another_command_is_refused(running: RealHAProxy, name: str) -> None:
    with pytest.raises(BalancerError, match="no safe name of a server"):
        HAProxy(running.socket, "web", TIMEOUT_S).set_weights({"host2": 7, name: 5})
    assert running.weight("host2") == 100
    with pytest.raises(BalancerError, match="no safe name of a backend"):
        HAProxy(running.socket, name, TIMEOUT_S)


@needs_haproxy
@pytest.mark.parametrize("weight", [-1, 257])
def test_a_weight_out_of_bounds_is_not_sent(running: RealHAProxy, weight: int) -> None:
    with pytest.raises(BalancerError, match=r"expected 0\.\.256; not sent"):
        HAProxy(running.socket, "web", TIMEOUT_S).set_weights({"host1": 5, "host2": weight})
    assert running.weight("host1") == 100


@needs_haproxy
def test_what_haproxy_refuses_is_reported_with_the_server(running: RealHAProxy) -> None:
    with pytest.raises(
        BalancerError, match=r"backend `web` refused: host9: No such server\. \(.*removed by a reload\?\)$"
    ):
        HAProxy(running.socket, "web", TIMEOUT_S).set_weights({"host1": 5, "host9": 5})
    with pytest.raises(BalancerError, match="refused: host1: Permission denied"):
        HAProxy(running.operator, "web", TIMEOUT_S).set_weights({"host1": 5})


@needs_haproxy
def test_more_commands_than_fit_into_one_line_are_all_answered(running: RealHAProxy) -> None:
    client = HAProxy(running.socket, "web", TIMEOUT_S)
    answers = client.ask(
        *(f"set server web/host{1 + n % 3} weight {n % 250}" for n in range(1000)), "get weight web/host1"
    )
    assert len(answers) == 1001
    assert set(answers[:-1]) == {""}
    assert answers[-1] == "249 (initial 100)"


@needs_haproxy
@pytest.mark.parametrize(("name", "problem"), [("nope", "no such backend"), ("in", "no such backend|no backend")])
def test_something_else_than_a_backend_is_named(running: RealHAProxy, name: str, problem: str) -> None:
    with pytest.raises(BalancerError, match=problem):
        HAProxy(running.socket, name, TIMEOUT_S).read()


@needs_haproxy
def test_a_stopped_haproxy_is_waited_for_only_so_long(running: RealHAProxy) -> None:
    worker = running.pid()
    with stopped(worker), pytest.raises(BalancerUnreachable, match=r"did not answer within 0\.3 s"):
        HAProxy(running.socket, "web", 0.3).read()
    assert HAProxy(running.socket, "web", TIMEOUT_S).read().pid == worker


@needs_haproxy
def test_an_admin_socket_without_a_free_connection_is_distinguished_from_nothing(running: RealHAProxy) -> None:
    """HAProxy lets 10 in at a time by default, and the rest wait."""
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            other = stack.enter_context(socket.socket(socket.AF_UNIX))
            other.connect(running.socket)
            other.sendall(b"prompt\n")
            other.recv(10)
        with pytest.raises(BalancerUnreachable, match=r"all connections of its admin socket taken"):
            HAProxy(running.socket, "web", 0.3).read()
    until(lambda: _answers(running), "a free connection")


def _answers(running: RealHAProxy) -> bool:
    try:
        return bool(HAProxy(running.socket, "web", 0.3).read())
    except BalancerUnreachable:
        return False


@needs_haproxy
def test_a_thousand_changes_go_in_one_connection(running: RealHAProxy) -> None:
    client = HAProxy(running.socket, "web", TIMEOUT_S)
    before = client.read().connections
    client.ask(*(f"set server web/host{1 + n % 3} weight {n % 250}" for n in range(1000)))
    assert client.read().connections == before + 2


@needs_haproxy
def test_maxconn_is_set_seen_and_never_zero(running: RealHAProxy) -> None:
    client = HAProxy(running.socket, "web", TIMEOUT_S)
    assert [server.maxconn for server in client.read().servers] == [None, None, None]
    client.set_maxconns({"host1": 3, "host2": 250})
    assert [server.maxconn for server in client.read().servers] == [3, 250, None]
    with pytest.raises(BalancerError, match=r"maxconn 0 for host1: expected 1\.\.1000000; not sent"):
        client.set_maxconns({"host2": 9, "host1": 0})
    with pytest.raises(BalancerError, match="refused: host9: No such server"):
        client.set_maxconns({"host9": 9})
    assert [server.maxconn for server in client.read().servers] == [3, 250, None]


@needs_haproxy
def test_queue_and_errors_are_seen_per_server() -> None:
    with web_servers(1) as ports, haproxy(backend([free_port(), *ports], "roundrobin\n    retries 0")) as running:
        for _ in range(2):
            running.request_any()
        servers = HAProxy(running.socket, "web", TIMEOUT_S).read().servers
        assert servers[0].errors > 0
        assert (servers[1].errors, servers[1].queued, servers[1].queue_mean_ms) == (0, 0, 0.0)


@needs_haproxy
def test_a_tcp_socket_is_spoken_to_like_a_unix_one(running: RealHAProxy) -> None:
    with tcp_to(running.socket) as address:
        client = HAProxy(f"tcp://{address}", "web", TIMEOUT_S)
        client.set_weights({"host1": 7})
        assert client.read().pid == running.pid()
    assert running.weight("host1") == 7
    with pytest.raises(BalancerUnreachable, match=r"tcp://.*Connection refused; expected HAProxy's `stats socket`"):
        client.read()


def test_a_missing_socket_is_named_with_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(BalancerUnreachable, match=rf"{tmp_path}/no\.sock: no such socket; expected .* level admin"):
        HAProxy(str(tmp_path / "no.sock"), "web", TIMEOUT_S).read()


def test_a_socket_that_nobody_listens_on_is_named(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "dead.sock"))
    with pytest.raises(BalancerUnreachable, match="nobody listens there"):
        HAProxy(str(tmp_path / "dead.sock"), "web", TIMEOUT_S).read()
    (tmp_path / "file").touch()
    with pytest.raises(BalancerUnreachable, match="not a socket"):
        HAProxy(str(tmp_path / "file"), "web", TIMEOUT_S).read()


@pytest.mark.parametrize("reply", [b"", b"Name: HAProxy\nPid: 7\n", b"Name: HAProxy\n\n# pxname,svn"])
def test_a_reply_that_is_cut_off_is_no_answer(tmp_path: Path, reply: bytes) -> None:
    with (
        answering(tmp_path / "s", reply),
        pytest.raises(BalancerUnreachable, match=r"[01] of 3 answers came.*restarting"),
    ):
        HAProxy(str(tmp_path / "s"), "web", TIMEOUT_S).read()


def test_silence_ends_at_the_timeout(tmp_path: Path) -> None:
    with answering(tmp_path / "s", None), pytest.raises(BalancerUnreachable, match="did not answer"):
        HAProxy(str(tmp_path / "s"), "web", 0.2).read()


def test_something_that_is_not_haproxy_is_refused(tmp_path: Path) -> None:
    with (
        answering(tmp_path / "s", b"hello\n\n\n\n"),
        pytest.raises(BalancerError, match="expected HAProxy's `show info`"),
    ):
        HAProxy(str(tmp_path / "s"), "web", TIMEOUT_S).read()


INFO = "Pid: 7\nUptime_sec: 5"
STAT = "# svname,status,bck,algo,scur,mode\nweb1,UP,0,,1,http\nBACKEND,UP,0,roundrobin,1,http"
STATE = "1\n# srv_name srv_op_state srv_admin_state srv_uweight srv_iweight\nweb1 2 0 10 100"


@pytest.mark.parametrize(
    ("info", "stat", "state", "fault"),
    [
        (INFO, STAT, STATE, None),
        (INFO.replace("7", ""), STAT, STATE, "expected HAProxy's `show info`"),
        (INFO.replace("7", "seven"), STAT, STATE, "expected a number for Pid, got 'seven'"),
        (INFO, "# ", STATE, "that is no backend"),
        (INFO, STAT.replace("svname", "name"), STATE, "expected svname in each line of `show stat`"),
        (INFO, STAT.replace("web1,UP,0,,1,http", "web1"), STATE, "server web1: expected status, bck in each line of"),
        (INFO, STAT.replace("1,http", "1,spop"), STATE, "HAProxy shows its mode as `spop`; expected `http` or `tcp`"),
        (INFO, STAT + "\0" + "x" * 200_000, STATE, "expected the CSV of `show stat`"),
        (INFO, STAT, STATE.replace(" 100", ""), "server web1: expected srv_iweight in each line of `show servers"),
        (INFO, STAT, STATE.replace("10 ", "-10 "), "server web1: expected a number for srv_uweight, got '-10'"),
        (INFO, STAT, STATE.replace("10 ", "9" * 5000 + " "), "server web1: expected a number for srv_uweight, got '99"),
        (INFO, STAT, STATE.replace("10 ", "257 "), "server web1: expected weights up to 256, got 257, configured 100"),
        (INFO, STAT, STATE.replace("web1", "we;b"), "server 'we;b': expected a name of letters"),
        (INFO, STAT, f"{STATE}\n{STATE.splitlines()[2]}", "server web1: expected one server of this name, got 2"),
    ],
)
def test_an_answer_in_another_form_is_refused_by_what_was_expected(
    info: str, stat: str, state: str, fault: str | None
) -> None:
    """`show stat` may be a later version's; a number may be any text."""
    if fault is None:
        (server,) = parse(info, stat, state, "s").servers
        assert (server.name, server.weight, server.configured, server.in_flight) == ("web1", 10, 100, 1)
        return
    with pytest.raises(BalancerError, match=f"^s: {re.escape(fault)}"):
        parse(info, stat, state, "s")


@pytest.mark.parametrize("call", ["read", "set_weights", "set_maxconns"])
def test_a_haproxy_that_is_stopping_is_asked_again_later(tmp_path: Path, call: str) -> None:
    """Its socket can still be connected to, but it shows no servers and refuses changes."""
    info, empty, refused = b"Pid: 7\nUptime_sec: 5\nStopping: 1\n\n", b"# pxname,svname\n\n", b"No such server.\n\n"
    reply = {
        "read": info + empty + empty,
        "set_weights": refused + info + empty,
        "set_maxconns": refused + info + empty + empty,
    }[call]
    balancer = HAProxy(str(tmp_path / "s"), "web", TIMEOUT_S)
    asked = () if call == "read" else ({"host1": 50},)
    with (
        answering(tmp_path / "s", reply),
        pytest.raises(BalancerUnreachable, match=r"pid 7\) is stopping"),
    ):
        getattr(balancer, call)(*asked)


def test_answers_are_split_at_empty_lines() -> None:
    def split(reply: bytes) -> list[str]:
        replies = Replies(4, "s")
        replies.take(reply)
        return replies.answers

    assert split(b"\n\nNo such server.\n\n\n") == ["", "", "No such server.", ""]
    assert split(b"> a\nb\n\n> c\n") == ["a\nb"]
    assert split(b"") == []
