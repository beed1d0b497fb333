"""A weight that a person set by hand is theirs: it becomes no baseline, is not changed, and every command says so."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from slackwater.core.config import ControllerSettings, LbengineSettings
from slackwater.core.control import Request
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import Cycle, Mode
from slackwater.lbengine.backends.ipvs.settings import IpvsPool
from slackwater.lbengine.balancer import Balancer, Server, Snapshot
from slackwater.lbengine.engine import Engine
from slackwater.lbengine.restore import restore
from slackwater.views.pool import pool_status
from tests.support.engine_site import DrivenHAProxy
from tests.support.real_haproxy import backend, haproxy, needs_haproxy, web_servers

pytestmark = [needs_haproxy, pytest.mark.usefixtures("haproxy_in_full")]
HELD = "host2 is held at 40 by someone else, its baseline is 100"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[DrivenHAProxy]:
    with web_servers(3) as ports, haproxy(backend(ports)) as balancer:
        made = DrivenHAProxy(balancer, ports, tmp_path)
        yield made
        made.journal.close()


def by_hand(site: DrivenHAProxy, server: str = "host2", weight: int = 40) -> None:
    site.balancer.send(f"set server web/{server} weight {weight}")


def is_lowered(site: DrivenHAProxy, by_hand: int = 40) -> bool:
    """host1 by us, and host2 as the person left it."""
    ours, theirs, other = site.weights()
    return ours < 50 and (theirs, other) == (by_hand, 100)


def put_back(site: DrivenHAProxy) -> list[str]:
    """`slackwater restore --all`, and what it says."""
    sentences: list[str] = []
    settings = ControllerSettings(pool=[site.pool()], state_dir=str(site.folder))
    restore(settings, site.pool(), "alice", "by hand", sentences.append)
    return sentences


def order(site: DrivenHAProxy, action: str, mode: Mode | None = None) -> str:
    return site.engine.command(Request(action=action, by="alice", mode=mode), site.now_s)  # type: ignore[arg-type]


def test_pause_and_resume_do_not_make_it_the_baseline_and_restore_all_lowers_nobody(site: DrivenHAProxy) -> None:
    site.cycle()
    by_hand(site)
    assert order(site, "pause") == f"web: paused by alice; {HELD}"
    assert HELD in order(site, "resume")
    site.cycle(host1="interference")
    site.balancer.send("set server web/host2 weight 100")
    site.cycle(host1="interference")
    site.start()  # as after kill -9
    assert put_back(site) == []
    assert site.weights() == [100, 100, 100]


def test_it_is_left_alone_by_a_start_an_episode_a_stop_and_a_restore(site: DrivenHAProxy) -> None:
    by_hand(site)
    site.start()
    assert "host2 100 -> 40 by someone else" in site.cycle()
    assert HELD in site.cycle(host1="interference")
    assert is_lowered(site)
    site.start()
    assert HELD in site.cycle(host1="interference")
    assert is_lowered(site)
    assert put_back(site) == ["host2 keeps weight 40, which somebody else has set; 100 is configured"]
    assert site.weights() == [100, 40, 100]
    site.start()
    site.cycle(host1="interference")
    assert "host2" not in site.engine.stop(site.now_s, "it stops")
    assert site.weights() == [100, 40, 100]


def test_one_that_is_set_during_an_episode_is_kept_by_a_restore_after_a_crash(site: DrivenHAProxy) -> None:
    site.cycle()
    site.cycle(host1="interference")
    by_hand(site)
    site.cycle(host1="interference")
    site.start()
    assert put_back(site) == ["host2 keeps weight 40, which somebody else has set; 100 is configured"]
    assert site.weights() == [100, 40, 100]


def test_from_observe_to_act_it_stays_theirs(site: DrivenHAProxy) -> None:
    site.start(mode="observe")
    by_hand(site)
    assert HELD in site.cycle(host1="interference")
    assert HELD in order(site, "mode", "act")
    assert HELD in site.cycle(host1="interference")
    assert is_lowered(site)
    assert order(site, "mode", "observe").endswith(HELD + "; 1 other unchanged")
    assert site.weights() == [100, 40, 100]


def test_above_the_configured_weight_it_is_theirs_too(site: DrivenHAProxy) -> None:
    by_hand(site, weight=150)
    site.cycle()
    site.cycle(host1="interference")
    assert is_lowered(site, 150)
    put_back(site)
    assert site.weights() == [100, 150, 100]


def test_back_at_its_configured_weight_it_is_driven_again(site: DrivenHAProxy) -> None:
    by_hand(site)
    site.cycle()
    by_hand(site, weight=100)
    site.cycle()
    assert "host2 100 -> 0" in site.cycle(host2="interference")


def test_observe_says_where_a_server_would_be_and_where_it_is(site: DrivenHAProxy) -> None:
    site.start(mode="observe")
    site.cycle()
    assert "would set host2 100 -> 0" in site.cycle(host2="interference")
    sentence = site.cycle(host2="interference")
    assert "host2 would be at 0 of 100, and is at 100 (interference)" in sentence
    assert "stays at" not in sentence


def test_a_reload_during_an_episode_is_the_reason_and_why_the_weight_is_wanted_is_said(site: DrivenHAProxy) -> None:
    site.cycle()
    site.cycle(host1="interference")
    site.balancer.reload()
    site.cycle(host1="interference")
    change = site.changes()[-1]
    assert (change.target, change.before, change.cause) == ("host1", 100, "sent_again")
    reason = f"HAProxy was reloaded or restarted and shows 100; {change.after} is set again: "
    assert change.why.startswith(f"{reason}interference:")


class Table(Balancer):
    """A balancer without configured weights, as IPVS is."""

    def __init__(self) -> None:
        self.weights = {"10.0.0.1:80": 20, "10.0.0.2:80": 20}

    def read(self) -> Snapshot:
        servers = tuple(Server(name=name, weight=weight) for name, weight in self.weights.items())
        return Snapshot(balance="wrr", weights_mean="share", servers=servers, counts="connections")

    def set_weights(self, weights: Mapping[str, int]) -> None:
        self.weights |= weights


def test_where_no_weight_is_configured_the_command_says_whose_value_it_keeps(tmp_path: Path) -> None:
    table, pool = Table(), IpvsPool("web", service="-t 10.0.0.9:80", mode="act")
    with Journal.open(journal_path(tmp_path)) as journal:
        engine = Engine(pool, LbengineSettings(), tmp_path, journal, balancer=table)
        engine.cycle(1.0)
        engine.command(Request(action="pause", by="alice"), 2.0)
        table.weights["10.0.0.2:80"] = 8
        sentence = engine.cycle(3.0)
        resumed = engine.command(Request(action="resume", by="alice"), 4.0)
    assert "baseline: 10.0.0.2:80 has weight 8 now, it had 20, and none is configured" in sentence
    assert resumed.endswith(
        "; IPVS has no configured weights, so those of now are the baselines: 10.0.0.1:80 20, 10.0.0.2:80 8"
    )


def test_a_server_that_the_site_adds_has_its_own_configured_weight_as_baseline(site: DrivenHAProxy) -> None:
    site.cycle()
    ports = site.ports
    answer = site.balancer.send(f"add server web/host4 127.0.0.1:{ports[0]} weight 30")
    if "New server registered" not in answer:
        pytest.skip(f"this HAProxy adds no servers at run time: {answer.strip().splitlines()[0]}")
    site.balancer.send("enable server web/host4")
    assert "baseline: host4 is new with weight 30" in site.cycle()
    site.balancer.send("set server web/host4 weight 15")
    assert "host4 is held at 15 by someone else, its baseline is 30" in (site.cycle(), site.cycle())[1]


def test_a_slow_server_that_gets_its_full_weight_back_by_hand_says_whose_weight_it_is(site: DrivenHAProxy) -> None:
    site.cycle()
    site.cycle(host1="interference")
    by_hand(site, "host1", 100)
    site.cycle(host1="interference")
    site.cycle(host1="interference")
    assert site.weights() == [100, 100, 100]
    set_back = site.changes()[-1]
    assert (set_back.target, set_back.by) == ("host1", "someone else")
    assert set_back.why == "someone else gave it its full weight back; left alone until nothing calls for less"
    site.journal.record(next(sent for sent in reversed(site.engine.outbox) if isinstance(sent, Cycle)))
    shown = {row.server: row.summary for row in pool_status(site.journal, "web", time.time()).rows}
    assert shown["host1"].startswith("someone else set its weight, so it is left alone")
    assert "someone else" not in shown["host2"]


def test_a_server_with_weight_0_in_the_configuration_gets_a_baseline_by_hand(tmp_path: Path) -> None:
    with web_servers(3) as ports, haproxy(f"{backend(ports).rstrip()} weight 0\n") as balancer:
        site = DrivenHAProxy(balancer, ports, tmp_path)
        site.start(mode="observe")
        site.cycle()
        assert "baseline" not in order(site, "mode", "act").replace("(it has no baseline weight)", "")
        by_hand(site, "host3", 50)
        site.cycle()
        assert site.changes()[-1].why == "someone else gave it this weight, which is its baseline now"
        order(site, "pause")
        given = "; configured with weight 0, and given another, which is the baseline now: host3 50"
        assert order(site, "resume").endswith(given)
        site.journal.close()
