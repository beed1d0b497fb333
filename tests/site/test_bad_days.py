"""Rarer days on the test site: deploys, slow databases, errors, half a server, a wrong password, other shapes."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise

import pytest

from tests.site.controller import MONITOR
from tests.site.site import SHAPES, missing
from tests.site.story import CALM_AGAIN_S, NOTICED_S, Day, day

LACKS = missing()
pytestmark = [
    pytest.mark.lab,
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(LACKS), reason=f"the test site cannot run here; missing: {'; '.join(LACKS)}"),
]
BASELINE = {"web1": 100, "web2": 100, "web3": 100}
WATCHED_S = 15.0
SLOW, FAILS = "/var/www/slow", "/var/www/fails"
"""The page of the application looks at them: milliseconds that its database takes, and whether it fails."""
USUAL_KNOWN_S = 420.0
"""What is usual is known from five whole minutes on."""


def test_a_deploy_on_one_server_after_the_other_moves_nothing(today: Day) -> None:
    today.act()
    for web in today.webs:
        web.services["php-fpm"].signal(signal.SIGUSR2)
        web.services["apache"].signal(signal.SIGUSR1)
        assert all(weights == BASELINE for weights in today.seen(5.0))
    today.calms_down()


def test_a_slow_database_of_all_servers_moves_nothing_and_is_no_neighbour(today: Day) -> None:
    today.act()
    with ExitStack() as stack:
        for web in today.webs:
            stack.enter_context(today.file(web, SLOW, "150"))
        assert all(weights == BASELINE for weights in today.seen(WATCHED_S))
        assert "noisy neighbour" not in today.pool()["headline"]
        assert not any("weight of" in line for line in today.log(WATCHED_S))


def test_a_server_whose_requests_fail_is_named_and_gets_none_but_those_of_trials(today: Day) -> None:
    today.act()
    with today.file(today.webs[1], FAILS):
        today.until(today.weights, lambda weights: weights["web2"] == 0, "web2 gets nothing", within_s=NOTICED_S)
        failing = today.until(lambda: today.pool()["headline"], lambda text: "web2 fails" in text, "status")
        assert failing.startswith("2 of 3 calm; web2 fails "), failing
        status, lines = today.check()
        assert any(line.startswith("! server web2 of pool web: it fails ") for line in lines), lines
        assert status == 0
        assert all(weights["web1"] == weights["web3"] == 100 for weights in today.seen(WATCHED_S))
    today.until(
        lambda: today.pool()["headline"], lambda text: "fails" not in text, "it fails no more", within_s=CALM_AGAIN_S
    )
    today.calms_down()


def test_half_a_server_is_no_saw_and_is_given_its_load_back(today: Day) -> None:
    today.act()
    today.site.set_quota(today.webs[2], 0.15)
    weights = [seen["web3"] for seen in today.seen(30.0)]
    turns = [after < before for before, after in pairwise(weights) if after != before]
    falls = sum(down and not was for was, down in pairwise([False, *turns]))
    assert falls <= 2, weights
    today.site.set_quota(today.webs[2], 0.3)
    today.has_baseline()


def test_a_wrong_password_of_a_monitor_is_found_on_both_sides(today: Day) -> None:
    web = today.webs[1]
    password = web.machine.place("/etc/slackwater/bus.password")
    right = password.read_text()
    there = ("/usr/bin/slackwater-monitor", "check")
    printed = web.machine.run(*there)
    assert printed.returncode == 0, printed.stdout
    assert "ok       settings      /etc/slackwater/node.toml: node web2, pool web\n" in printed.stdout
    assert "logged in as web2 over TLS" in printed.stdout
    password.write_text("wrong\n")
    printed = web.machine.run(*there)
    assert printed.returncode == 1
    assert "MISSING  bus " in printed.stdout
    remedy = "wrong password or unknown user: `slackwater bus node add web web2` on the balancer gives both"
    assert remedy in printed.stdout
    web.machine.call("systemctl", "restart", MONITOR)
    lost = "✕ node web2 of pool web: "
    lines = today.until(lambda: today.check()[1], lambda lines: any(line.startswith(lost) for line in lines), "check")
    assert lines[-1].startswith("missing: 1 of ")
    today.shows(re.compile(r"[012] of 3 calm; .*\bweb2\b[^;]* (?:is|are) unknown"))
    password.write_text(right)
    web.machine.call("systemctl", "restart", MONITOR)
    today.calms_down()
    assert today.check()[1][-1] == "nothing is missing"


def test_a_reload_with_other_servers_is_followed(today: Day) -> None:
    cfg = today.site.balancer.place("/etc/haproxy/haproxy.cfg")
    before = cfg.read_text()
    web1, web2, web3 = today.webs
    cfg.write_text(
        before.replace(f"server web3 {web3.address}:80", "# web3 is away").replace(
            f"server web2 {web2.address}:80", f"server web2 {web2.address}:80 weight 50"
        )
    )
    today.site.reload_haproxy()
    try:
        today.act()
        today.until(
            lambda: {row["server"]: row["baseline"] for row in today.pool()["rows"] if row["server"]},
            lambda baselines: baselines == {"web1": 100, "web2": 50},
            "the baselines are the configured weights",
        )
        assert today.check()[1][-1] == "nothing is missing"
        with today.neighbour(web1):
            today.is_relieved(today.webs[0])
        there = {"web1": 100, "web2": 50}
        today.until(today.weights, lambda weights: weights == there, "all weights are back", CALM_AGAIN_S)
    finally:
        cfg.write_text(before)
        today.site.reload_haproxy()
    today.calms_down()


def test_a_slow_database_of_one_server_alone_is_told_from_a_neighbour(today: Day) -> None:
    """The last: by then it is known what is usual."""
    today.act()
    today.seen(max(0.0, USUAL_KNOWN_S - (time.monotonic() - today.load.begin_mono_s)))
    with today.file(today.webs[1], SLOW, "150"):
        headline = today.until(
            lambda: today.pool()["headline"], lambda text: "web2 is slow (1" in text, "status", within_s=90.0
        )
        assert "and no neighbour is the cause: its CPU, disk and memory are as in calm" in headline
        assert headline.startswith("2 of 3 calm; web2 is slow (")
        today.shows("web2 is slow (")
        assert all(weights == BASELINE for weights in today.seen(WATCHED_S))
    today.until(
        lambda: today.pool()["headline"], lambda text: "slow" not in text, "it is slow no more", within_s=CALM_AGAIN_S
    )


@pytest.fixture(params=[name for name in SHAPES if name != "stock"])
def other_day(request: pytest.FixtureRequest) -> Iterator[Day]:
    with day(SHAPES[str(request.param)]) as made:
        yield made


def test_other_shapes_are_green_and_relieve_a_server_beside_a_neighbour(other_day: Day) -> None:
    assert other_day.check()[1][-1] == "nothing is missing"
    other_day.act()
    with other_day.neighbour(other_day.webs[0], seconds=30.0):
        seen = other_day.seen(20.0, at_most=lambda: other_day.weights()["web1"] < 100)
    if other_day.site.shape.app == "burn" and not other_day.site.shape.tls:
        assert other_day.weights()["web1"] < 100 or seen[-1]["web1"] < 100, "who feels it is relieved"
    other_day.has_baseline()
    other_day.calms_down()
