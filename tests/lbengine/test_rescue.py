"""When the rescue is armed, and how that is recorded and undone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from lab.played_verdict import verdict
from lbengine.backends.haproxy import rescue
from lbengine.backends.haproxy.settings import HAProxyPool
from lbengine.backends.table import check
from lbengine.balancer import BalancerError, Server, Snapshot
from lbengine.rescue import PAUSE_S, wanted
from lbengine.restore import restore
from slackwater.cli.commands import config
from slackwater.config import MOST_RESCUE_TIMEOUT_MS, ConfigError, ControllerSettings, parse
from slackwater.journal.journal import JournalError
from slackwater.messages import Cycle, State, Verdict
from tests.support import real_haproxy
from tests.support.paths import ROOT
from tests.support.real_haproxy import backend, haproxy, until, web_servers
from tests.support.rescue_site import AFTER_MS, HOSTS, SETTINGS, RescueSite, has_programs, rescue_site

needs_programs = pytest.mark.skipif(not has_programs, reason="HAProxy 3.0 and 3.2 are not in .build/bin")
POOL = '[[pool]]\nname = "web"\nbackend = "web"\nsocket = "/run/haproxy/admin.sock"\nrescue = true\n'


def snapshot(**queued: int) -> Snapshot:
    servers = tuple(Server(name=name, weight=100, queued=queued.get(name, 0)) for name in HOSTS)
    return Snapshot(balance="roundrobin", weights_mean="share", servers=servers)


def verdicts(host1: State = "interference", **states: State) -> dict[str, Verdict]:
    named: dict[str, State] = {"host1": host1, "host2": "calm", "host3": "calm", **states}
    return {name: verdict(name, state, cpu=0.4) for name, state in named.items()}


def test_it_is_wanted_beside_a_neighbour_where_the_others_have_room() -> None:
    wish = wanted(snapshot(), verdicts(), 20.0, 50, 0.8)
    assert (wish.timeout_ms, wish.server, wish.cause) == (93, "host1", "interference")
    assert "within 93 ms" in wish.why


def test_the_timeout_is_bounded_on_both_sides() -> None:
    assert wanted(snapshot(), verdicts(), 1.0, 50, 0.8).timeout_ms == 50
    too_long = wanted(snapshot(), verdicts(), MOST_RESCUE_TIMEOUT_MS / 3.0, 50, 0.8)
    assert (too_long.timeout_ms, too_long.cause) == (0, "bounded")


@pytest.mark.parametrize(
    ("found", "cause"),
    [
        (verdicts("calm"), "calm"),
        (verdicts("overload"), "calm"),
        ({}, "calm"),
        (verdicts(host2="all_slow"), "all_slow"),
        (verdicts(host2="unknown"), "bounded"),
        (verdicts(host2="interference", host3="interference"), "bounded"),
        ({**verdicts(), "host2": verdict("host2", "calm", cpu=0.81)}, "bounded"),
        ({**verdicts(), "host2": verdict("host2", "calm")}, "bounded"),
        ({**verdicts(), "host1": verdict("host1", "interference", shown=False)}, "calm"),
    ],
)
def test_it_is_not_wanted(found: dict[str, Verdict], cause: str) -> None:
    wish = wanted(snapshot(), found, 20.0, 50, 0.8)
    assert (wish.timeout_ms, wish.cause) == (0, cause)


def test_a_queue_is_no_room_and_without_calm_response_times_nothing_is_armed() -> None:
    assert wanted(snapshot(host3=1), verdicts(), 20.0, 50, 0.8).why == "no room on host3"
    assert wanted(snapshot(), verdicts(), None, 50, 0.8).cause == "unknown"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('weight_delivery = "agent-check"\n', '`rescue` needs `weight_delivery = "socket"`'),
        ("rescue_min_timeout_ms = 19\n", "rescue_min_timeout_ms: expected.*>= 20"),
        ("rescue_min_timeout_ms = 2001\n", "rescue_min_timeout_ms: expected.*<= 2000"),
    ],
)
def test_wrong_settings_are_named(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse(POOL + text, "f.toml")


def test_config_check_prints_the_lines_of_the_reference_page(tmp_path: Path) -> None:
    file = tmp_path / "controller.toml"
    file.write_text(POOL)
    printed = CliRunner().invoke(config, ["check", str(file)]).output
    lines = "\n".join(rescue.lines("web"))
    assert printed == f"OK\npool `web` needs these lines in the configuration of HAProxy:\n{lines}\n"
    page = (ROOT / "docs/reference/rescue.md").read_text()
    assert lines in page
    merged = rescue.backend_lines("web", ["conn-failure", "empty-response", "503"])
    assert "\n".join(line for line in merged if line not in lines) in page
    file.write_text(POOL.replace("rescue = true\n", ""))
    assert CliRunner().invoke(config, ["check", str(file)]).output == "OK\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RescueSite]:
    """With Debian 13's HAProxy."""
    monkeypatch.setattr(real_haproxy, "PROGRAM", "haproxy-3")
    with rescue_site(tmp_path) as made:
        yield made


