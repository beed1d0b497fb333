"""The engine's turns against a real HAProxy. Time is an argument, so nothing here waits."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from slackwater.core.config import ControllerSettings
from slackwater.core.control import Request
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import Change, ChangeCause, Cycle, State, Verdict
from slackwater.lbengine.backends.haproxy.haproxy import HAProxy
from slackwater.lbengine.balancer import BalancerError, BalancerUnreachable
from slackwater.lbengine.baseline import BaselineError
from slackwater.lbengine.decision.rates import Rates
from slackwater.lbengine.engine import Engine
from slackwater.lbengine.outcome.outcomes import LEAST_AFTER_S, FollowUps
from slackwater.lbengine.overrides.overrides import Pause
from slackwater.lbengine.restore import restore
from slackwater.lbengine.writer import change
from tests.support.engine_site import CALM_RPS, HOSTS, SETTINGS, SLOW_RPS, DrivenHAProxy
from tests.support.real_haproxy import (
    backend,
    haproxy,
    needs_haproxy,
    oldest_and_newest_too,
    stopped,
    until,
    web_servers,
)
from tests.support.real_processes import free_port

pytestmark = needs_haproxy


@pytest.fixture
def site(tmp_path: Path, haproxy_in_full: str) -> Iterator[DrivenHAProxy]:  # noqa: ARG001 - which one `haproxy` starts
    with web_servers(3) as ports, haproxy(backend(ports)) as balancer:
        running = DrivenHAProxy(balancer, ports, tmp_path)
        yield running
        running.journal.close()


@oldest_and_newest_too
def test_a_noisy_neighbour_moves_the_load_and_its_end_brings_it_back(site: DrivenHAProxy) -> None:
    assert site.cycle() == "web: 3 unchanged"
    assert not site.baseline_file().exists()
    assert (
        site.cycle(host1="interference")
        == "web: host1 100 -> 0 (interference, at most 82% of capacity lost, run delay 14.2x); 2 others unchanged"
    )
    assert site.weights() == [0, 100, 100]
    assert site.baseline_file().exists()
    assert site.cycle(host1="interference") == "web: host1 stays at 0 of 100 (interference); 2 others unchanged"
    assert site.cycle() == "web: host1 0 -> 100 (calm); 2 others unchanged"
    assert site.weights() == [100, 100, 100]
    assert site.cycle() == "web: 3 unchanged"


def test_each_change_is_recorded_with_before_after_and_why(site: DrivenHAProxy) -> None:
    site.cycle()
    site.cycle(host1="interference")
    (change,) = site.changes()
    assert (change.what, change.target, change.before, change.after) == ("weight", "host1", 100, 0)
    assert change.why == "interference: run delay 14.2x; it gets no requests: the others can carry all 240 requests/s"
    assert (change.by, change.applied) == ("lbengine", True)
    assert [message for message in site.engine.outbox if isinstance(message, Change)] == [change]


def test_the_cycle_message_shows_the_servers_after_the_turn(site: DrivenHAProxy) -> None:
    site.cycle()
    site.balancer.request(30)
    sentence = site.cycle(1.0, host1="interference")
    cycle = site.engine.outbox[-1]
    assert isinstance(cycle, Cycle)
    assert (cycle.sentence, cycle.mode, cycle.paused, cycle.balance, cycle.law) == (
        sentence,
        "act",
        False,
        "roundrobin",
        "optimal",
    )
    first = cycle.servers[0]
    assert (first.server, first.weight, first.baseline, first.wanted) == ("host1", 0, 100, 0)
    assert first.rps == pytest.approx(10.0)
    assert first.share == pytest.approx(1 / 3)
    assert first.why.startswith("interference: run delay 14.2x")


def test_the_rate_comes_from_haproxys_counters(site: DrivenHAProxy) -> None:
    site.cycle()
    site.balancer.request(30)
    site.cycle(1.0, host1="interference")
    assert "the others can carry all 30 requests/s" in site.changes()[0].why


def test_observe_decides_and_records_but_touches_nothing(site: DrivenHAProxy) -> None:
    site.start(mode="observe")
    site.cycle()
    for turn in range(3):
        sentence = site.cycle(host1="interference")
        assert ("would set host1 100 -> 0" in sentence) == (turn == 0), sentence
    (change,) = site.changes()
    assert (change.before, change.after, change.applied) == (100, 0, False)
    cycle = site.engine.outbox[-1]
    assert isinstance(cycle, Cycle)
    assert (cycle.servers[0].weight, cycle.servers[0].wanted) == (100, 0)
    assert site.weights() == [100, 100, 100]
    assert not site.baseline_file().exists()
    for _ in range(25):
        site.cycle()
    assert site.changes()[-1].after == 100
    assert not any(change.applied for change in site.changes())


def test_in_observe_mode_a_weight_set_by_hand_is_no_baseline(site: DrivenHAProxy) -> None:
    site.start(mode="observe")
    site.cycle()
    site.balancer.send("set server web/host2 weight 40")
    site.cycle()
    assert site.changes() == []
    cycle = site.engine.outbox[-1]
    assert isinstance(cycle, Cycle)
    assert (cycle.servers[1].weight, cycle.servers[1].baseline, cycle.servers[1].wanted) == (40, 100, 40)
    assert "host2 is held at 40 by someone else, its baseline is 100" in cycle.sentence


@oldest_and_newest_too
def test_after_a_reload_the_wanted_weights_are_back_in_the_same_cycle(site: DrivenHAProxy) -> None:
    site.cycle()
    site.cycle(host1="interference")
    before = site.balancer.pid()
    site.balancer.reload()
    assert site.weights() == [100, 100, 100]
    sentence = site.cycle(host1="interference")
    assert f"HAProxy was reloaded or started anew (pid {before} -> {site.balancer.pid()}); host1 100 -> 0" in sentence
    assert site.weights() == [0, 100, 100]
    assert all(change.by == "lbengine" for change in site.changes())


def test_a_reload_with_another_weight_is_the_new_baseline(site: DrivenHAProxy) -> None:
    site.cycle()
    site.cycle(host1="interference")
    site.balancer.reload(backend(site.ports, options="weight 60"))
    sentence = site.cycle(host1="interference")
    assert "host1 is configured with 60 now, it was 100" in sentence
    assert site.weights() == [0, 60, 60]
    for _ in range(25):
        site.cycle()
    assert site.weights() == [60, 60, 60]


def test_a_reload_that_removes_and_adds_servers_is_followed(site: DrivenHAProxy) -> None:
    site.cycle()
    site.cycle(host1="interference")
    site.balancer.reload(backend(site.ports).replace("host3", "host4"))
    sentence = site.cycle(host1="interference")
    assert "host4 is new with weight 100" in sentence
    assert "host3 is gone" in sentence
    assert site.balancer.weight("host1") == 0


def test_without_verdicts_the_lease_runs_out_and_the_baseline_is_set(site: DrivenHAProxy) -> None:
    site.cycle()
    site.cycle(host1="interference")
    site.silent_cycle(SETTINGS.lease_s - 0.1)
    assert site.weights() == [0, 100, 100]
    assert "host1 0 -> 100 (nothing new is known of it for 3 s: back to the baseline)" in site.silent_cycle()
    assert site.weights() == [100, 100, 100]


def test_a_node_that_falls_silent_keeps_its_baseline_weight(site: DrivenHAProxy) -> None:
    site.cycle()
    site.cycle(host1="interference")
    site.now_s += SETTINGS.lease_s
    for host in ("host2", "host3"):
        verdict = Verdict(
            v=1, node=host, pool="web", time_unix_s=0, state="calm", since_unix_s=0, severity=0, path=[], model=""
        )
        site.engine.inbox.put(verdict, site.now_s)
    assert "host1 0 -> 100 (nothing new is known" in site.silent_cycle()


@pytest.mark.parametrize("state", ["unknown", "overload", "calm"])
def test_only_interference_lowers_a_weight(site: DrivenHAProxy, state: State) -> None:
    site.cycle()
    assert site.cycle(host1=state) == "web: 3 unchanged"
    assert site.weights() == [100, 100, 100]


def test_two_of_three_beside_neighbours_are_both_reduced_and_one_of_them_is_drained_at_most(
    site: DrivenHAProxy,
) -> None:
    site.cycle()
    site.cycle(host1="interference")
    for _ in range(25):
        site.cycle(host1="interference", host2="interference")
    first, second, third = site.weights()
    assert third == 100
    assert max(first, second) in range(10, 50)
    assert "all servers are slow together" in site.cycle(host1="all_slow", host2="all_slow", host3="all_slow")
    assert site.weights() == [100, 100, 100]


def test_all_slow_in_one_verdict_is_panic(site: DrivenHAProxy) -> None:
    site.cycle()
    assert "no neighbour is the cause: all have their baseline weights" in site.cycle(
        host1="interference", host2="all_slow"
    )
    assert site.weights() == [100, 100, 100]


@oldest_and_newest_too
def test_a_weight_that_someone_else_set_is_left_alone_until_it_is_back(site: DrivenHAProxy) -> None:
    site.cycle()
    site.balancer.send("set server web/host2 weight 30")
    assert "host2 100 -> 30 by someone else" in site.cycle(host2="interference")
    (change,) = site.changes()
    assert (change.target, change.before, change.after, change.by) == ("host2", 100, 30, "someone else")
    for _ in range(3):
        assert "host2 is held at 30 by someone else" in site.cycle(host2="interference")
    assert site.weights() == [100, 30, 100]
    assert len(site.changes()) == 1
    site.balancer.send("set server web/host2 weight 100")
    assert site.cycle() == "web: 3 unchanged"
    assert "host2 100 -> 0" in site.cycle(host2="interference")


def test_a_server_that_someone_put_back_stays_so_for_this_episode(site: DrivenHAProxy) -> None:
    site.cycle()
    site.cycle(host1="interference")
    site.balancer.send("set server web/host1 weight 100")
    assert "host1 0 -> 100 by someone else" in site.cycle(host1="interference")
    site.cycle(host1="interference")
    assert site.weights() == [100, 100, 100]
    site.cycle()
    assert "host1 100 -> 0" in site.cycle(host1="interference")


@oldest_and_newest_too
def test_servers_in_maintenance_come_back_with_a_few_requests_and_a_pause_puts_their_weights_back(
    site: DrivenHAProxy,
) -> None:
    site.cycle()
    site.balancer.send("set server web/host3 state maint")
    site.balancer.send("set server web/host2 state maint")
    assert "it takes no requests now" in site.cycle(host3="interference")
    assert "host1 100 ->" not in site.cycle(host1="interference"), "it is the only one that takes requests"
    few = site.weights()[2]
    assert site.weights() == [100, few, few]
    assert 0 < few < 20
    assert [(change.target, change.cause) for change in site.changes()] == [("host2", "away"), ("host3", "away")]
    site.engine.command(Request(action="pause", by="alice"), site.now_s)
    assert site.weights() == [100, 100, 100]


@oldest_and_newest_too
def test_a_server_comes_up_with_a_few_requests_and_has_its_weight_when_these_are_fast(site: DrivenHAProxy) -> None:
    site.cycle()
    site.balancer.send("set server web/host3 state maint")
    site.cycle()
    few = site.weights()[2]
    site.balancer.send("set server web/host3 state ready")
    weights = []
    for _ in range(40):
        site.balancer.request(20)
        site.cycle()
        weights.append(site.weights()[2])
    assert weights[0] == few < 20
    assert weights == sorted(weights), "no request waits"
    assert weights[-1] == 100
    assert {change.cause for change in site.changes()} == {"away", "warm_up"}


def test_a_server_that_a_check_found_down_and_one_that_is_drained_are_left_alone(tmp_path: Path) -> None:
    options = "weight 100 check inter 200ms fall 1 rise 1"
    with web_servers(2) as ports, haproxy(backend([*ports, free_port()], options=options)) as balancer:
        site = DrivenHAProxy(balancer, ports, tmp_path)
        client = HAProxy(balancer.socket, "web", 20.0)
        until(lambda: client.read().servers[2].condition == "down", "the check finds host3 down")
        site.cycle()
        assert "host3 is left alone (down" in site.cycle(host3="interference")
        site.balancer.send("set server web/host2 state drain")
        assert "host2 is left alone (draining" in site.cycle(host2="interference")
        assert "host1 100 ->" not in site.cycle(host1="interference"), "it is the only one that takes requests"
        assert site.weights() == [100, 100, 100]
        assert site.changes() == []
        site.balancer.send("set server web/host2 state ready")
        until(lambda: client.read().servers[1].available, "host2 is back")
        site.cycle()
        site.cycle(host2="interference")
        assert site.weights() == [100, 0, 100], "back, it is driven again"
        site.journal.close()


def test_when_only_the_reduced_server_is_left_it_takes_all_requests(site: DrivenHAProxy) -> None:
    site.cycle()
    site.cycle(host1="interference")
    site.balancer.send("set server web/host2 state maint; set server web/host3 state maint")
    site.cycle(host1="interference")
    assert site.weights()[0] > 0
    site.balancer.request(3)
    site.cycle()
    assert site.weights()[0] == 100


def test_pause_puts_the_weights_back_and_outlives_a_restart(site: DrivenHAProxy) -> None:
    site.cycle()
    site.cycle(host1="interference")
    assert site.engine.command(Request(action="pause", by="alice", why="deploy"), site.now_s) == (
        "web: host1 0 -> 100 put back; paused by alice (deploy)"
    )
    assert site.weights() == [100, 100, 100]
    assert [(change.what, change.by) for change in site.changes()[-2:]] == [("pause", "alice"), ("weight", "alice")]
    site.start()
    assert site.cycle(host1="interference") == "web: paused by alice (deploy)"
    assert site.weights() == [100, 100, 100]
    cycle = site.engine.outbox[-1]
    assert isinstance(cycle, Cycle)
    assert cycle.paused


def test_in_a_pause_weights_are_the_operators_and_resume_leaves_them_to_them(site: DrivenHAProxy) -> None:
    site.cycle()
    site.engine.command(Request(action="pause", by="alice"), site.now_s)
    site.balancer.send("set server web/host2 weight 50")
    site.cycle(host1="interference")
    assert site.weights() == [100, 50, 100]
    assert "already" in site.engine.command(Request(action="pause", by="bob"), site.now_s)
    resumed = site.engine.command(Request(action="resume", by="bob"), site.now_s)
    assert resumed.startswith("web: resumed by bob; host1 100 -> 1")
    assert "host2 is held at 50 by someone else, its baseline is 100" in resumed
    assert site.weights() == [1, 50, 100]
    assert site.engine.command(Request(action="resume", by="bob"), site.now_s) == "web: not paused"
    assert [change.what for change in site.changes()] == ["pause", "resume", "weight"]


def test_a_pause_while_haproxy_is_stuck_takes_effect_when_it_answers(site: DrivenHAProxy) -> None:
    site.cycle()
    site.cycle(host1="interference")
    stuck = site.start()
    stuck._writer.balancer.timeout_s = 0.2  # type: ignore[attr-defined]
    worker = site.balancer.pid()
    with stopped(worker):
        assert "HAProxy does not answer yet" in stuck.command(Request(action="pause", by="alice"), site.now_s)
    stuck._writer.balancer.timeout_s = SETTINGS.socket_timeout_s  # type: ignore[attr-defined]
    assert "host1 0 -> 100 put back" in site.cycle(host1="interference")
    assert site.weights() == [100, 100, 100]


def test_stop_puts_the_weights_back(site: DrivenHAProxy) -> None:
    site.cycle()
    site.cycle(host1="interference")
    assert site.engine.stop(site.now_s, "lbengine stops") == "web: host1 0 -> 100 (lbengine stops)"
    assert site.weights() == [100, 100, 100]
    assert not site.baseline_file().exists()
    assert site.engine.stop(site.now_s, "again") == "web: nothing to put back"


def test_a_killed_engine_is_followed_by_one_that_goes_on_where_it_was(site: DrivenHAProxy) -> None:
    site.cycle()
    site.cycle(host1="interference")
    site.start()
    assert site.silent_cycle() == "web: host1 stays at 0 of 100 (not judged yet); 2 others unchanged"
    assert "host1 stays at 0" in site.cycle(host1="interference")
    for _ in range(25):
        site.cycle()
    assert site.weights() == [100, 100, 100]


def test_a_killed_engine_is_followed_by_one_that_goes_back_when_nobody_speaks(site: DrivenHAProxy) -> None:
    site.cycle()
    site.cycle(host1="interference")
    site.start()
    site.silent_cycle()
    site.silent_cycle(SETTINGS.lease_s)
    for _ in range(25):
        site.silent_cycle()
    assert site.weights() == [100, 100, 100]


def test_observing_after_a_crash_first_puts_back_what_was_left(site: DrivenHAProxy) -> None:
    site.cycle()
    site.cycle(host1="interference")
    site.start(mode="observe")
    assert "host1 0 -> 100 put back" in site.cycle(host1="interference")
    assert site.weights() == [100, 100, 100]
    site.cycle(host1="interference")
    assert site.weights() == [100, 100, 100]


def test_restore_sets_the_stored_baseline_by_itself(site: DrivenHAProxy) -> None:
    site.cycle()
    site.cycle(host1="interference")
    settings = ControllerSettings(pool=[site.pool()], state_dir=str(site.folder))
    (change,) = restore(settings, site.pool(), "alice", "by hand")
    assert site.weights() == [100, 100, 100]
    assert (change.what, change.target, change.before, change.after) == ("restore", "host1", 0, 100)
    assert site.changes()[-1] == change
    assert restore(settings, site.pool(), "alice", "again") == []


def test_after_a_restore_beside_a_running_engine_the_next_change_has_a_baseline_on_disk(site: DrivenHAProxy) -> None:
    site.cycle()
    site.cycle(host1="interference")
    restore(ControllerSettings(pool=[site.pool()], state_dir=str(site.folder)), site.pool(), "alice", "")
    site.cycle(host1="interference")
    assert site.weights() == [100, 100, 100]
    site.cycle()
    site.cycle(host1="interference")
    assert site.weights() == [0, 100, 100]
    assert site.baseline_file().exists()


def test_a_corrupt_baseline_is_refused(site: DrivenHAProxy) -> None:
    site.cycle()
    site.cycle(host1="interference")
    site.baseline_file().write_text("{")
    with pytest.raises(BaselineError, match=r"web\.json"):
        site.start()
    with pytest.raises(BaselineError, match=r"web\.json"):
        restore(ControllerSettings(pool=[site.pool()], state_dir=str(site.folder)), site.pool(), "alice", "")
    assert site.weights() == [0, 100, 100]


def test_what_cannot_be_kept_on_disk_is_not_lowered(site: DrivenHAProxy) -> None:
    site.cycle()
    (site.folder / "baseline").write_text("a file where the folder should be")
    assert "not lowered: host1" in site.cycle(host1="interference")
    assert site.weights() == [100, 100, 100]
    assert site.changes() == []
    (site.folder / "baseline").unlink()
    assert "host1 100 -> 0" in site.cycle(host1="interference")


def test_what_cannot_be_recorded_is_not_lowered_but_comes_back(site: DrivenHAProxy) -> None:
    site.cycle()
    site.cycle(host1="interference")
    site.journal.close()
    site.journal = Journal.open(journal_path(site.folder), read_only=True)
    site.engine._writer._journal = site.journal
    site.cycle()
    assert site.weights() == [100, 100, 100]
    assert "not lowered: host2" in site.cycle(host2="interference")
    assert site.weights() == [100, 100, 100]


def test_what_may_not_be_lowered_is_no_change_in_the_journal_however_long_the_lease_is_not_renewed(
    site: DrivenHAProxy,
) -> None:
    site.cycle()
    site.engine.may_lower = lambda: False
    for _ in range(3):
        assert "not lowered: host1" in site.cycle(host1="interference")
    assert site.changes() == []
    site.engine.may_lower = lambda: True
    site.cycle(host1="interference")
    site.engine.may_lower = lambda: False
    site.cycle()
    assert site.weights() == [100, 100, 100], "the way back stays open"
    assert len(site.changes()) == 2


def test_a_balancer_that_refuses_is_tried_again_and_not_taken_for_someone_else(site: DrivenHAProxy) -> None:
    site.cycle()
    pool = site.pool(socket=site.balancer.operator)
    engine = Engine(pool, SETTINGS, site.folder / "other", site.journal)
    site.engine = engine
    site.cycle()
    for _ in range(3):
        with pytest.raises(BalancerError, match="Permission denied"):
            site.cycle(host1="interference")
    made, failed = site.changes()
    assert (made.after, failed.applied) == (0, False)
    assert "tried again in the next cycle" in failed.why
    engine._writer.balancer.path = site.balancer.socket  # type: ignore[attr-defined]
    assert "host1 100 -> 0" in site.cycle(host1="interference")


def test_the_nodes_may_have_other_names_than_the_servers(site: DrivenHAProxy) -> None:
    engine = site.start(servers={"host1": "host2", "host2": "host1"})
    site.cycle()
    assert "host2 100 -> 0" in site.cycle(host1="interference")
    assert engine.pool.servers["host1"] == "host2"


@pytest.mark.usefixtures("haproxy_in_full")
@pytest.mark.parametrize(("balance", "weights_mean"), [("leastconn", "concurrency"), ("random(2)", "draws")])
def test_where_weights_are_no_plain_shares_the_slow_server_is_drained_too(
    balance: str, weights_mean: str, tmp_path: Path
) -> None:
    with web_servers(3) as ports, haproxy(backend(ports, balance)) as balancer:
        site = DrivenHAProxy(balancer, ports, tmp_path)
        site.cycle()
        site.cycle(host1="interference")
        assert site.weights() == [0, 100, 100]
        site.balancer.request(20)
        site.cycle(1.0, host1="interference")
        cycle = site.engine.outbox[-1]
        assert isinstance(cycle, Cycle)
        assert cycle.servers[0].share == 0.0
        assert cycle.weights_mean == weights_mean
        site.journal.close()


def test_weights_that_another_process_took_than_was_read_do_not_count_as_set(site: DrivenHAProxy) -> None:
    """During a reload two answer for a moment: what the one took is not looked for in the other."""
    client = HAProxy(site.balancer.socket, "web", 20.0)
    client.read()
    site.balancer.reload()
    with pytest.raises(BalancerUnreachable, match=rf"process {site.balancer.pid()} answers now"):
        client.set_weights({"host1": 0})
    client.set_weights({"host1": 1})  # said once: the next look finds what is the case


def test_turns_during_reloads_end_with_the_wanted_weights_and_blame_nobody(site: DrivenHAProxy) -> None:
    site.cycle()
    site.cycle(host1="interference")
    for _ in range(3):
        before = site.balancer.pid()
        reloading = threading.Thread(target=site.balancer.reload)
        reloading.start()
        while reloading.is_alive():
            with contextlib.suppress(BalancerUnreachable):
                site.cycle(0.01, host1="interference")
        reloading.join()
        assert site.balancer.pid() != before
        site.cycle(host1="interference")
        assert site.weights() == [0, 100, 100]
    assert {change.by for change in site.changes()} == {"lbengine"}


class LosesAnswers(HAProxy):
    """Sets the weights, but the answer never comes."""

    def set_weights(self, weights: Mapping[str, int]) -> None:
        super().set_weights(weights)
        raise BalancerUnreachable("the answer was lost")


def test_a_weight_that_was_set_although_the_answer_was_lost_is_ours(site: DrivenHAProxy) -> None:
    site.engine._writer.balancer = LosesAnswers(site.balancer.socket, "web", 20.0)
    site.cycle()
    with pytest.raises(BalancerUnreachable, match="the answer was lost"):
        site.cycle(host1="interference")
    assert site.weights() == [0, 100, 100]
    site.engine._writer.balancer = HAProxy(site.balancer.socket, "web", 20.0)
    assert "host1 stays at 0" in site.cycle(host1="interference")
    assert {change.by for change in site.changes()} == {"lbengine"}


def with_times(site: DrivenHAProxy, slow_ms: float, calm_ms: float, **states: State) -> None:
    """Verdicts that carry response times; their time is the test's clock."""
    for host in HOSTS:
        state = states.get(host, "calm")
        slow = state == "interference"
        site.engine.inbox.put(
            Verdict(
                v=1,
                node=host,
                pool="web",
                time_unix_s=site.now_s,
                state=state,
                since_unix_s=0.0,
                severity=0.82 if slow else 0.0,
                path=["run delay 14.2x"] if slow else [],
                model="start",
                capacity_rps=SLOW_RPS if slow else CALM_RPS,
                rps=80.0,
                rt_p95_ms=slow_ms if host == "host1" else calm_ms,
            ),
            site.now_s,
        )


