"""What HAProxy's socket may say beside what is expected: odd names, odd rows, and no end. The rest goes on."""

from __future__ import annotations

import itertools
import re
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.core import messages
from slackwater.core.config import ControllerSettings
from slackwater.core.messages import Cycle
from slackwater.lbengine.backends.haproxy.answers import parse
from slackwater.lbengine.backends.haproxy.haproxy import HAProxy
from slackwater.lbengine.backends.haproxy.replies import MOST_BYTES, Replies
from slackwater.lbengine.balancer import BalancerError, BalancerUnreachable, Server
from slackwater.lbengine.engine import Engine
from slackwater.lbengine.preflight import check_servers
from slackwater.lbengine.restore import LeftOutError, restore
from tests.support.engine_site import HOSTS, SETTINGS, DrivenHAProxy
from tests.support.real_haproxy import backend, haproxy, needs_haproxy, web_servers

PATIENCE_S = 20.0
INFO = "Pid: 7\nUptime_sec: 5"
STAT = """# svname,status,bck,algo,scur,type,mode
web1,UP,0,,1,2,http
web2,UP,0,,2,2,http
web3,UP,0,,3,2,http
BACKEND,UP,0,roundrobin,6,1,http"""
STATE = """1
# srv_name srv_op_state srv_admin_state srv_uweight srv_iweight
web1 2 0 10 100
web2 2 0 20 100
web3 2 0 30 100"""
LINE = st.text(st.characters(exclude_characters='\n\r"', exclude_categories=["Cs"]), max_size=40)
WHOLE = {server.name: server for server in parse(INFO, STAT, STATE, "s").servers}


@given(
    where=st.sampled_from(["stat", "state"]),
    odd=LINE
    | st.sampled_from(["web2,UP,0,,-1,2", f"web2,UP,0,,{2**63},2", "web2", "BACKEND,UP,0,,1,2", "web2 2 0 -1 100"])
    | st.sampled_from(["web2 2 0 300 100", "web1 2 0 10 100", "a;b 2 0 1 1", "x" * 200 + " 2 0 1 1", "web2 2 0"]),
)
def test_one_odd_row_is_left_out_and_said_and_the_others_go_on(where: str, odd: str) -> None:
    rows = {"stat": STAT, "state": STATE}
    rows[where] = re.sub("^web2.*$", lambda _: odd, rows[where], flags=re.MULTILINE)
    seen = parse(INFO, rows["stat"], rows["state"], "s")
    names = [server.name for server in seen.servers]
    assert len(names) == len(set(names))
    assert "web3" in names
    doubled = set(odd.replace(",", " ").split()[:1]) & {"web1", "web3"}
    for server in seen.servers:
        assert server.name in {"web2", *doubled} or server.name not in WHOLE or server == WHOLE[server.name]
        assert messages.is_server_name(server.name)
    assert all(why.startswith("s: ") for why in seen.unreadable.values())


def test_a_counter_that_is_no_number_leaves_a_server_uncounted_with_its_weight() -> None:
    first, second, _ = parse(INFO, STAT.replace("web2,UP,0,,2", "web2,UP,0,,-2"), STATE, "s").servers
    assert (first.uncounted, first.in_flight) == ("", 1)
    assert second.uncounted == "s: server web2: expected a number for scur, got '-2'"
    assert (second.weight, second.configured, second.available, second.in_flight) == (20, 100, True, 0)


def test_a_row_that_is_cut_off_leaves_a_server_uncounted_and_no_counter_at_nought() -> None:
    second = parse(INFO, STAT.replace("web2,UP,0,,2,2", "web2,UP,0"), STATE, "s").servers[1]
    assert second.uncounted == "s: server web2: expected a number for scur, got 'nothing'"


@needs_haproxy
def test_servers_with_names_that_only_haproxy_allows_are_driven_and_published(tmp_path: Path) -> None:
    names = ("a..b", ".", "BACKEND")
    with web_servers(3) as ports:
        section = backend(ports)
        for host, name in zip(HOSTS, names, strict=True):
            section = section.replace(host, name)
        section += f"    server {'x' * 200} 127.0.0.1:{ports[0]} weight 100\n"
        with haproxy(section) as balancer:
            site = DrivenHAProxy(balancer, ports, tmp_path)
            site.start(servers=dict(zip(names, HOSTS, strict=True)))
            site.cycle()
            sentence = site.cycle(host3="interference")
            assert balancer.weight("BACKEND") < 100
            assert balancer.weight("a..b") == balancer.weight(".") == 100
            assert "left out: " in sentence
            assert "expected a name of letters, digits and `_-:.`, 128 at most" in sentence
            cycle = next(message for message in reversed(site.engine.outbox) if isinstance(message, Cycle))
            read = messages.decode("cycle", messages.encode(cycle))
            assert isinstance(read, Cycle)
            assert [server.server for server in read.servers] == list(names)
            snapshot = HAProxy(balancer.socket, "web", PATIENCE_S).read()
            warnings = check_servers(snapshot, site.pool(), "here")
            assert any("left out: " in warning for warning in warnings)
            site.engine.stop(site.now_s, "the test ends")
            assert balancer.weight("BACKEND") == 100
            site.journal.close()


