"""What is wrong with a pool is said at the start, of a real HAProxy."""

from __future__ import annotations

from pathlib import Path

import pytest

from slackwater.core.config import LbengineSettings, PoolSettings
from slackwater.lbengine.backends.haproxy.settings import HAProxyPool
from slackwater.lbengine.backends.table import check
from slackwater.lbengine.balancer import BalancerError
from tests.support.real_haproxy import backend, haproxy, needs_haproxy, tcp_to, web_servers

SETTINGS = LbengineSettings(socket_timeout_s=20.0)
pytestmark = pytest.mark.usefixtures("haproxy_version")


def pool(socket: str, **others: object) -> PoolSettings:
    return HAProxyPool(name="web", socket=socket, **{"backend": "web", **others})  # type: ignore[arg-type]


def warnings_of(section: str, **others: object) -> list[str]:
    """`section` with PORT1..PORT3 in place of the servers' ports."""
    with web_servers(3) as ports:
        for number, port in enumerate(ports, start=1):
            section = section.replace(f"PORT{number}", str(port))
        with haproxy(section) as running:
            before = running.send("show servers state web")
            warnings = check(pool(running.socket, **others), SETTINGS)
            assert running.send("show servers state web").splitlines()[:2] == before.splitlines()[:2]
            assert [line.split()[7] for line in before.splitlines()[2:] if line] == [
                line.split()[7] for line in running.send("show servers state web").splitlines()[2:] if line
            ]
            return warnings


def plain(balance: str, options: str = "weight 100") -> str:
    return backend(["PORT1", "PORT2", "PORT3"], balance, options)  # type: ignore[list-item]


@needs_haproxy
@pytest.mark.parametrize("balance", ["roundrobin", "leastconn", "random(2)"])
def test_a_good_pool_has_no_warnings(balance: str) -> None:
    assert warnings_of(plain(balance, "weight 100 maxconn 50"), mode="act") == []


@needs_haproxy
def test_least_connections_without_maxconn_has_one_lever_less_and_a_warning() -> None:
    (warning,) = warnings_of(plain("leastconn"), mode="act")
    assert "no `maxconn` is set for host1, host2, host3" in warning


@needs_haproxy
def test_a_tcp_socket_is_warned_of() -> None:
    with web_servers(2) as ports, haproxy(backend(ports)) as running, tcp_to(running.socket) as address:
        (warning,) = check(pool(f"tcp://{address}", allow_tcp_socket=True), SETTINGS)
    assert "an admin socket on TCP has no login" in warning


@needs_haproxy
def test_balancers_of_one_pool_must_use_the_same_algorithm() -> None:
    with (
        web_servers(2) as ports,
        haproxy(backend(ports)) as first,
        haproxy(backend(ports, "leastconn", "weight 100 maxconn 9")) as second,
        pytest.raises(BalancerError, match=r"same algorithm, these use `roundrobin` behind .*`leastconn` behind"),
    ):
        check(pool(first.socket, sockets=[second.socket]), SETTINGS)


@needs_haproxy
@pytest.mark.parametrize(
    ("balance", "problem"),
    [
        ("static-rr", "`balance static-rr` cannot be driven: it takes no weights at run time but 0% and 100%"),
        ("first", "`balance first` cannot be driven: it ignores weights"),
        ("source", "`balance source` without `hash-type consistent` takes no weights"),
        ("uri", "`balance uri` without `hash-type consistent` takes no weights"),
        ("hdr(Host)", "`balance hdr` without `hash-type consistent` takes no weights"),
        ("url_param id", "`balance url_param` without `hash-type consistent` takes no weights"),
    ],
)
def test_an_algorithm_that_heeds_no_weights_is_refused(balance: str, problem: str) -> None:
    with pytest.raises(BalancerError) as caught:
        warnings_of(plain(balance), mode="act")
    assert problem in str(caught.value)