def turn(site: DrivenHAProxy, slow_ms: float, calm_ms: float, after_s: float = 0.5, **states: State) -> str:
    site.now_s += after_s
    site.balancer.request(6)
    with_times(site, slow_ms, calm_ms, **states)
    return site.engine.cycle(site.now_s)


def test_a_change_shows_what_p95_was_and_is_predicted_to_be_and_later_what_came_of_it(site: DrivenHAProxy) -> None:
    for _ in range(3):
        turn(site, 4.0, 4.0)
    for _ in range(2):
        turn(site, 90.0, 4.0, host1="interference")
    (change,) = site.changes()
    assert change.rt_p95_ms is not None
    assert change.rt_p95_predicted_ms is not None
    assert change.rt_p95_predicted_ms < 10.0 < change.rt_p95_ms
    for _ in range(25):
        turn(site, 0.0, 4.2, host1="interference")
    _, follow = site.changes()
    assert (follow.what, follow.target, follow.follows) == ("outcome", "host1", change.id)
    assert follow.before == change.rt_p95_ms
    assert isinstance(follow.after, float)
    assert follow.after == pytest.approx(4.2, rel=0.05)
    assert re.match(r"p95 \d+\.\d -> 4\.\d ms \(expected \d+\.\d\)", follow.why)
    assert follow.why.endswith(", its share of the requests 33% -> 0%: 10 s after the weight went from 100 to 0")
    for _ in range(40):
        turn(site, 4.2, 4.2)
    back = site.changes()[-1]
    assert (back.what, back.target) == ("outcome", "host1")
    assert "expected" not in back.why, "what was predicted of a higher weight is that of a slow server"
    assert back.rt_p95_predicted_ms is None


