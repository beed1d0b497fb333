"""The rollout on hosts: a running site, watched by one command, upgraded and removed under load without a trace.

One story, told in order on each site of `SITES`: each test goes on where the one before ended. What does not depend on
the system is told on Debian 12 alone.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from slackwater.core.messages import Order
from tests.support import rollout_thief
from tests.support.ansible_files import php_of
from tests.support.rollout_ansible import Requests, Site
from tests.support.rollout_controller import changes_of, is_in_mode, send_order, states
from tests.support.rollout_floods import FLOODS, Flood, controllers_bus
from tests.support.rollout_hosts import Hosts, hosts, wait_until, why_not
from tests.support.rollout_nodes import Nodes, weights
from tests.support.rollout_packages import made_packages, newer
from tests.support.rollout_site import NAMES, SITES, WEBS, configuration, difference, haproxy_cfg, put, set_up
from tests.support.rollout_verdicts import ages_s
from tests.support.side_by_side import ROLLOUTS
from tests.support.unit_exposure import WORST
from tools.systems import SYSTEMS, System

pytestmark = [
    pytest.mark.lab,
    pytest.mark.xdist_group(ROLLOUTS),
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(bool(why_not()), reason=f"rollout: {why_not()}"),
]
HERE = [system for system in SYSTEMS.values() if system.interpreter.exists()]
"""Those that the controller's package can be made for."""
on_debian_12 = pytest.mark.parametrize("systems", ["bookworm"], indirect=True, scope="module")