class Doctored(HAProxy):
    """A real HAProxy of which some answers are changed on their way."""

    change: Callable[[str], str] = staticmethod(lambda answer: answer)

    def ask(self, *commands: str) -> list[str]:
        return [type(self).change(answer) for answer in super().ask(*commands)]


@needs_haproxy
def test_a_lowered_server_that_cannot_be_read_any_more_is_put_back_when_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with web_servers(3) as ports, haproxy(backend(ports)) as balancer:
        site = DrivenHAProxy(balancer, ports, tmp_path)
        pool, doctored = site.pool(), Doctored(balancer.socket, "web", PATIENCE_S)
        site.engine = Engine(pool, SETTINGS, tmp_path, site.journal, balancer=doctored)
        site.cycle()
        site.cycle(host1="interference")
        assert site.weights() == [0, 100, 100]
        monkeypatch.setattr(Doctored, "change", staticmethod(lambda answer: answer.replace(" host1 ", " host1 - ")))
        sentence = site.cycle(host2="interference")
        assert "left out: " in sentence
        assert "server host1: expected a number for" in sentence
        assert balancer.weight("host2") < 100, "the others are driven"
        with pytest.raises(BalancerUnreachable, match=r"server host1.*the stored baseline is kept"):
            site.engine.stop(site.now_s, "the test ends")
        assert site.weights() == [0, 100, 100]
        settings = ControllerSettings(state_dir=str(tmp_path), pool=[pool])
        with pytest.raises(LeftOutError, match="server host1"):
            restore(settings, pool, "alice", "test", balancer=doctored)
        monkeypatch.setattr(Doctored, "change", staticmethod(lambda answer: answer))
        restore(settings, pool, "alice", "test", balancer=doctored)
        assert site.weights() == [100, 100, 100]
        assert not site.baseline_file().exists()
        site.journal.close()


@contextmanager
def talking(path: Path, part: bytes) -> Iterator[None]:
    """A socket that says this again and again to whoever comes."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                try:
                    for piece in itertools.repeat(part):
                        connection.sendall(piece)
                except OSError:
                    return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "nobody listens to it any more"


@pytest.mark.parametrize(
    ("part", "fault"),
    [
        (b"a" * 65536, "a line of more than 64 KiB"),
        (b"a\n" * 32768, "more than 50000 lines"),
        (b"\n", "more than 3 answers"),
        (b"> ", "a line of more than 64 KiB"),
        ((b"a" * 4095 + b"\n") * 16, "more than 32 MiB"),
    ],
)
def test_what_never_ends_is_not_listened_to_for_ever(tmp_path: Path, part: bytes, fault: str) -> None:
    balancer = HAProxy(str(tmp_path / "s"), "web", PATIENCE_S)
    with talking(tmp_path / "s", part):
        tracemalloc.start()
        try:
            expected = f"s: {fault} came as the answers to 3 commands; expected those of HAProxy"
            with pytest.raises(BalancerUnreachable, match=expected):
                balancer.read()
            assert tracemalloc.get_traced_memory()[1] < 2 * MOST_BYTES
        finally:
            tracemalloc.stop()


@given(st.lists(st.binary(max_size=200), max_size=20), st.integers(1, 4))
def test_answers_are_the_same_however_they_are_cut(chunks: list[bytes], expected: int) -> None:
    def answers(pieces: list[bytes]) -> list[str] | str:
        replies = Replies(expected, "s")
        try:
            for piece in pieces:
                replies.take(piece)
        except BalancerUnreachable as error:
            return str(error)
        return replies.answers

    whole = b"".join(chunks)
    assert answers(chunks) == answers([whole]) == answers([bytes([byte]) for byte in whole])


@pytest.mark.parametrize(("last", "fits"), [("UP", True), ("x", False)])
def test_a_server_called_as_the_backends_own_line_is_a_server(last: str, fits: bool) -> None:
    """HAProxy allows it."""
    stat = STAT.replace("web1", "BACKEND") if fits else STAT.replace("BACKEND,UP", f"{last},UP").replace(",6,1", ",6,2")
    state = STATE.replace("web1", "BACKEND")
    if not fits:
        with pytest.raises(BalancerError, match="that is no backend"):
            parse(INFO, stat, state, "s")
        return
    by_name: Mapping[str, Server] = {server.name: server for server in parse(INFO, stat, state, "s").servers}
    assert by_name["BACKEND"].weight == 10