def test_a_move_that_is_cut_short_is_reported_when_it_ends(site: DrivenHAProxy) -> None:
    site.cycle()
    for _ in range(12):
        site.cycle(host1="interference")
    for _ in range(20):
        site.cycle()
    down, up = (change for change in site.changes() if change.what == "weight")
    recorded = [change for change in site.changes() if change.what == "outcome"]
    assert [change.follows for change in recorded] == [down.id]
    for _ in range(60):
        site.cycle()
    recorded = [change for change in site.changes() if change.what == "outcome"]
    assert [change.follows for change in recorded] == [down.id, up.id]
    assert recorded[1].why.startswith("the p95 is not known")


def test_a_move_that_is_cut_short_at_once_has_no_outcome() -> None:
    made = [
        change("web", "weight", "host1", before, after, why="", by="test", applied=True, time_unix_s=0.0)
        for before, after in ((100, 0), (0, 2), (2, 0))
    ]
    follow_ups = FollowUps({})
    assert follow_ups.add(made[0], 0.0, 0.3) == []
    assert follow_ups.add(made[1], 0.4, 0.3) == [], "0 s after 100 -> 0 nothing has come of it yet"
    (recorded,) = follow_ups.add(made[2], 0.4 + LEAST_AFTER_S, 0.3)
    assert (recorded[0].first, recorded[1]) == (made[1], LEAST_AFTER_S)