@pytest.fixture(scope="module", params=list(SITES))
def systems(request: pytest.FixtureRequest) -> Mapping[str, System]:
    """Each host's system."""
    site = SITES[request.param]
    if site["lb1"] not in HERE:
        pytest.skip(f"needs {site['lb1'].interpreter.name}: make setup")
    return site


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages for all systems, in one folder."""
    return made_packages(tmp_path_factory.mktemp("packages"), HERE)


@pytest.fixture(scope="module")
def next_packages(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return newer(packages, tmp_path_factory.mktemp("next"), "2")


@pytest.fixture(scope="module")
def running(systems: Mapping[str, System]) -> Iterator[Hosts]:
    """Hosts with a site on them, and nothing of Slackwater."""
    with hosts() as ours:
        ours.up(NAMES, systems)
        set_up(ours, ["lb1"], WEBS)
        yield ours


@pytest.fixture(scope="module")
def before(running: Hosts) -> dict[str, dict[str, str]]:
    """What stood on the hosts before anything of Slackwater came."""
    return {name: configuration(running, name) for name in NAMES}


@pytest.fixture(scope="module")
def site(running: Hosts, packages: Path, before: dict[str, dict[str, str]]) -> Site:
    assert before
    groups = {"brokers": ["lb1"], "controllers": ["lb1"], "balancers": ["lb1"], "nodes": WEBS}
    knobs = {"slackwater_node_wsengine_settings": {"php_fpm": {"max_children": [2, 20]}}}
    return Site(running, groups, packages, knobs)


# --- before anything is there


def fails_early(site: Site, *options: str) -> str:
    """Runs site.yml, which must fail before it changed anything; what it said."""
    printed = site.play("site", *options)
    assert printed.status != 0, printed.end
    assert printed.changed == 0, printed.end
    return " ".join(printed.text.split())


@on_debian_12
def test_an_unsupported_distribution_is_refused_in_words(site: Site) -> None:
    site.hosts.ssh("web2", "mv /etc/debian_version /etc/kept && mount --bind /dev/null /usr/lib/os-release")
    try:
        put(site.hosts, "web2", "/etc/fedora-release", "Fedora release 41 (Forty One)\n")
        assert "web2 runs Fedora" in fails_early(site)
    finally:
        site.hosts.ssh("web2", "umount /usr/lib/os-release; mv /etc/kept /etc/debian_version; rm /etc/fedora-release")


@on_debian_12
def test_a_clock_that_is_off_is_refused_in_words(site: Site) -> None:
    ahead = '#!/bin/sh\nexec /usr/bin/date -d "5 seconds" "$@"\n'
    put(site.hosts, "web1", "/usr/local/bin/date", ahead)
    site.hosts.ssh("web1", "chmod +x /usr/local/bin/date")
    try:
        assert re.search(r"the clock of web1 is [45]\.\d s off", fails_early(site))
    finally:
        site.hosts.ssh("web1", "rm /usr/local/bin/date")


@on_debian_12
def test_too_little_room_and_a_port_that_is_taken_are_refused_in_words(site: Site) -> None:
    assert "MiB are needed (slackwater_min_free_mib)" in fails_early(site, "-e", "slackwater_min_free_mib=99999999")
    assert "port 22 of lb1 is taken by sshd; the bus needs it" in fails_early(site, "-e", "slackwater_broker_port=22")


@on_debian_12
def test_an_haproxy_without_socket_or_admin_level_is_refused_in_words(site: Site) -> None:
    addresses = {name: site.hosts[name].address for name in WEBS}
    place = "/etc/haproxy/haproxy.cfg"
    fine = site.hosts.ssh("lb1", f"cat {place}").stdout
    try:
        put(site.hosts, "lb1", place, haproxy_cfg(addresses, "\tstats socket /run/haproxy/admin.sock level operator\n"))
        assert "has level operator, and only `level admin` lets weights be set" in fails_early(site)
        put(site.hosts, "lb1", place, haproxy_cfg(addresses, ""))
        printed = fails_early(site, "-e", '{"slackwater_balancer_edit": false}')
        assert "there is no `stats socket /run/haproxy/admin.sock`" in printed
    finally:
        put(site.hosts, "lb1", place, fine)


# --- the rollout


@on_debian_12
def test_a_dry_run_shows_what_would_change_and_changes_nothing(site: Site) -> None:
    printed = site.play("site", "--check", "--diff", "--limit", "lb1", "--tags", "balancer")
    assert printed.status == 0, printed.end
    assert re.search(r"\+\tdefault-server weight 100 +# added by Slackwater", printed.text), printed.end
    assert "added by Slackwater" not in site.hosts.ssh("lb1", "cat /etc/haproxy/haproxy.cfg").stdout


def test_a_dry_run_of_the_whole_goes_through_on_hosts_that_have_nothing(
    site: Site, before: dict[str, dict[str, str]]
) -> None:
    printed = site.play("site", "--check", "--diff")
    assert printed.status == 0, printed.end
    assert printed.changed > 10, "it says what would change"
    assert not site.vault.exists()
    for name in NAMES:
        assert difference(before[name], configuration(site.hosts, name)) == [], name


def test_one_command_turns_the_running_site_into_one_that_is_watched(site: Site) -> None:
    with Requests(site.hosts["lb1"].address) as load:
        printed = site.play("site")
    assert printed.status == 0, printed.end
    assert not load.failures, (len(load.failures), load.sent, load.failures[:3])
    assert load.sent > 100
    assert set(states(site)) == set(WEBS)
    assert site.hosts.ssh("lb1", "which gcc cc cargo", check=False).stdout == "", "no compiler on the hosts"


def test_the_secrets_are_encrypted_and_closed_to_others(site: Site) -> None:
    assert site.vault.read_text().startswith("$ANSIBLE_VAULT;")
    for name in NAMES:
        open_files = site.hosts.ssh(name, "find /etc/slackwater -type f -perm /007").stdout
        assert open_files == "", f"{name}: readable for all: {open_files}"
        password = site.hosts.ssh("lb1", "cat /etc/slackwater/controller/password").stdout.strip()
        seen = site.hosts.ssh(name, "cat /proc/*/cmdline | tr '\\0' ' '; journalctl --no-pager").stdout
        assert password not in seen


def test_units_are_confined_and_fed_by_their_programs(site: Site) -> None:
    worst = {Path(source).name.removesuffix(".j2"): exposure for source, exposure in WORST.items()}
    for name, unit in [
        ("lb1", "slackwater-controller.service"),
        ("lb1", "slackwater-broker.service"),
        ("web1", "slackwater-monitor.service"),
        ("web1", "slackwater-wsengine.service"),
    ]:
        printed = site.hosts.ssh(name, f"systemd-analyze security --no-pager {unit} 2>/dev/null | tail -1").stdout
        score = float(printed.split(":")[1].split()[0])
        assert score <= worst[unit], printed
    watched = site.hosts.ssh("web1", "systemctl show slackwater-monitor -p WatchdogTimestampMonotonic --value").stdout
    assert int(watched) > 0
    field = site.hosts.ssh("web1", "journalctl -n 1 --no-pager SLACKWATER_PART=monitor").stdout
    assert "slackwater-monitor" in field


@on_debian_12
def test_a_monitor_that_hangs_is_started_again(site: Site) -> None:
    def pid() -> str:
        return site.hosts.ssh("web3", "systemctl show slackwater-monitor -p MainPID --value").stdout.strip()

    first = pid()
    site.hosts.ssh("web3", f"kill -STOP {first}")
    wait_until(lambda: pid() not in ("0", first), "the watchdog starts the monitor again")
    wait_until(lambda: states(site).get("web3") not in (None, "unknown"), "web3 is heard again")


def test_what_wsengine_turned_is_put_back_when_it_is_killed(site: Site, tmp_path: Path) -> None:
    place = f"/etc/php/{php_of(site.hosts['web2'].system)}/fpm/pool.d/zz-slackwater.conf"

    def turned() -> bool:
        return site.hosts.ssh("web2", f"test -s {place}", check=False).returncode == 0

    order = Order(1, "1", "web2", "web", time.time(), "php_fpm.max_children", 4, 300.0, "a test", "test")
    send_order(site, tmp_path, order)
    wait_until(turned, "the Order is carried out")
    site.hosts.ssh("web2", "systemctl kill -s KILL slackwater-wsengine")
    wait_until(lambda: not turned(), "ExecStopPost puts it back")
    wait_until(
        lambda: site.hosts.ssh("web2", "systemctl is-active slackwater-wsengine", check=False).returncode == 0,
        "wsengine is started again",
    )


def test_the_second_run_changes_nothing(site: Site) -> None:
    printed = site.play("site")
    assert printed.status == 0, printed.end
    assert printed.changed == 0, [line for line in printed.text.splitlines() if line.startswith("changed")]


@on_debian_12
def test_a_tag_reaches_its_role_alone(site: Site) -> None:
    printed = site.play("site", "--tags", "controller", "-e", "slackwater_controller_max_mitigated=0.4")
    assert printed.status == 0, printed.end
    assert printed.recap["lb1"]["changed"] > 0
    assert {printed.recap[name]["changed"] for name in WEBS} == {0}
    assert "max_mitigated = 0.4" in site.hosts.ssh("lb1", "cat /etc/slackwater/controller.toml").stdout
    printed = site.play("site", "--tags", "controller")
    assert printed.status == 0, printed.end


@on_debian_12
@pytest.mark.parametrize("playbook", ["site", "act", "upgrade", "rotate", "remove"])
def test_a_dry_run_of_each_playbook_goes_through_and_changes_nothing(site: Site, playbook: str) -> None:
    seen = {name: configuration(site.hosts, name) for name in ("lb1", "web1")}
    secrets = site.vault.read_bytes()
    printed = site.play(f"{playbook}.yml", "--check")
    assert printed.status == 0, printed.end
    assert site.vault.read_bytes() == secrets
    for name, had in seen.items():
        assert difference(had, configuration(site.hosts, name)) == [], name
    assert "unknown" not in states(site).values()


def test_the_doctor_finds_all_well_and_says_what_is_not(site: Site) -> None:
    printed = site.play("doctor")
    assert printed.status == 0, printed.end
    site.hosts.ssh("web1", "systemctl stop slackwater-monitor")
    try:
        printed = site.play("doctor")
        assert printed.status != 0
        assert re.search(r"BAD web1 +monitor runs +inactive", printed.text), printed.end
    finally:
        site.hosts.ssh("web1", "systemctl start slackwater-monitor")


def test_an_episode_is_seen_in_observe_mode_and_one_variable_later_answered(site: Site, tmp_path: Path) -> None:
    baseline = dict.fromkeys(WEBS, 100)
    for name in WEBS:
        site.hosts.ssh(name, "systemctl stop slackwater-monitor")
    with Nodes(site, f"{site.hosts['lb1'].address}:14222", tmp_path) as nodes:
        wait_until(lambda: set(states(site).values()) == {"calm"}, "all are calm")
        nodes.cluster.hosts["web3"].neighbour = 1.0
        wait_until(lambda: states(site)["web3"] == "interference", "the episode is seen")
        wait_until(lambda: any(change["after"] < 100 for change in changes_of(site, "web3")), "a weight is decided")
        assert not any(change["applied"] for change in changes_of(site, "web3"))
        assert weights(site.hosts, "lb1") == baseline
        printed = site.play("act")
        assert printed.status == 0, printed.end
        wait_until(lambda: weights(site.hosts, "lb1")["web3"] < 60, "its weight is lowered")
        nodes.cluster.hosts["web3"].neighbour = 0.0
        wait_until(lambda: weights(site.hosts, "lb1") == baseline, "all at their baseline again")
    for name in WEBS:
        site.hosts.ssh(name, "systemctl start slackwater-monitor")
    printed = site.play("observe")
    assert printed.status == 0, printed.end
    wait_until(lambda: is_in_mode(site, "observe"), "it observes again")


# --- upgrade


def versions(site: Site, package: str, names: list[str]) -> set[str]:
    return {site.hosts.ssh(name, f"dpkg-query -W -f '${{Version}}' {package}").stdout for name in names}


def test_an_upgrade_under_load_fails_no_request(site: Site, packages: Path, next_packages: Path) -> None:
    site.packages = next_packages
    try:
        with Requests(site.hosts["lb1"].address) as load:
            printed = site.play("upgrade")
        assert printed.status == 0, printed.end
        assert not load.failures, (len(load.failures), load.sent, load.failures[:3])
        (node,) = versions(site, "slackwater-node", WEBS)
        (controller,) = versions(site, "slackwater-controller", ["lb1"])
        assert node.endswith("-2")
        assert controller.endswith(f"-2{site.hosts['lb1'].system.suffix}")
    finally:
        site.packages = packages


@on_debian_12
def test_an_upgrade_that_does_not_come_up_goes_back_and_stops_at_the_first_node(
    site: Site, packages: Path, tmp_path: Path
) -> None:
    site.packages = newer(packages, tmp_path, "3", monitor="#!/bin/sh\nexit 1\n")
    try:
        printed = site.play("upgrade")
        assert printed.status != 0
        assert "did not come up on web1; it runs" in " ".join(printed.text.split()), printed.end
    finally:
        site.packages = packages
    (node,) = versions(site, "slackwater-node", WEBS)
    assert node.endswith("-2")
    wait_until(lambda: states(site).get("web1") not in (None, "unknown"), "web1 is heard again")


# --- a stolen key


@on_debian_12
def test_with_a_stolen_node_s_key_every_other_subject_is_refused(site: Site, tmp_path: Path) -> None:
    """Publishes and subscribes to everything that exists, with the key of web1's monitor and then of its wsengine."""
    broker = f"{site.hosts['lb1'].address}:14222"
    authority = tmp_path / "authority.pem"
    authority.write_text(site.hosts.ssh("web1", "cat /etc/slackwater/node/authority.pem").stdout)
    for part, may_say, may_hear in [
        ("monitor", {"slackwater.sample.web.web1"}, {"slackwater.weight.web.web1", "slackwater.ask.web.web1"}),
        ("wsengine", {"slackwater.change.web.web1", "slackwater.knobs.web.web1"}, {"slackwater.order.web.web1"}),
    ]:
        seed = site.hosts.ssh("web1", f"cat /etc/slackwater/node/{part}.nkey").stdout.strip()
        with rollout_thief.connect(broker, seed, authority) as thief:
            for subject in rollout_thief.subjects(WEBS):
                printed, heard = thief.may_publish(subject), thief.may_subscribe(subject)
                assert printed == (subject in may_say), f"{part} publishes {subject}"
                assert heard == (subject in may_hear), f"{part} hears {subject}"
            for subject in rollout_thief.WILDCARDS:
                assert not thief.may_subscribe(subject), f"{part} hears {subject}"
    assert rollout_thief.is_refused(broker, "", authority), "who has no key does not come in"
    assert rollout_thief.is_refused(broker, rollout_thief.new_seed(), authority), "an unknown key does not come in"


