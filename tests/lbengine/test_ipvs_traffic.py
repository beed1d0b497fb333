"""What weights do in each of IPVS's schedulers, shown by traffic: the rows of schedulers.SCHEDULERS."""

from __future__ import annotations

from collections import Counter

import pytest

from slackwater.lbengine.backends.ipvs import schedulers
from slackwater.lbengine.backends.ipvs.preflight import check
from slackwater.lbengine.backends.ipvs.settings import IpvsPool
from tests.support.ipvs_guest import SCHEDULERS as SHIPPED
from tests.support.ipvs_guest import needs_ipvs
from tests.support.ipvs_site import IpvsSite
from tests.support.real_haproxy import until

pytestmark = needs_ipvs
POOL = IpvsPool(name="web", service="-t 10.9.0.1:80")
RS1, RS2 = "10.9.1.2:80", "10.9.2.2:80"


def test_every_scheduler_of_the_kernel_has_its_row() -> None:
    assert set(schedulers.SCHEDULERS) == set(SHIPPED)


def test_wrr_splits_connections_by_weight_and_follows_a_live_change(site: IpvsSite) -> None:
    lvs = site.service("wrr", (100, 30))
    assert Counter(site.connect(lvs, 260)) == {"rs1": 200, "rs2": 60}
    lvs.set_weights({RS1: 10, RS2: 90})
    assert Counter(site.connect(lvs, 200)) == {"rs1": 20, "rs2": 180}
    lvs.set_weights({RS1: 0})
    assert Counter(site.connect(lvs, 30)) == {"rs2": 30}


def longest_without(answers: list[str | None], name: str) -> int:
    runs = "".join("x" if answer == name else "." for answer in answers).split("x")
    return max(len(run) for run in runs)


def test_wrr_serves_in_runs_as_long_as_the_weights_are_large(site: IpvsSite) -> None:
    coarse = site.connect(site.service("wrr", (20, 20, 11)), 51)
    fine = site.connect(site.service("wrr", (100, 100, 51)), 251)
    assert (Counter(coarse)["rs3"], Counter(fine)["rs3"]) == (11, 51)
    assert longest_without(coarse, "rs3") <= 20
    assert longest_without(fine, "rs3") >= 90


def test_wrr_heeds_weights_over_ipv6(site: IpvsSite) -> None:
    lvs = site.service("wrr", (100, 30), ipv6=True)
    lvs.set_weights({"fd09:1::2_80": 20, "fd09:2::2_80": 60})
    assert Counter(site.connect(lvs, 80)) == {"rs1": 20, "rs2": 60}


@pytest.mark.parametrize("scheduler", ["wlc", "sed", "nq"])
def test_least_connection_schedulers_split_what_is_held_by_weight(site: IpvsSite, scheduler: str) -> None:
    lvs = site.service(scheduler, (100, 30))
    lvs.set_weights({RS1: 30, RS2: 100})
    held = Counter(site.connect(lvs, 130, hold=True))
    assert held["rs1"] == pytest.approx(30, abs=2)
    assert held["rs2"] == pytest.approx(100, abs=2)


@pytest.mark.parametrize("scheduler", ["rr", "lc"])
def test_rr_and_lc_ignore_weights_above_0(site: IpvsSite, scheduler: str) -> None:
    lvs = site.service(scheduler, (100, 30))
    assert Counter(site.connect(lvs, 40, hold=True)) == {"rs1": 20, "rs2": 20}
    lvs.set_weights({RS1: 0})
    assert Counter(site.connect(lvs, 10, hold=True)) == {"rs2": 10}


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["dh", "lblc", "lblcr", "fo"])
def test_dh_lblc_lblcr_and_fo_send_everything_to_one_server(site: IpvsSite, scheduler: str) -> None:
    assert len(Counter(site.connect(site.service(scheduler, (100, 99)), 20))) == 1