def test_trials_with_few_requests_have_no_outcome_and_cut_no_other_short() -> None:
    def made(before: int, after: int, cause: ChangeCause) -> Change:
        plain = change("web", "weight", "host1", before, after, why="", by="test", applied=True, time_unix_s=0.0)
        return msgspec.structs.replace(plain, cause=cause)

    follow_ups = FollowUps({})
    down, up = made(100, 0, "slow"), made(0, 100, "fast")
    assert follow_ups.add(down, 0.0, 0.3) == []
    for at_s in (2.0, 5.0):
        assert follow_ups.add(made(0, 10, "tried"), at_s, 0.0) == []
        assert follow_ups.add(made(10, 0, "tried"), at_s + 0.5, 0.0) == []
    assert [(move.first, move.last) for move, _ in follow_ups.add(up, 8.0, 0.0)] == [(down, down)]


@pytest.mark.usefixtures("haproxy_in_full")
def test_the_cycle_message_carries_what_the_balancer_sees_of_each_server(tmp_path: Path) -> None:
    with web_servers(2) as ports, haproxy(backend([*ports, free_port()], options="weight 100 maxconn 9")) as balancer:
        site = DrivenHAProxy(balancer, ports, tmp_path)
        site.cycle()
        for _ in range(6):
            balancer.request_any()
        site.cycle(1.0)
        cycle = site.engine.outbox[-1]
        assert isinstance(cycle, Cycle)
        fine, gone = cycle.servers[0], cycle.servers[2]
        assert (fine.queue, fine.queue_mean_ms, fine.errors_per_s, fine.maxconn) == (0, 0.0, 0.0, 9)
        assert fine.balancer_rt_mean_ms is not None
        assert gone.errors_per_s is not None
        assert gone.errors_per_s > 0
        site.journal.close()


