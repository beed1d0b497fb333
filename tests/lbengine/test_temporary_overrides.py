"""What the second stage asks of lbengine for a while, on a real HAProxy: the guard has the last word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slackwater.core.control import Request
from tests.support.engine_site import HOSTS, DrivenHAProxy
from tests.support.real_haproxy import backend, haproxy, needs_haproxy, web_servers

pytestmark = needs_haproxy


@pytest.fixture
def site(tmp_path: Path) -> Iterator[DrivenHAProxy]:
    with web_servers(3) as ports, haproxy(backend(ports, options="weight 100 maxconn 50")) as balancer:
        running = DrivenHAProxy(balancer, ports, tmp_path)
        running.cycle()
        yield running
        running.journal.close()


def override(site: DrivenHAProxy, node: str, action: str = "drain", for_s: Any = 10.0, **more: Any) -> str:
    question = {"action": action, "node": node, "for_s": for_s, "by": "retune", "why": "php-fpm reloads", **more}
    return site.engine.override_temporarily(question, site.now_s)


def test_a_drain_takes_all_weight_at_once_and_its_end_gives_it_back_at_once(site: DrivenHAProxy) -> None:
    assert override(site, "host2") == "web: host2: drained for retune: php-fpm reloads, for 10 s"
    assert "host2 100 -> 0 (drained for retune: php-fpm reloads)" in site.cycle()
    assert site.weights() == [100, 0, 100]
    assert site.changes()[-1].why == "drained for retune: php-fpm reloads"
    override(site, "host2", "undo")
    site.cycle()
    assert site.weights() == [100, 100, 100]


def test_a_drain_ends_by_itself(site: DrivenHAProxy) -> None:
    override(site, "host2", for_s=2.0)
    site.cycle()
    assert site.weights()[1] == 0
    site.cycle(after_s=2.0)
    assert site.weights()[1] == 100


@pytest.mark.parametrize("step_s", [86_400.0, -86_400.0])
def test_a_step_of_the_wall_clock_changes_nothing_about_a_drain(site: DrivenHAProxy, step_s: float) -> None:
    override(site, "host2", for_s=2.0)
    site.engine._wall = lambda: 1e9 + step_s
    site.cycle()
    site.cycle(after_s=1.7)
    assert site.weights() == [100, 0, 100]
    site.cycle(after_s=0.2)
    assert site.weights()[1] > 0


def test_no_more_than_the_guard_allows_are_drained_and_never_all(site: DrivenHAProxy) -> None:
    for host in HOSTS:
        override(site, host)
    site.cycle()
    assert sorted(site.weights()) == [0, 100, 100]


def test_verdicts_that_are_not_believed_do_not_stand_against_a_drain(site: DrivenHAProxy) -> None:
    """All slow is panic for the law, but it is just then that the second stage has work to do."""
    override(site, "host3")
    site.cycle(host1="all_slow", host2="all_slow", host3="all_slow")
    assert site.weights() == [100, 100, 0]


def test_a_limit_is_set_and_taken_back(site: DrivenHAProxy) -> None:
    assert "limited to 8 at a time" in override(site, "host1", "limit", maxconn=8)
    site.cycle()
    assert site.engine.outbox[-1].servers[0].maxconn == 50  # type: ignore[union-attr]
    site.cycle()
    assert site.engine.outbox[-1].servers[0].maxconn == 8  # type: ignore[union-attr]
    override(site, "host1", "undo")
    site.cycle()
    site.cycle()
    assert site.engine.outbox[-1].servers[0].maxconn == 50  # type: ignore[union-attr]


def test_the_end_of_ones_drain_leaves_that_of_another(site: DrivenHAProxy) -> None:
    override(site, "host2")
    override(site, "host2", by="replace", why="chronic", firm=True)
    override(site, "host2", "undo")
    assert "drained for replace: chronic" in site.cycle()
    assert site.weights() == [100, 0, 100]
    override(site, "host2", "undo", by="replace")
    site.cycle()
    assert site.weights() == [100, 100, 100]


def test_who_pauses_has_no_drains_left(site: DrivenHAProxy) -> None:
    override(site, "host2")
    site.cycle()
    site.engine.command(Request(action="pause", by="alice", why="deploy"), site.now_s)
    assert site.weights() == [100, 100, 100]
    with pytest.raises(ValueError, match="paused by alice"):
        override(site, "host2")
    site.engine.command(Request(action="resume", by="alice"), site.now_s)
    site.cycle()
    assert site.weights() == [100, 100, 100]


def test_a_server_that_is_held_keeps_its_baseline_weight_beside_a_neighbour_until_the_hold_ends(
    site: DrivenHAProxy,
) -> None:
    answer = override(site, "host2", "hold", for_s=5.0)
    assert answer == "web: host2: kept at its baseline weight for retune: php-fpm reloads, for 5 s"
    site.cycle(host2="interference")
    assert site.weights() == [100, 100, 100]
    site.cycle(after_s=5.0, host2="interference")
    assert site.weights()[1] < 100
    override(site, "host2", "hold")
    site.cycle(host2="interference")
    assert site.weights() == [100, 100, 100]


def test_a_drain_goes_before_a_hold(site: DrivenHAProxy) -> None:
    override(site, "host2", "hold")
    override(site, "host2")
    site.cycle()
    assert site.weights() == [100, 0, 100]


@pytest.mark.parametrize(
    ("node", "more", "problem"),
    [
        ("host9", {}, "no server of web is the node 'host9'"),
        ("host1", {"for_s": 3600.0}, "`for_s` must be more than 0 and at most 60 seconds"),
        ("host1", {"for_s": "long"}, "`for_s` must be"),
        ("host1", {"action": "limit", "maxconn": 0}, "`maxconn` must be a whole number from 1, got 0"),
    ],
)
def test_an_override_that_makes_no_sense_is_refused(
    site: DrivenHAProxy, node: str, more: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        override(site, node, **more)