@pytest.mark.slow
def test_ovf_refuses_what_is_above_the_weights(site: IpvsSite) -> None:
    held = site.connect(site.service("ovf", (4, 6)), 20, hold=True)
    assert held[-1] is None
    assert 10 <= sum(name is not None for name in held) <= 14


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["sh", "mh"])
def test_hashes_share_the_keys_by_weight(site: IpvsSite, scheduler: str) -> None:
    lvs = site.service(scheduler, (10, 10), flags=f"{scheduler}-port,{scheduler}-fallback")
    lvs.set_weights({RS1: 5, RS2: 20})
    # 4 of 5 of 300 random keys: 240, with a standard deviation of 7.
    assert Counter(site.connect(lvs, 300))["rs2"] == pytest.approx(240, abs=35)
    assert any("share of the connections" in warning for warning in check(lvs, POOL))


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["sh", "mh"])
def test_without_fallback_a_hash_refuses_the_keys_of_weight_0(site: IpvsSite, scheduler: str) -> None:
    lvs = site.service(scheduler, (1, 1), flags=f"{scheduler}-port")
    lvs.set_weights({RS1: 0})
    # Half of 40 random keys: none at all would come once in 10^12 times.
    assert site.connect(lvs, 40, stop=True)[-1] is None
    site.guest.ok(f"ipvsadm -E {lvs.service} -s {scheduler} -b {scheduler}-port,{scheduler}-fallback")
    assert Counter(site.connect(lvs, 40)) == {"rs2": 40}


@pytest.mark.slow
def test_sh_with_weights_that_overflow_its_table_starves_the_last_server(site: IpvsSite) -> None:
    lvs = site.service("sh", (100, 100, 100), flags="sh-port,sh-fallback")
    # The server that was added first is the last: 56 of 256 places instead of 85. 66 of 300, deviation 7; fair: 100.
    assert Counter(site.connect(lvs, 300))["rs1"] < 90
    assert "overflow" in schedulers.refusal("sh", frozenset({"sh-port", "sh-fallback"}), 300)


@pytest.mark.slow
def test_a_changed_weight_moves_most_keys_with_sh_and_only_its_own_with_mh(site: IpvsSite) -> None:
    moved = {}
    for scheduler in ("sh", "mh"):
        lvs = site.service(scheduler, (10, 10), flags=f"{scheduler}-fallback")
        before = site.connect(lvs, 100, all_sources=True)
        assert site.connect(lvs, 100, all_sources=True) == before
        lvs.set_weights({RS2: 5})
        after = site.connect(lvs, 100, all_sources=True)
        moved[scheduler] = Counter((was, now) for was, now in zip(before, after, strict=True) if was != now)
    assert set(moved["mh"]) == {("rs2", "rs1")}
    assert moved["sh"][("rs1", "rs2")] > 0


@pytest.mark.slow
def test_persistent_clients_leave_weight_0_only_where_the_kernel_expires_them(site: IpvsSite) -> None:
    lvs = site.service("wrr", (50, 50), more="-p 60")
    (home,) = set(site.connect(lvs, 5))
    lvs.set_weights({RS1 if home == "rs1" else RS2: 0})
    assert set(site.connect(lvs, 5)) == {home}
    assert any("expire_quiescent_template" in warning for warning in check(lvs, POOL))
    site.guest.ok("echo 1 >/proc/sys/net/ipv4/vs/expire_quiescent_template")
    assert home not in site.connect(lvs, 5)
    warnings = check(lvs, POOL)
    assert any("persistence keeps known clients" in warning for warning in warnings)
    assert not any("expire_quiescent_template" in warning for warning in warnings)


def test_an_upper_threshold_caps_a_server_whatever_its_weight(site: IpvsSite) -> None:
    lvs = site.service("wrr", (100, 10))
    site.guest.ok(f"ipvsadm -e {lvs.service} -r {RS1} -m -w 100 -x 5 -y 2")
    lvs.set_weights({RS1: 90, RS2: 90})
    assert Counter(site.connect(lvs, 30, hold=True))["rs1"] <= 6
    assert any(f"{RS1} get no connections beyond" in warning for warning in check(lvs, POOL))


def test_connections_are_counted_and_seen_while_they_are_held(site: IpvsSite) -> None:
    lvs = site.service("wrr", (50, 50))
    site.connect(lvs, 20)
    until(
        lambda: [server.requests for server in lvs.read().servers] == [10, 10], "the kernel's counters are brought up"
    )
    seen = lvs.read()
    assert [server.name for server in seen.servers] == [RS1, RS2]
    assert seen.connections == 20
    # As a site's own script does it; this is how a reload of the table is noticed.
    site.guest.ok("ipvsadm -Sn >/run/table; ipvsadm -C; ipvsadm -R </run/table")
    assert lvs.read().connections == 0