@pytest.mark.usefixtures("haproxy_in_full")
def test_a_server_that_keeps_its_clients_by_cookie_is_reported(tmp_path: Path) -> None:
    section = backend([1, 2, 3]).replace("    balance", "    cookie SRV insert\n    balance")
    with web_servers(3) as ports:
        for number, port in enumerate(ports, start=1):
            section = section.replace(f"127.0.0.1:{number} weight 100", f"127.0.0.1:{port} weight 100 cookie c{number}")
        with haproxy(section) as balancer:
            site = DrivenHAProxy(balancer, ports, tmp_path)
            site.cycle()
            remarks = []
            for _ in range(8):
                balancer.request(4, cookie="SRV=c1")
                remarks.append(site.cycle(1.0, host1="interference"))
            assert "host1 gets 100% of the requests, its weight calls for 0%: cookie persistence" in remarks[-1]
            assert "cookie" not in remarks[2]
            assert [change.target for change in site.changes() if change.what == "share"] == ["host1"]
            site.journal.close()


def counted(engine: Engine, rps: float | None) -> None:
    """Has the engine look as if this had been counted last, and nothing since."""
    engine.state = dataclasses.replace(engine.state, rates=Rates(counted_rps=rps))


@pytest.fixture
def limited(tmp_path: Path, haproxy_in_full: str) -> Iterator[DrivenHAProxy]:  # noqa: ARG001 - as above
    """Least connections, and a `maxconn` on each server."""
    with web_servers(3) as ports, haproxy(backend(ports, "leastconn", "weight 100 maxconn 50")) as balancer:
        site = DrivenHAProxy(balancer, ports, tmp_path)
        yield site
        site.journal.close()