@needs_haproxy
@pytest.mark.parametrize("balance", ["source", "uri", "hdr(Host)"])
def test_a_consistent_hash_is_taken_with_a_warning(balance: str) -> None:
    (warning,) = warnings_of(plain(f"{balance}\n    hash-type consistent"), mode="act")
    assert "weights move a share of the keys" in warning


@needs_haproxy
def test_in_observe_mode_a_hash_is_not_tried() -> None:
    (warning,) = warnings_of(plain("source"), mode="observe")
    assert "it is tried when the mode is `act`" in warning


@needs_haproxy
def test_other_writers_and_persistence_are_warned_of() -> None:
    warnings = warnings_of(
        "backend web\n    balance roundrobin\n    cookie SRV insert\n"
        "    server host1 127.0.0.1:PORT1 weight 1 cookie a agent-check agent-port 9 agent-inter 60s\n"
        "    server host2 127.0.0.1:PORT2 weight 100 disabled\n"
        "    server host3 127.0.0.1:PORT3 weight 0\n"
    )
    text = "\n".join(warnings)
    assert "the agent-check of host1 sets weights too where it answers with a percentage" in text
    assert "cookie persistence" in text
    assert "the weights of host1 are too small" in text
    assert "host2 is `disabled` in the configuration: no machine is looked for there until that ends" in text
    assert "host3 has weight 0 and is left alone" in text


@needs_haproxy
@pytest.mark.parametrize(
    "section",
    [
        "backend web\n    server host1 127.0.0.1:PORT1 weight 100\n",
        "backend web\n    server host1 127.0.0.1:PORT1 weight 100\n    server b 127.0.0.1:PORT2 weight 100 backup\n",
    ],
)
def test_a_pool_with_one_server_is_refused(section: str) -> None:
    with pytest.raises(BalancerError, match=r"has 1 server that is no backup.*expected at least 2"):
        warnings_of(section)


@needs_haproxy
def test_a_server_with_a_name_that_is_too_long_is_left_out_with_a_warning() -> None:
    (warning,) = warnings_of(plain("roundrobin").replace("host1", "x" * 129))
    assert "left out: " in warning
    assert "128 at most" in warning


@needs_haproxy
@pytest.mark.parametrize("haproxy_version", ["haproxy-3.2", "haproxy-3.4"], indirect=True)
def test_a_backend_of_log_lines_is_refused() -> None:
    servers = "    server host1 udp@127.0.0.1:PORT1\n    server host2 udp@127.0.0.1:PORT2\n"
    section = f"backend logs\n    mode log\n    balance roundrobin\n{servers}"
    with pytest.raises(BalancerError, match="`logs`: HAProxy shows its mode as `syslog`; expected `http` or `tcp`"):
        warnings_of(plain("roundrobin") + section, backend="logs")


@needs_haproxy
def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(BalancerError, match="backend `wbe`: no such backend"):
        warnings_of(plain("roundrobin"), backend="wbe")


@needs_haproxy
def test_a_mapped_server_that_is_not_there_is_refused() -> None:
    with pytest.raises(BalancerError, match=r"no server `host7`.*it has: host1, host2, host3"):
        warnings_of(plain("roundrobin"), servers={"host7": "node7"})


@needs_haproxy
def test_a_socket_without_admin_level_is_refused() -> None:
    with web_servers(2) as ports, haproxy(backend(ports)) as running:
        for socket in (running.operator, running.user):
            with pytest.raises(BalancerError, match="this socket has no admin level; expected `stats socket"):
                check(pool(socket), SETTINGS)


def test_a_missing_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BalancerError, match=r"pool `web`: .*No such file or directory; expected HAProxy's admin"):
        check(pool(str(tmp_path / "none.sock")), SETTINGS)


def test_a_file_that_is_no_socket_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BalancerError, match="not a socket"):
        check(pool(str(tmp_path / "file")), SETTINGS)