@on_debian_12
@pytest.mark.parametrize("kind", FLOODS)
def test_a_node_that_floods_the_bus_does_not_delay_the_others_verdicts(site: Site, tmp_path: Path, kind: str) -> None:
    """Compares how old web2's Verdicts are when they come, without and with a flood from web1."""
    bus = controllers_bus(site, tmp_path)
    calm = sorted(asyncio.run(ages_s(bus, "web2", 25)))
    with Flood(site, bus, kind) as flood:
        flooded = sorted(asyncio.run(ages_s(bus, "web2", 40)))
    for load, ages in (("calm", calm), (f"{flood.sent} {kind}", flooded)):
        print(f"web2's Verdicts, {load}: {statistics.median(ages) * 1e3:.0f} ms old, at most {ages[-1] * 1e3:.0f} ms")
    assert flood.sent > FLOODS[kind].at_once * 10
    assert statistics.median(flooded) < statistics.median(calm) + 0.2, "one period"


@on_debian_12
def test_new_keys_for_all_make_the_stolen_one_worthless(site: Site, tmp_path: Path) -> None:
    stolen = site.hosts.ssh("web1", "cat /etc/slackwater/node/monitor.nkey").stdout.strip()
    authority = tmp_path / "authority.pem"
    authority.write_text(site.hosts.ssh("web1", "cat /etc/slackwater/node/authority.pem").stdout)
    orders_key = site.hosts.ssh("web1", "cat /etc/slackwater/node/orders.pub").stdout
    printed = site.play("rotate")
    assert printed.status == 0, printed.end
    assert site.hosts.ssh("web1", "cat /etc/slackwater/node/orders.pub").stdout != orders_key
    assert site.hosts.ssh("web1", "cat /etc/slackwater/node/monitor.nkey").stdout.strip() != stolen
    assert rollout_thief.is_refused(f"{site.hosts['lb1'].address}:14222", stolen, authority)
    wait_until(lambda: set(states(site)) == set(WEBS) and "unknown" not in states(site).values(), "all are heard")


# --- removal


def test_removal_under_load_fails_no_request_and_leaves_no_trace(site: Site, before: dict[str, dict[str, str]]) -> None:
    with Requests(site.hosts["lb1"].address) as load:
        printed = site.play("remove")
    assert printed.status == 0, printed.end
    assert not load.failures, (len(load.failures), load.sent, load.failures[:3])
    for name in NAMES:
        assert difference(before[name], configuration(site.hosts, name)) == [], name