def maxconns(site: DrivenHAProxy) -> list[int | None]:
    return [server.maxconn for server in HAProxy(site.balancer.socket, "web", 20.0).read().servers]


def limit(site: DrivenHAProxy) -> str:
    """The second stage requests a limit; the turn after that."""
    question = {"action": "limit", "node": "host1", "for_s": 60.0, "by": "retune", "why": "a trial", "maxconn": 8}
    site.engine.override_temporarily(question, site.now_s)
    return site.cycle()


def unlimit(site: DrivenHAProxy) -> str:
    site.engine.override_temporarily({"action": "undo", "node": "host1", "by": "retune"}, site.now_s)
    return site.cycle()


def test_an_episode_sets_no_limit_in_flight(limited: DrivenHAProxy) -> None:
    """Weights alone do what must be done, also where the slow server must keep some load."""
    limited.rps = 170.0
    for _ in range(3):
        counted(limited.engine, 500.0)
        limited.cycle(0.05, host1="interference")
        assert maxconns(limited) == [50, 50, 50]


@oldest_and_newest_too
def test_a_requested_limit_is_set_kept_over_a_reload_and_taken_back(limited: DrivenHAProxy) -> None:
    limited.cycle()
    assert "host1 maxconn 50 -> 8" in limit(limited)
    assert maxconns(limited) == [8, 50, 50]
    assert '"maxconn": 50' in limited.baseline_file().read_text()
    limited.balancer.reload()
    limited.cycle()
    assert maxconns(limited)[0] == 8
    assert "host1 maxconn" in unlimit(limited)
    assert maxconns(limited) == [50, 50, 50]
    assert {change.by for change in limited.changes()} == {"lbengine"}