@needs_programs
def test_an_episode_arms_it_and_its_end_disarms_it_each_with_a_change(site: RescueSite) -> None:
    assert "rescue" not in site.cycle()
    assert site.armed_ms() == 0
    assert "rescue of host1 armed" in site.cycle(host1="interference")
    assert site.armed_ms() == AFTER_MS
    assert f"rescue after {AFTER_MS} ms: 0 requests sent twice" in site.cycle(host1="interference")
    cycle = [message for message in site.engine.outbox if isinstance(message, Cycle)][-1]
    assert cycle.rescue_timeout_ms == AFTER_MS
    assert "rescue off" in site.cycle()
    assert site.armed_ms() == 0
    found = [(made.target, made.before, made.after, made.applied, made.cause) for made in site.changes()]
    assert found == [("host1", 0, AFTER_MS, True, "interference"), ("host1", AFTER_MS, 0, True, "calm")]
    site.cycle(host1="interference")
    assert site.armed_ms() == 0, "it is not armed again so soon"
    site.cycle(after_s=PAUSE_S, host1="interference")
    assert site.armed_ms() == AFTER_MS


@needs_programs
def test_all_slow_and_silent_nodes_disarm_it(site: RescueSite) -> None:
    site.arm()
    site.cycle(host1="interference", host2="all_slow", host3="all_slow")
    assert site.armed_ms() == 0
    assert site.changes()[-1].cause == "all_slow"
    site.cycle(after_s=PAUSE_S, host1="interference")
    assert site.armed_ms() == AFTER_MS
    site.now_s += 10 * SETTINGS.lease_s
    site.engine.cycle(site.now_s)
    assert site.armed_ms() == 0


@needs_programs
def test_observe_arms_nothing_and_records_what_it_would_do(site: RescueSite) -> None:
    site.start(mode="observe")
    site.cycle()
    site.cycle(host1="interference")
    assert "would send requests to another server too" in site.cycle(host1="interference")
    site.cycle()
    assert site.armed_ms() == 0
    assert [(made.after, made.applied) for made in site.changes()] == [(AFTER_MS, False), (0, False)]


@needs_programs
def test_it_is_not_armed_without_the_lease_or_a_record(site: RescueSite, monkeypatch: pytest.MonkeyPatch) -> None:
    site.engine.may_lower = lambda: False
    site.cycle()
    site.cycle(host1="interference")
    assert site.armed_ms() == 0
    site.engine.may_lower = lambda: True

    def fails(*_: object, **__: object) -> None:
        raise JournalError("the disk is full")

    monkeypatch.setattr(site.journal, "record", fails)
    assert "cannot be recorded" in site.cycle(host1="interference")
    assert site.armed_ms() == 0
    monkeypatch.undo()
    site.cycle(host1="interference")
    assert site.armed_ms() == AFTER_MS
    site.engine.may_lower = lambda: False
    site.cycle(host1="interference")
    assert site.armed_ms() == 0


@needs_programs
def test_a_stop_a_restore_and_the_next_lbengine_disarm_it(site: RescueSite) -> None:
    site.arm()
    site.engine.stop(site.now_s, "lbengine stops")
    assert site.armed_ms() == 0
    assert site.changes()[-1].why == "lbengine stops"

    site.start()
    site.arm()
    settings = ControllerSettings(pool=[site.pool()], lbengine=SETTINGS, state_dir=str(site.folder))
    restore(settings, site.pool(), "me", "it died")
    assert site.armed_ms() == 0

    site.start()
    site.arm()
    site.start()  # as after a crash
    site.cycle()
    assert site.armed_ms() == 0


@needs_programs
def test_haproxy_forgets_it_when_nobody_is_left(site: RescueSite) -> None:
    site.arm()
    until(lambda: site.armed_ms() == 0, "HAProxy forgets a rescue that nobody renews")


@needs_programs
def test_after_a_reload_it_is_armed_again(site: RescueSite) -> None:
    site.arm()
    site.balancer.reload()
    assert site.armed_ms() == 0
    site.cycle(host1="interference")
    assert site.armed_ms() == AFTER_MS


@needs_programs
def test_missing_lines_are_printed_and_the_printed_lines_are_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real_haproxy, "PROGRAM", "haproxy-3.2")
    with rescue_site(tmp_path, lines=("backend web",)) as without:
        with pytest.raises(BalancerError, match=r"(?s)needs these lines.*stick-table type string.*sc-add-gpc"):
            check(without.pool(), SETTINGS)
        assert check(without.pool(rescue=False), SETTINGS) == []
        assert "No such table" in "".join([without.cycle(), without.cycle(host1="interference")])
        assert [(made.applied, made.cause) for made in without.changes()][-1] == (False, "not_set")
    with rescue_site(tmp_path / "with") as complete:
        assert check(complete.pool(), SETTINGS) == []


@pytest.mark.skipif(real_haproxy.haproxy_program("haproxy") is None, reason="HAProxy 2.6 is not in .build/bin")
def test_an_older_haproxy_is_refused() -> None:
    with web_servers(2) as ports, haproxy(backend(ports)) as running:
        pool = HAProxyPool(name="web", backend="web", socket=running.socket, rescue=True)
        with pytest.raises(BalancerError, match=r"`rescue` needs HAProxy 3\.0, this is 2\.6"):
            check(pool, SETTINGS)


@needs_programs
def test_of_several_haproxies_all_are_armed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_haproxy, "PROGRAM", "haproxy-3")
    (tmp_path / "other").mkdir()
    with rescue_site(tmp_path) as one, rescue_site(tmp_path / "other") as other:
        one.start(sockets=[other.balancer.socket])
        one.cycle()
        one.cycle(host1="interference")
        assert (one.armed_ms(), other.armed_ms()) == (AFTER_MS, AFTER_MS)
        one.cycle()
        assert (one.armed_ms(), other.armed_ms()) == (0, 0)
