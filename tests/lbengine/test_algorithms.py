"""What weights do under each balance algorithm, on a real HAProxy; docs/reference/balancing.md has the table."""

from __future__ import annotations

import re
import subprocess
import time

import pytest

from slackwater.lbengine.backends.haproxy.algorithms import ALGORITHMS, configured_name, weights_mean
from slackwater.lbengine.backends.haproxy.haproxy import HAProxy
from slackwater.lbengine.backends.haproxy.measured import advice, read
from slackwater.lbengine.backends.ipvs.schedulers import SCHEDULERS
from slackwater.lbengine.balancer import BalancerError
from tests.support.paths import ROOT
from tests.support.pool_shown import snapshot
from tests.support.real_haproxy import (
    PATIENCE_S,
    backend,
    haproxy,
    haproxy_program,
    needs_haproxy,
    oldest_and_newest_too,
    quick_with,
    web_servers,
)

COUNT = 420
"""Requests, one after the other. By weights of 10, 100 and 100 the first server gets 20 of them."""
CATCHES_UP_S = 0.5
"""HAProxy's rates are of one second."""
CONSISTENT = "\n    hash-type consistent"


def share(balance: str, weight: int) -> float:
    """Share of the first of three servers that it gets with this weight, the others with 100."""
    with web_servers(3) as ports, haproxy(backend(ports, balance)) as running:
        client = HAProxy(running.socket, "web", PATIENCE_S)
        shown = client.read()
        client.set_weights({"host1": weight})
        shares = running.shares(COUNT, distinct_sources=balance.startswith("source"))
        assert sum(shares) == pytest.approx(1.0)
        assert (shown.weights_mean == "keys") == ("hash-type" in balance)
        assert (shown.weights_mean == "draws") == balance.startswith("random")
        return shares[0]


@needs_haproxy
@pytest.mark.usefixtures("haproxy_in_full")
@oldest_and_newest_too
def test_round_robin_shares_by_weight() -> None:
    assert share("roundrobin", 10) == pytest.approx(10 / 210, abs=0.005)


@needs_haproxy
@pytest.mark.usefixtures("haproxy_in_full")
@pytest.mark.parametrize("balance", ["random(1)", "random(2)"])
def test_random_shares_by_weight_but_for_chance(balance: str) -> None:
    assert 0.0 < share(balance, 10) < 0.12
    assert share(balance, 0) == 0.0


@needs_haproxy
@pytest.mark.usefixtures("haproxy_in_full")
@pytest.mark.parametrize("haproxy_in_full", quick_with("haproxy", "haproxy-3.4"), indirect=True)
def test_from_3_4_on_a_weight_that_rises_wins_ties_until_its_rate_has_caught_up() -> None:
    """Servers without a request in flight are equal. Of three a server is one of the two drawn in 5 of 9 cases."""
    version = subprocess.run([haproxy_program() or "", "-v"], capture_output=True, text=True, check=True).stdout
    (major, minor) = re.findall(r"version (\d+)\.(\d+)", version)[0]
    with web_servers(3) as ports, haproxy(backend(ports, "random(2)")) as running:
        client = HAProxy(running.socket, "web", PATIENCE_S)
        client.set_weights({"host1": 10})
        before = running.shares(5 * COUNT)[0]
        client.set_weights({"host1": 100})
        begun_s = time.monotonic()
        raised = running.shares(COUNT)[0]
        if time.monotonic() - begun_s > CATCHES_UP_S:
            pytest.skip("this machine was too busy to send the requests before the rate had caught up")
    assert 0.0 < before < 0.12
    assert (raised > 0.43) == ((int(major), int(minor)) >= (3, 4)), raised


@needs_haproxy
@pytest.mark.parametrize("haproxy_in_full", quick_with("haproxy", "haproxy-3.4"), indirect=True)
def test_a_backend_without_a_balance_is_known_by_what_haproxy_takes(haproxy_in_full: str) -> None:
    newest = haproxy_in_full == "haproxy-3.4"
    unset = backend([1, 2], "roundrobin").replace("    balance roundrobin\n", "")
    with haproxy(unset) as running:
        shown = HAProxy(running.socket, "web", PATIENCE_S).read()
    assert shown.balance == ("random" if newest else "roundrobin")
    assert shown.weights_mean == ("draws" if newest else "share")
    text, remedy = advice(shown.balance, "web", read()) or ("", "")
    assert text.startswith("`balance random` (HAProxy's default from 3.3 on)" if newest else "`balance roundrobin` was")
    assert remedy.startswith("`balance leastconn` in backend `web`")


