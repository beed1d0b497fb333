"""Several real HAProxies driven as one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from slackwater.controller.cli.main import cli
from slackwater.core.config import ConfigError, LbengineSettings, PoolSettings, parse
from slackwater.core.control import Request
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import Cycle, State
from slackwater.lbengine.backends.haproxy.fleet import ASK_AGAIN_S, HAProxies, haproxy_of
from slackwater.lbengine.backends.haproxy.haproxy import HAProxy
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.lbengine.balancer import BalancerError, BalancerUnreachable
from slackwater.lbengine.engine import Engine
from slackwater.lbengine.leadership.lock import LockError
from slackwater_lab.played_verdict import verdict
from tests.support.pool_lock import pool_lock
from tests.support.real_haproxy import (
    RealHAProxy,
    backend,
    haproxy,
    needs_haproxy,
    oldest_and_newest_too,
    stopped,
    until,
    web_servers,
)

HOSTS = ("host1", "host2", "host3")
CALM = [100, 100, 100]
LOWERED = [0, 100, 100]
PATIENCE_S, SOON_S = 20.0, 0.5
"""For an answer of one that answers, however busy the machine is; for that of one that is stopped."""


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Two:
    """Two HAProxies in front of the same three servers."""

    def __init__(self, members: list[RealHAProxy], ports: list[int]) -> None:
        self.members = members
        self.ports = ports
        self.clock = Clock()
        self.doors = [HAProxy(member.socket, "web", PATIENCE_S) for member in members]
        self.fleet = self.again()

    def again(self) -> HAProxies:
        """The HAProxies as a process that is started anew sees them."""
        return HAProxies(self.doors, self.clock)

    @contextmanager
    def stuck(self, number: int) -> Iterator[None]:
        """One of them answers nothing meanwhile."""
        with stopped(self.members[number].pid()):
            self.doors[number].timeout_s = SOON_S
            yield
        self.doors[number].timeout_s = PATIENCE_S

    @property
    def pool(self) -> PoolSettings:
        first, second = (member.socket for member in self.members)
        return HAProxyPool(name="web", backend="web", socket=first, sockets=[second], mode="act")

    def weights(self) -> list[list[int]]:
        return [[member.weight(host) for host in HOSTS] for member in self.members]


@pytest.fixture
def two(haproxy_in_full: str) -> Iterator[Two]:  # noqa: ARG001 - which one `haproxy` starts
    with web_servers(3) as ports, ExitStack() as stack:
        yield Two([stack.enter_context(haproxy(backend(ports))) for _ in range(2)], ports)


@needs_haproxy
def test_load_is_summed_and_weights_go_to_all(two: Two) -> None:
    two.members[0].request(3)
    two.members[1].request(6)
    seen = two.fleet.read()
    assert [server.requests for server in seen.servers] == [3, 3, 3]
    two.fleet.set_weights({"host1": 7})
    assert two.weights() == [[7, 100, 100], [7, 100, 100]]
    assert [server.weight for server in two.fleet.read().servers] == [7, 100, 100]


@needs_haproxy
def test_a_weight_that_differs_on_one_of_them_is_the_one_that_is_reported(two: Two) -> None:
    two.fleet.read()
    two.fleet.set_weights({"host1": 7})
    two.members[1].send("set server web/host1 weight 30")
    assert two.fleet.read().servers[0].weight == 30


@needs_haproxy
def test_one_that_is_stuck_is_left_out_asked_seldom_and_taken_back_as_started_anew(two: Two) -> None:
    before = two.fleet.read()
    with two.stuck(1):
        seen = two.fleet.read()
        (absent,) = seen.absent
        assert two.members[1].socket in absent
        two.fleet.set_weights({"host1": 0})
        two.clock.now_s += ASK_AGAIN_S / 2
    assert two.fleet.read().generation == before.generation, "it is not asked yet"
    two.clock.now_s += ASK_AGAIN_S
    back = two.fleet.read()
    assert not back.absent
    assert back.returned
    assert not two.fleet.read().returned
    assert back.generation > before.generation
    assert back.servers[0].weight == 100
    two.fleet.set_weights({"host1": 0})
    assert two.weights() == [[0, 100, 100], [0, 100, 100]]


@needs_haproxy
def test_when_nobody_answers_it_is_reported_of_all(two: Two) -> None:
    with (
        two.stuck(0),
        two.stuck(1),
        pytest.raises(BalancerUnreachable, match=f"{two.members[0].socket}.*; {two.members[1].socket}"),
    ):
        two.fleet.read()
    assert len(two.fleet.read().servers) == 3


@needs_haproxy
def test_a_server_that_only_one_has_is_set_there_only(two: Two) -> None:
    two.members[1].reload(backend(two.ports).replace("host3", "host4"))
    assert [server.name for server in two.fleet.read().servers] == [*HOSTS, "host4"]
    two.fleet.set_weights({"host3": 3, "host4": 4, "host1": 1})
    assert two.members[0].weight("host3") == 3
    assert two.members[1].weight("host4") == 4


@needs_haproxy
def test_maxconns_go_to_all_and_refusals_are_reported(two: Two) -> None:
    two.fleet.read()
    two.fleet.set_maxconns({"host1": 4})
    assert two.fleet.read().servers[0].maxconn == 4
    with pytest.raises(BalancerError, match=r"expected 1\.\."):
        two.fleet.set_maxconns({"host1": 0})


@needs_haproxy
@oldest_and_newest_too
def test_the_engine_drives_both_and_a_reload_of_one_is_repaired_in_the_same_cycle(two: Two, tmp_path: Path) -> None:
    with Journal.open(journal_path(tmp_path)) as journal:
        engine = Engine(two.pool, LbengineSettings(socket_timeout_s=PATIENCE_S), tmp_path, journal)

        def cycle(now_s: float, host1: State) -> str:
            for host in HOSTS:
                engine.inbox.put(verdict(host, host1 if host == "host1" else "calm"), now_s)
            return engine.cycle(now_s)

        cycle(1.0, "calm")
        cycle(1.2, "interference")
        assert two.weights() == [[0, 100, 100], [0, 100, 100]]
        two.members[1].reload()
        until(lambda: two.weights()[1] == [100, 100, 100], "the old worker is gone")
        assert "started anew" in cycle(1.4, "interference")
        assert two.weights() == [[0, 100, 100], [0, 100, 100]]
        assert {change.by for change in journal.changes("web")} == {"lbengine"}
        engine.stop(1.6, "the end")
        assert two.weights() == [[100, 100, 100], [100, 100, 100]]


class Driven:
    """An engine on both; the fleet's clock and the engine's are one."""

    def __init__(self, two: Two, folder: Path, journal: Journal) -> None:
        self.two = two
        self.folder = folder
        self.journal = journal
        self.start()

    def start(self) -> None:
        """A new engine, as after a restart of the process."""
        balancer = self.two.again()
        self.engine = Engine(self.two.pool, LbengineSettings(), self.folder, self.journal, balancer=balancer)

    @property
    def now_s(self) -> float:
        return self.two.clock.now_s

    def cycle(self, host1: State = "calm", after_s: float = 0.2) -> str:
        self.two.clock.now_s += after_s
        for host in HOSTS:
            self.engine.inbox.put(verdict(host, host1 if host == "host1" else "calm"), self.now_s)
        return self.engine.cycle(self.now_s)

    def unseen(self) -> int:
        """What the last Cycle says of members that it does not show."""
        return next(message.unseen for message in reversed(self.engine.outbox) if isinstance(message, Cycle))

    def baseline(self) -> str:
        return (self.folder / "baseline" / "web.json").read_text()

    def restore(self, patience_s: float = PATIENCE_S) -> tuple[int, str]:
        """Restores by the command."""
        config = self.folder / "controller.toml"
        first, second = (member.socket for member in self.two.members)
        config.write_text(
            f'state_dir = "{self.folder}"\n[lbengine]\nsocket_timeout_s = {patience_s:g}\n[[pool]]\nname = "web"\n'
            f'backend = "web"\nsocket = "{first}"\nsockets = ["{second}"]\nmode = "act"\n'
        )
        done = CliRunner().invoke(cli, ["restore", "--config", str(config)])
        return done.exit_code, done.output


@pytest.fixture
def driven(two: Two, tmp_path: Path) -> Iterator[Driven]:
    """Both have host1 lowered."""
    with Journal.open(journal_path(tmp_path)) as journal:
        site = Driven(two, tmp_path, journal)
        site.cycle()
        site.cycle("interference")
        assert two.weights() == [LOWERED, LOWERED]
        yield site


@needs_haproxy
@pytest.mark.parametrize("stuck", [0, 1])
def test_one_that_is_stuck_at_the_end_is_put_back_by_the_next_restore(driven: Driven, stuck: int) -> None:
    members = driven.two.members
    with driven.two.stuck(stuck):
        with pytest.raises(
            BalancerUnreachable,
            match=rf"not everything is restored: {members[stuck].socket}.*the other servers have their",
        ):
            driven.engine.stop(driven.now_s, "the end")
        assert [members[1 - stuck].weight(host) for host in HOSTS] == CALM
        assert '"weight": 100' in driven.baseline()
        status, remarks = driven.restore(2 * SOON_S)
        assert status == 1
        assert f"not everything is restored: {members[stuck].socket}" in remarks
        assert "run `slackwater restore --pool web` again" in remarks
        assert "nothing to put back" not in remarks
    assert [members[stuck].weight(host) for host in HOSTS] == LOWERED
    assert driven.restore() == (0, "web: host1 0 -> 100\n")
    assert driven.two.weights() == [CALM, CALM]
    assert driven.restore() == (0, "web: nothing to put back\n")


@needs_haproxy
def test_what_restore_does_set_beside_one_whose_socket_is_gone_is_reported_too(driven: Driven) -> None:
    gone = Path(driven.two.members[0].socket)
    gone.rename(f"{gone}.away")
    status, remarks = driven.restore()
    assert status == 1
    assert remarks.startswith("web: host1 0 -> 100\n")
    assert f"not everything is restored: {gone}: no such socket" in remarks
    Path(f"{gone}.away").rename(gone)
    assert driven.restore() == (0, "web: host1 0 -> 100\n")
    assert driven.two.weights() == [CALM, CALM]


@needs_haproxy
@pytest.mark.parametrize("stuck", [0, 1])
def test_an_engine_that_starts_while_one_is_stuck_puts_that_back_when_it_answers(driven: Driven, stuck: int) -> None:
    with driven.two.stuck(stuck):
        with pytest.raises(BalancerUnreachable):
            driven.engine.stop(driven.now_s, "the end")
        driven.start()
        remarks = driven.cycle()
        assert "left out" in remarks
        assert "started anew" not in remarks
        assert driven.unseen() == 1
    assert "a part of the balancer that did not answer is back; host1 0 -> 100" in driven.cycle(after_s=ASK_AGAIN_S)
    for _ in range(25):
        driven.cycle()
    assert driven.unseen() == 0
    assert driven.two.weights() == [CALM, CALM]
    assert {change.by for change in driven.journal.changes("web")} == {"lbengine"}
    driven.engine.stop(driven.now_s, "the end")
    assert not (driven.folder / "baseline" / "web.json").exists()


@needs_haproxy
def test_a_pause_while_one_is_stuck_reaches_it_later_and_leaves_the_operators_weights_alone(driven: Driven) -> None:
    first, second = driven.two.members
    with driven.two.stuck(1):
        remarks = driven.engine.command(Request(action="pause", by="alice", why="deploy"), driven.now_s)
        assert "host1 0 -> 100 put back" in remarks
        assert f"left out: {second.socket}" in remarks
        assert [first.weight(host) for host in HOSTS] == CALM
        first.send("set server web/host2 weight 50")
        driven.cycle("interference")
        driven.cycle("interference")
        assert [first.weight(host) for host in HOSTS] == [100, 50, 100]
    assert "host1 0 -> 100 put back" in driven.cycle("interference", ASK_AGAIN_S)
    assert driven.two.weights() == [[100, 50, 100], CALM]
    assert not (driven.folder / "baseline" / "web.json").exists()


@needs_haproxy
def test_one_that_was_stuck_when_a_limit_ended_has_its_own_maxconn_back(tmp_path: Path) -> None:
    def limits(two: Two) -> list[list[int | None]]:
        return [[server.maxconn for server in member.read().servers] for member in two.fleet.members]

    with web_servers(3) as ports, ExitStack() as stack, Journal.open(journal_path(tmp_path)) as journal:
        section = backend(ports, options="weight 100 maxconn 50")
        two = Two([stack.enter_context(haproxy(section)) for _ in range(2)], ports)
        site = Driven(two, tmp_path, journal)
        site.cycle()
        question = {"action": "limit", "node": "host1", "for_s": 1.0, "by": "retune", "why": "it", "maxconn": 8}
        site.engine.override_temporarily(question, site.now_s)
        site.cycle()
        assert limits(two) == [[8, 50, 50], [8, 50, 50]]
        with two.stuck(1):
            site.cycle(after_s=1.5)
            assert '"maxconn": 50' in site.baseline()
        site.cycle(after_s=ASK_AGAIN_S)
        assert limits(two) == [[50, 50, 50], [50, 50, 50]]
        assert site.baseline().count('"maxconn": 50') == 3
        site.engine.stop(site.now_s, "the end")


@needs_haproxy
def test_one_socket_is_plain_and_several_are_a_fleet(two: Two) -> None:
    assert isinstance(haproxy_of("web", [two.members[0].socket], 1.0), HAProxy)
    assert isinstance(haproxy_of("web", [member.socket for member in two.members], 1.0), HAProxies)


def test_the_lock_is_on_every_socket(tmp_path: Path) -> None:
    first, second = str(tmp_path / "one"), str(tmp_path / "other")
    both = HAProxyPool(name="web", backend="web", socket=first, sockets=[second])
    with pool_lock(HAProxyPool(name="b", backend="web", socket=second), tmp_path):
        with pytest.raises(LockError, match=f"behind {second}"):
            pool_lock(both, tmp_path).__enter__()
        pool_lock(HAProxyPool(name="c", backend="web", socket=first), tmp_path).__enter__()


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ('socket = "tcp://10.0.0.1:9999"', "allow_tcp_socket = true"),
        ('socket = "/a"\nsockets = ["tcp://10.0.0.1:9999"]', "allow_tcp_socket = true"),
        ('socket = "tcp:10.0.0.1"\nallow_tcp_socket = true', "a path, or tcp://HOST:PORT"),
        ('socket = "/a"\nsockets = ["/b", "/a"]', "name one twice"),
    ],
)
def test_wrong_sockets_are_refused_in_words(lines: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse(f'[[pool]]\nname = "web"\nbackend = "web"\n{lines}\n', "f.toml")


def test_a_backend_may_not_be_in_two_pools_by_any_of_its_sockets() -> None:
    pools = '[[pool]]\nname = "a"\nbackend = "web"\nsocket = "/x"\n'
    pools += '[[pool]]\nname = "b"\nbackend = "web"\nsocket = "/y"\nsockets = ["/x"]\n'
    with pytest.raises(ConfigError, match=r"f\.toml:7: backend `web` of /x is there twice"):
        parse(pools, "f.toml")


def test_a_tcp_socket_is_taken_when_it_is_allowed() -> None:
    text = '[[pool]]\nname = "a"\nbackend = "web"\nsocket = "tcp://10.0.0.1:9999"\nallow_tcp_socket = true\n'
    assert parse(text, "f.toml").pool[0].driven["socket"] == "tcp://10.0.0.1:9999"
