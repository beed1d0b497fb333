"""The engine's turns against a real HAProxy. Time is an argument, so nothing here waits for a ramp."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from real_haproxy import RealHAProxy, backend, haproxy, needs_haproxy, stopped, web_servers

from lbengine.baseline import BaselineError
from lbengine.engine import Engine
from lbengine.haproxy import BalancerError, BalancerUnreachable, HAProxy
from lbengine.restore import restore
from slackwater.config import ControllerSettings, LbengineSettings, PoolSettings
from slackwater.journal import Journal, journal_path
from slackwater.messages import Change, Cycle, State, Verdict

pytestmark = needs_haproxy
HOSTS = ("host1", "host2", "host3")
CALM_RPS, SLOW_RPS = 300.0, 53.0
SETTINGS = LbengineSettings(socket_timeout_s=5.0)


class Site:
    """A HAProxy with three servers, an engine before it, and a clock that only the test moves."""

    def __init__(self, balancer: RealHAProxy, ports: list[int], folder: Path) -> None:
        self.balancer = balancer
        self.ports = ports
        self.folder = folder
        self.now_s = 1000.0
        self.journal = Journal.open(journal_path(folder))
        self.engine = self.start()

    def pool(self, **others: object) -> PoolSettings:
        return PoolSettings(
            **{"name": "web", "backend": "web", "socket": self.balancer.socket, "mode": "act", **others}  # type: ignore[arg-type]
        )

    def start(self, **others: object) -> Engine:
        """A new engine, as after a restart of the process."""
        self.engine = Engine(self.pool(**others), SETTINGS, self.folder, self.journal)
        return self.engine

    def says(self, **states: State) -> None:
        """Fresh Verdicts of all three nodes: calm, but for the ones named."""
        for host in HOSTS:
            state = states.get(host, "calm")
            slow = state == "interference"
            self.engine.inbox.put(
                Verdict(
                    v=1,
                    node=host,
                    pool="web",
                    time_unix_s=0.0,
                    state=state,
                    since_unix_s=0.0,
                    severity=0.82 if slow else 0.0,
                    path=["run delay 14.2x"] if slow else [],
                    model="thresholds",
                    capacity_rps=SLOW_RPS if slow else CALM_RPS,
                    rps=80.0,
                ),
                self.now_s,
            )

    def cycle(self, after_s: float = 0.2, **states: State) -> str:
        """Time passes, all nodes speak, the engine turns."""
        self.now_s += after_s
        self.says(**states)
        return self.engine.cycle(self.now_s)

    def silent_cycle(self, after_s: float = 0.2) -> str:
        self.now_s += after_s
        return self.engine.cycle(self.now_s)

    def weights(self) -> list[int]:
        return [self.balancer.weight(host) for host in HOSTS]

    def changes(self) -> list[Change]:
        """Oldest first."""
        return list(reversed(self.journal.changes("web")))

    def baseline_file(self) -> Path:
        return self.folder / "baseline" / "web.json"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with web_servers(3) as ports, haproxy(backend(ports)) as balancer:
        running = Site(balancer, ports, tmp_path)
        yield running
        running.journal.close()


def test_a_noisy_neighbour_moves_the_load_and_its_end_brings_it_back(site: Site) -> None:
    assert site.cycle() == "web: 3 unchanged"
    assert not site.baseline_file().exists()
    assert (
        site.cycle(host1="interference")
        == "web: host1 100 -> 0 (interference, 82% of capacity lost, run delay 14.2x); 2 others unchanged"
    )
    assert site.weights() == [0, 100, 100]
    assert site.baseline_file().exists()
    assert site.cycle(host1="interference") == "web: host1 stays at 0 of 100 (interference); 2 others unchanged"
    assert site.cycle() == "web: host1 0 -> 1 (calm, on its way back); 2 others unchanged"
    climbed = []
    for _ in range(21):
        site.cycle()
        climbed.append(site.weights()[0])
    assert climbed == sorted(climbed)
    assert climbed[9] in range(45, 56)
    assert site.weights() == [100, 100, 100]
    assert site.cycle() == "web: 3 unchanged"


def test_each_change_is_recorded_with_before_after_and_why(site: Site) -> None:
    site.cycle()
    site.cycle(host1="interference")
    (change,) = site.changes()
    assert (change.what, change.target, change.before, change.after) == ("weight", "host1", 100, 0)
    assert change.why == ("interference: run delay 14.2x; optimal: 0 of 240 requests/s (capacity 53, the others' 600)")
    assert (change.by, change.applied) == ("lbengine", True)
    assert [message for message in site.engine.outbox if isinstance(message, Change)] == [change]


def test_the_cycle_message_shows_the_servers_after_the_turn(site: Site) -> None:
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


def test_the_rate_comes_from_haproxys_counters(site: Site) -> None:
    site.cycle()
    site.balancer.request(30)
    site.cycle(1.0, host1="interference")
    assert "0 of 30 requests/s" in site.changes()[0].why


def test_observe_decides_and_records_but_touches_nothing(site: Site) -> None:
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


def test_in_observe_mode_the_baseline_follows_the_operator(site: Site) -> None:
    site.start(mode="observe")
    site.cycle()
    site.balancer.say("set server web/host2 weight 40")
    site.cycle()
    assert site.changes() == []
    cycle = site.engine.outbox[-1]
    assert isinstance(cycle, Cycle)
    assert cycle.servers[1].baseline == 40


def test_after_a_reload_the_wanted_weights_are_back_in_the_same_cycle(site: Site) -> None:
    site.cycle()
    site.cycle(host1="interference")
    before = site.balancer.pid()
    site.balancer.reload()
    assert site.weights() == [100, 100, 100]
    sentence = site.cycle(host1="interference")
    assert f"HAProxy was reloaded or started anew (pid {before} -> {site.balancer.pid()}); host1 100 -> 0" in sentence
    assert site.weights() == [0, 100, 100]
    assert all(change.by == "lbengine" for change in site.changes())


def test_a_reload_with_another_weight_is_the_new_baseline(site: Site) -> None:
    site.cycle()
    site.cycle(host1="interference")
    site.balancer.reload(backend(site.ports, options="weight 60"))
    sentence = site.cycle(host1="interference")
    assert "host1 is configured with 60 now, it was 100" in sentence
    assert site.weights() == [0, 60, 60]
    for _ in range(25):
        site.cycle()
    assert site.weights() == [60, 60, 60]


def test_a_reload_that_removes_and_adds_servers_is_followed(site: Site) -> None:
    site.cycle()
    site.cycle(host1="interference")
    site.balancer.reload(backend(site.ports).replace("host3", "host4"))
    sentence = site.cycle(host1="interference")
    assert "host4 is new with weight 100" in sentence
    assert "host3 is gone" in sentence
    assert site.balancer.weight("host1") == 0


def test_without_verdicts_the_lease_runs_out_and_the_ramp_leads_to_the_baseline(site: Site) -> None:
    site.cycle()
    site.cycle(host1="interference")
    site.silent_cycle(SETTINGS.lease_s - 0.1)
    assert site.weights() == [0, 100, 100]
    assert "host1 0 -> 1 (no Verdicts for 3 s: back to the baseline" in site.silent_cycle()
    for _ in range(25):
        site.silent_cycle()
    assert site.weights() == [100, 100, 100]


def test_a_node_that_falls_silent_keeps_its_baseline_weight(site: Site) -> None:
    site.cycle()
    site.cycle(host1="interference")
    site.now_s += SETTINGS.lease_s
    for host in ("host2", "host3"):
        verdict = Verdict(
            v=1, node=host, pool="web", time_unix_s=0, state="calm", since_unix_s=0, severity=0, path=[], model=""
        )
        site.engine.inbox.put(verdict, site.now_s)
    assert "host1 0 -> 1 (no fresh Verdict" in site.silent_cycle()


@pytest.mark.parametrize("state", ["unknown", "overload", "calm"])
def test_only_interference_lowers_a_weight(site: Site, state: State) -> None:
    site.cycle()
    assert site.cycle(host1=state) == "web: 3 unchanged"
    assert site.weights() == [100, 100, 100]


def test_when_most_servers_look_slow_the_baseline_comes_back(site: Site) -> None:
    site.cycle()
    site.cycle(host1="interference")
    sentence = site.cycle(host1="interference", host2="interference")
    assert "panic: 2 of 3 servers look slow, so it is no neighbour" in sentence
    assert "host1 0 -> 1 (panic" in sentence
    for _ in range(25):
        site.cycle(host1="interference", host2="interference")
    assert site.weights() == [100, 100, 100]


def test_all_slow_in_one_verdict_is_panic(site: Site) -> None:
    site.cycle()
    assert "panic: all servers are slow alike" in site.cycle(host1="interference", host2="all_slow")
    assert site.weights() == [100, 100, 100]


def test_a_weight_that_someone_else_set_is_left_alone_until_it_is_back(site: Site) -> None:
    site.cycle()
    site.balancer.say("set server web/host2 weight 30")
    assert "host2 100 -> 30 by someone else" in site.cycle(host2="interference")
    (change,) = site.changes()
    assert (change.target, change.before, change.after, change.by) == ("host2", 100, 30, "someone else")
    for _ in range(3):
        assert "host2 is held at 30 by someone else" in site.cycle(host2="interference")
    assert site.weights() == [100, 30, 100]
    assert len(site.changes()) == 1
    site.balancer.say("set server web/host2 weight 100")
    assert site.cycle() == "web: 3 unchanged"
    assert "host2 100 -> 0" in site.cycle(host2="interference")


def test_a_server_that_someone_put_back_stays_so_for_this_episode(site: Site) -> None:
    site.cycle()
    site.cycle(host1="interference")
    site.balancer.say("set server web/host1 weight 100")
    assert "host1 0 -> 100 by someone else" in site.cycle(host1="interference")
    site.cycle(host1="interference")
    assert site.weights() == [100, 100, 100]
    site.cycle()
    assert "host1 100 -> 0" in site.cycle(host1="interference")


def test_servers_in_maintenance_or_drained_are_left_alone(site: Site) -> None:
    site.cycle()
    site.balancer.say("set server web/host3 state maint")
    assert "host3 is left alone (MAINT)" in site.cycle(host3="interference")
    site.balancer.say("set server web/host2 state maint")
    assert "host1 100 ->" not in site.cycle(host1="interference"), "it is the only one that takes requests"
    assert site.weights() == [100, 100, 100]
    assert site.changes() == []


def test_when_only_the_reduced_server_is_left_it_gets_its_weight_back(site: Site) -> None:
    site.cycle()
    site.cycle(host1="interference")
    site.balancer.say("set server web/host2 state maint; set server web/host3 state maint")
    site.cycle(host1="interference")
    assert site.weights()[0] == 100


def test_pause_puts_the_weights_back_and_outlives_a_restart(site: Site) -> None:
    site.cycle()
    site.cycle(host1="interference")
    assert site.engine.pause("alice", "deploy", site.now_s) == (
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


def test_in_a_pause_weights_are_the_operators_and_resume_takes_them_as_they_are(site: Site) -> None:
    site.cycle()
    site.engine.pause("alice", "", site.now_s)
    site.balancer.say("set server web/host2 weight 50")
    site.cycle(host1="interference")
    assert site.weights() == [100, 50, 100]
    assert "already" in site.engine.pause("bob", "", site.now_s)
    assert site.engine.resume("bob", "", site.now_s).startswith("web: resumed by bob; host1 100 -> 0")
    assert site.weights() == [0, 50, 100]
    assert site.engine.resume("bob", "", site.now_s) == "web: not paused"
    assert [change.what for change in site.changes()] == ["pause", "resume", "weight"]


def test_a_pause_while_haproxy_is_stuck_takes_effect_when_it_answers(site: Site) -> None:
    site.cycle()
    site.cycle(host1="interference")
    stuck = site.start()
    stuck._balancer.timeout_s = 0.2  # type: ignore[attr-defined]
    worker = site.balancer.pid()
    with stopped(worker):
        assert "put back when HAProxy answers" in stuck.pause("alice", "", site.now_s)
    assert "host1 0 -> 100 put back" in site.cycle(host1="interference")
    assert site.weights() == [100, 100, 100]


def test_stop_puts_the_weights_back(site: Site) -> None:
    site.cycle()
    site.cycle(host1="interference")
    assert site.engine.stop(site.now_s, "lbengine stops") == "web: host1 0 -> 100 (lbengine stops)"
    assert site.weights() == [100, 100, 100]
    assert not site.baseline_file().exists()
    assert site.engine.stop(site.now_s, "again") == "web: nothing to put back"


def test_a_killed_engine_is_followed_by_one_that_goes_on_where_it_was(site: Site) -> None:
    site.cycle()
    site.cycle(host1="interference")
    site.start()
    assert site.silent_cycle() == "web: host1 stays at 0 of 100 (waiting for its first Verdict); 2 others unchanged"
    assert "host1 stays at 0" in site.cycle(host1="interference")
    for _ in range(25):
        site.cycle()
    assert site.weights() == [100, 100, 100]


def test_a_killed_engine_is_followed_by_one_that_goes_back_when_nobody_speaks(site: Site) -> None:
    site.cycle()
    site.cycle(host1="interference")
    site.start()
    site.silent_cycle()
    site.silent_cycle(SETTINGS.lease_s)
    for _ in range(25):
        site.silent_cycle()
    assert site.weights() == [100, 100, 100]


def test_observing_after_a_crash_first_puts_back_what_was_left(site: Site) -> None:
    site.cycle()
    site.cycle(host1="interference")
    site.start(mode="observe")
    assert "host1 0 -> 100 put back" in site.cycle(host1="interference")
    assert site.weights() == [100, 100, 100]
    site.cycle(host1="interference")
    assert site.weights() == [100, 100, 100]


def test_restore_sets_the_stored_baseline_by_itself(site: Site) -> None:
    site.cycle()
    site.cycle(host1="interference")
    settings = ControllerSettings(pool=[site.pool()], state_dir=str(site.folder))
    (change,) = restore(settings, site.pool(), "alice", "by hand")
    assert site.weights() == [100, 100, 100]
    assert (change.what, change.target, change.before, change.after) == ("restore", "host1", 0, 100)
    assert site.changes()[-1] == change
    assert restore(settings, site.pool(), "alice", "again") == []


def test_after_a_restore_beside_a_running_engine_the_next_change_has_a_baseline_on_disk(site: Site) -> None:
    site.cycle()
    site.cycle(host1="interference")
    restore(ControllerSettings(pool=[site.pool()], state_dir=str(site.folder)), site.pool(), "alice", "")
    site.cycle(host1="interference")
    assert site.weights() == [100, 100, 100]
    site.cycle()
    site.cycle(host1="interference")
    assert site.weights() == [0, 100, 100]
    assert site.baseline_file().exists()


def test_a_corrupt_baseline_is_refused(site: Site) -> None:
    site.cycle()
    site.cycle(host1="interference")
    site.baseline_file().write_text("{")
    with pytest.raises(BaselineError, match=r"web\.json"):
        site.start()
    with pytest.raises(BaselineError, match=r"web\.json"):
        restore(ControllerSettings(pool=[site.pool()], state_dir=str(site.folder)), site.pool(), "alice", "")
    assert site.weights() == [0, 100, 100]


def test_what_cannot_be_kept_on_disk_is_not_lowered(site: Site) -> None:
    site.cycle()
    (site.folder / "baseline").write_text("a file where the folder should be")
    assert "not lowered: host1" in site.cycle(host1="interference")
    assert site.weights() == [100, 100, 100]
    assert site.changes() == []
    (site.folder / "baseline").unlink()
    assert "host1 100 -> 0" in site.cycle(host1="interference")


def test_what_cannot_be_recorded_is_not_lowered_but_comes_back(site: Site) -> None:
    site.cycle()
    site.cycle(host1="interference")
    site.journal.close()
    site.journal = Journal.open(journal_path(site.folder), read_only=True)
    site.engine._journal = site.journal
    site.cycle()
    assert site.weights()[0] == 1
    for _ in range(25):
        site.cycle()
    assert "not lowered: host2" in site.cycle(host2="interference")
    assert site.weights() == [100, 100, 100]


def test_a_balancer_that_refuses_is_tried_again_and_not_taken_for_someone_else(site: Site) -> None:
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
    engine._balancer.path = site.balancer.socket  # type: ignore[attr-defined]
    assert "host1 100 -> 0" in site.cycle(host1="interference")


def test_the_nodes_may_have_other_names_than_the_servers(site: Site) -> None:
    engine = site.start(servers={"host1": "host2", "host2": "host1"})
    site.cycle()
    assert "host2 100 -> 0" in site.cycle(host1="interference")
    assert engine.pool.servers["host1"] == "host2"


def test_under_least_connections_the_slow_server_is_drained(tmp_path: Path) -> None:
    with web_servers(3) as ports, haproxy(backend(ports, "leastconn")) as balancer:
        site = Site(balancer, ports, tmp_path)
        site.cycle()
        site.cycle(host1="interference")
        assert site.weights() == [0, 100, 100]
        site.balancer.request(20)
        site.cycle(1.0, host1="interference")
        cycle = site.engine.outbox[-1]
        assert isinstance(cycle, Cycle)
        assert cycle.servers[0].share == 0.0
        site.journal.close()


def test_turns_during_reloads_end_with_the_wanted_weights_and_blame_nobody(site: Site) -> None:
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


def test_a_weight_that_was_set_although_the_answer_was_lost_is_ours(site: Site) -> None:
    site.engine._balancer = LosesAnswers(site.balancer.socket, "web", 5.0)
    site.cycle()
    with pytest.raises(BalancerUnreachable, match="the answer was lost"):
        site.cycle(host1="interference")
    assert site.weights() == [0, 100, 100]
    site.engine._balancer = HAProxy(site.balancer.socket, "web", 5.0)
    assert "host1 stays at 0" in site.cycle(host1="interference")
    assert {change.by for change in site.changes()} == {"lbengine"}