@needs_haproxy
@pytest.mark.usefixtures("haproxy_in_full")
@oldest_and_newest_too
def test_least_connections_ignores_weights_when_servers_are_idle() -> None:
    assert share("leastconn", 10) == pytest.approx(1 / 3, abs=0.05)
    assert share("leastconn", 0) == 0.0


@needs_haproxy
@pytest.mark.usefixtures("haproxy_in_full")
@pytest.mark.parametrize("balance", ["source", "uri", "hdr(X-Key)", "url_param id"])
def test_a_consistent_hash_moves_keys_by_weight(balance: str) -> None:
    """The ring has few points for a small weight, so its share is rough."""
    assert 0.0 < share(f"{balance}{CONSISTENT}", 10) < 0.15
    assert share(f"{balance}{CONSISTENT}", 0) == 0.0


@needs_haproxy
@pytest.mark.usefixtures("haproxy_in_full")
def test_an_rdp_cookie_hash_takes_weights_if_it_is_consistent() -> None:
    for consistent in (True, False):
        balance = f"rdp-cookie{CONSISTENT if consistent else ''}"
        section = f"backend web\n    mode tcp\n    balance {balance}\n    server host1 127.0.0.1:9 weight 100\n"
        with haproxy(
            "backend in2\n    server a 127.0.0.1:9\n"
            + section.replace("backend web", "backend tcp")
            + "backend web\n    server a 127.0.0.1:9\n"
        ) as running:
            client = HAProxy(running.socket, "tcp", PATIENCE_S)
            assert client.read().balance == "rdp-cookie"
            if consistent:
                client.set_weights({"host1": 10})
            else:
                with pytest.raises(BalancerError, match="refused: host1: Backend is using a static LB algorithm"):
                    client.set_weights({"host1": 10})


@needs_haproxy
@pytest.mark.usefixtures("haproxy_in_full")
@pytest.mark.parametrize("balance", ["static-rr", "source", "uri", "hdr(X-Key)", "url_param id"])
def test_a_static_algorithm_takes_only_nothing_and_everything(balance: str) -> None:
    with web_servers(3) as ports, haproxy(backend(ports, balance)) as running:
        client = HAProxy(running.socket, "web", PATIENCE_S)
        with pytest.raises(BalancerError, match=r"static LB algorithm.*\(use `balance roundrobin`"):
            client.set_weights({"host1": 10})
        client.set_weights({"host1": 0})
        assert running.shares(30)[0] == 0.0


@needs_haproxy
@pytest.mark.usefixtures("haproxy_in_full")
@oldest_and_newest_too
def test_first_takes_weights_and_does_nothing_with_them() -> None:
    assert share("first", 10) == 1.0


def test_each_algorithm_is_documented() -> None:
    text = (ROOT / "docs/reference/balancing.md").read_text()
    for name in ALGORITHMS:
        assert f"`{name}" in text, name


def test_what_weights_mean_is_data_of_the_balancer() -> None:
    assert weights_mean("leastconn") == "concurrency"
    assert weights_mean(configured_name("unknown")) == weights_mean("random") == "draws"
    assert weights_mean("newrr") is None
    assert not snapshot((), "newrr").by_concurrency, "one that is not known is taken for one that shares"
    of_ipvs = {name: row.weights_mean for name, row in SCHEDULERS.items()}
    assert of_ipvs["wrr"] == "share"
    assert {of_ipvs[name] for name in ("wlc", "sed", "nq")} == {"concurrency"}
    assert {of_ipvs[name] for name in ("sh", "mh")} == {"keys"}
    assert {of_ipvs[name] for name, row in SCHEDULERS.items() if row.refused} == {"none"}
    assert all(snapshot((), name).by_concurrency for name in ("leastconn", "wlc"))
    assert [name for name in SCHEDULERS if snapshot((), name).serves_in_runs] == ["wrr"]