def test_a_limit_is_put_back_by_stop_and_by_restore(limited: DrivenHAProxy) -> None:
    limited.cycle()
    limit(limited)
    assert maxconns(limited)[0] == 8
    limited.engine.stop(limited.now_s, "the end")
    assert maxconns(limited) == [50, 50, 50]
    limit(limited)
    assert maxconns(limited)[0] == 8
    settings = ControllerSettings(pool=[limited.pool()], state_dir=str(limited.folder))
    assert any("(maxconn)" in change.why for change in restore(settings, limited.pool(), "alice", "by hand"))
    assert maxconns(limited) == [50, 50, 50]


def test_a_killed_engine_is_followed_by_one_that_puts_the_limit_back(limited: DrivenHAProxy) -> None:
    limited.cycle()
    limit(limited)
    limited.start()
    limited.cycle()
    limited.cycle()
    assert maxconns(limited) == [50, 50, 50]


def test_a_limit_that_someone_else_changes_is_theirs(limited: DrivenHAProxy) -> None:
    limited.cycle()
    limit(limited)
    limited.balancer.send("set maxconn server web/host1 33")
    assert "host1's maxconn is 33 by someone else" in limited.cycle()
    limited.cycle()
    assert maxconns(limited)[0] == 33
    unlimit(limited)
    assert maxconns(limited)[0] == 33


def test_a_server_without_maxconn_is_never_limited(site: DrivenHAProxy) -> None:
    site.cycle()
    limit(site)
    site.cycle(host1="interference")
    assert maxconns(site) == [None, None, None]


def test_who_stands_by_looks_at_nothing_and_takes_over_what_it_is_given(site: DrivenHAProxy, tmp_path: Path) -> None:
    site.cycle()
    site.cycle(host1="interference")
    other = Engine(site.pool(), SETTINGS, tmp_path / "other", site.journal)
    other.stand_by("lbengine of far (pid 7) drives it", forget=True)
    assert other.cycle(site.now_s) == "web: standing by, lbengine of far (pid 7) drives it"
    assert other.stop(site.now_s, "the end") == "web: nothing to put back"
    assert not other.outbox
    given = site.engine.store.load()
    other.take_over(given, None, site.now_s, after_another=True)
    site.engine = other
    assert "host1 stays at 0 of 100 (not judged yet)" in site.silent_cycle()
    site.balancer.send("set server web/host1 weight 50")
    site.cycle(host1="interference")
    assert site.weights()[0] == 0, "the one before may be on its way back: that is not someone else"
    for _ in range(25):
        site.cycle()
    assert site.weights() == [100, 100, 100]
    assert {change.by for change in site.changes()} == {"lbengine"}


def test_a_pause_is_taken_over_too(site: DrivenHAProxy, tmp_path: Path) -> None:
    site.cycle()
    site.cycle(host1="interference")
    other = Engine(site.pool(), SETTINGS, tmp_path / "other", site.journal)
    other.stand_by("another", forget=True)
    other.take_over(site.engine.store.load(), Pause("alice", "deploy", 1.0), site.now_s, after_another=True)
    site.engine = other
    assert "host1 0 -> 100 put back; paused by alice (deploy)" in site.cycle(host1="interference")
    assert site.weights() == [100, 100, 100]


def test_a_bus_that_comes_back_leaves_what_someone_else_holds_alone(site: DrivenHAProxy) -> None:
    site.cycle()
    site.cycle(host1="interference")
    site.balancer.send("set server web/host2 weight 30")
    site.cycle(host1="interference")
    site.engine.take_over(None, None, site.now_s, after_another=False)
    assert "host2 is held at 30 by someone else" in site.cycle(host1="interference")
    assert site.weights() == [0, 30, 100]


def test_what_another_one_did_while_it_led_is_not_someone_elses(site: DrivenHAProxy) -> None:
    site.cycle()
    baseline = site.engine.state.baselines
    site.balancer.send("set server web/host1 weight 0")
    assert "host1 is held at 0 by someone else" in site.cycle(host1="interference")
    site.engine.take_over(baseline, None, site.now_s, after_another=True)
    for _ in range(25):
        site.cycle()
    assert site.weights() == [100, 100, 100]
