"""Two balancers with a controller each, and three brokers: any of them may die.

The nodes' Samples are made here and sent with the nodes' own keys, so that an episode begins when the test says so.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.rollout_ansible import Site
from tests.support.rollout_hosts import NETWORK, Hosts, hosts, wait_until, why_not
from tests.support.rollout_nodes import LOOK, Nodes, weights
from tests.support.rollout_packages import made_packages
from tests.support.rollout_site import WEBS, set_up, share_address
from tests.support.side_by_side import ROLLOUTS

pytestmark = [
    pytest.mark.lab,
    pytest.mark.xdist_group(ROLLOUTS),
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(bool(why_not()), reason=f"rollout: {why_not()}"),
]
BALANCERS = ["lb1", "lb2"]
BROKERS = [*BALANCERS, "bus3"]
SHARED = f"{NETWORK}.100"
"""The address that keepalived gives to one of the balancers."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    packages = made_packages(tmp_path_factory.mktemp("packages"))
    with hosts() as ours:
        ours.up([*BROKERS, *WEBS])
        set_up(ours, BALANCERS, WEBS)
        share_address(ours, BALANCERS, SHARED)
        groups = {"brokers": BROKERS, "controllers": BALANCERS, "balancers": BALANCERS, "nodes": WEBS}
        site = Site(ours, groups, packages, {"slackwater_mode": "act"})
        printed = site.play("site")
        assert printed.status == 0, printed.end
        yield site


def is_served() -> bool:
    """Whether the shared address answers."""
    try:
        with urllib.request.urlopen(f"http://{SHARED}/index.php", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def leader(ours: Hosts) -> str:
    """The host whose controller last said that it is not standing by."""
    log = {name: ours.ssh(name, "journalctl -u slackwater-controller -o cat --no-pager").stdout for name in BALANCERS}
    stands = [name for name in BALANCERS if log[name].rfind("standing by") > log[name].rfind("taking over")]
    assert len(stands) == 1, log
    return next(name for name in BALANCERS if name not in stands)


@contextlib.contextmanager
def lowered(site: Site, folder: Path) -> Iterator[tuple[str, str]]:
    """web3 is beside a neighbour and lowered on both balancers: the host that leads, and the other one. Afterwards all
    have their baseline weights again."""
    ours = site.hosts
    first = leader(ours)
    other = next(name for name in BALANCERS if name != first)
    for name in WEBS:
        ours.ssh(name, "systemctl stop slackwater-monitor")
    with Nodes(site, f"{ours['bus3'].address}:14222", folder) as nodes:
        wait_until(lambda: set(weights(ours, other).values()) == {100}, "all at their baseline")
        nodes.cluster.hosts["web3"].neighbour = 1.0
        wait_until(lambda: max(weights(ours, name)["web3"] for name in BALANCERS) < 60, "web3 is lowered on both")
        yield first, other
    for name in WEBS:
        ours.ssh(name, "systemctl start slackwater-monitor")
    wait_until(lambda: set(weights(ours, other).values()) == {100}, "all at their baseline again")


class Looks:
    """The weights of a balancer for 15 s from now on."""

    def __init__(self, ours: Hosts, name: str) -> None:
        self._printed = ""

        def look() -> None:
            self._printed = ours.ssh(name, f"python3 - 15 <<'END'\n{LOOK}\nEND").stdout

        self._thread = threading.Thread(target=look, daemon=True)
        self._thread.start()

    def assert_no_jump(self) -> None:
        """web3 stayed lowered all the time, and the others kept their weights."""
        self._thread.join(60)
        during = [json.loads(line)[1] for line in self._printed.splitlines()]
        assert len(during) > 20
        assert max(look["web3"] for look in during) < 80, "web3 came back to its baseline"
        assert min(min(look["web1"], look["web2"]) for look in during) > 80, "the others lost theirs"


def test_the_other_controller_takes_over_with_the_weights_as_they_are(site: Site, tmp_path: Path) -> None:
    ours = site.hosts
    wait_until(is_served, "the shared address answers")
    with lowered(site, tmp_path) as (first, other):
        looks = Looks(ours, other)
        dead_unix_s = time.time()
        ours.power_off(first)

        def took_over() -> float | None:
            log = ours.ssh(other, "journalctl -u slackwater-controller -o short-unix --no-pager").stdout
            times = re.findall(r"(?m)^(\d+\.\d+) .*taking over", log)
            return float(times[-1]) - dead_unix_s if times and float(times[-1]) > dead_unix_s - 1 else None

        wait_until(lambda: took_over() is not None, f"{other} takes over")
        print(f"took over after {took_over():.2f} s")
        wait_until(is_served, "the shared address answers, wherever it is now")
        looks.assert_no_jump()
        ours.up([first])


UNIT = "slackwater-controller"
ONCE = f"/run/systemd/system/{UNIT}.service.d"


def kill_for_good(ours: Hosts, name: str) -> str:
    """The unit's processes end at once, and it is not started again; gives what it said from then on."""
    ours.ssh(name, f"mkdir -p {ONCE}; printf '[Service]\\nRestart=no\\n' >{ONCE}/once.conf; systemctl daemon-reload")
    since = ours.ssh(name, "date +%s.%N").stdout.strip()
    ours.ssh(name, f"systemctl kill -s KILL {UNIT}")
    state = f"systemctl show --value -p ActiveState {UNIT}"
    wait_until(lambda: ours.ssh(name, state).stdout.strip() == "failed", f"{UNIT} of {name} has ended")
    return str(ours.ssh(name, f"journalctl -u {UNIT} -o cat --no-pager --since @{since}").stdout)


def test_a_killed_unit_leaves_the_weights_to_the_other_controller_and_the_last_one_sets_the_baseline(
    site: Site, tmp_path: Path
) -> None:
    """What ExecStopPost does where two controllers drive the same balancers."""
    ours = site.hosts
    wait_until(is_served, "the shared address answers")
    try:
        with lowered(site, tmp_path) as (first, other):
            looks = Looks(ours, other)
            assert "its weights are left as they are: lbengine of" in kill_for_good(ours, first)
            looks.assert_no_jump()
            kill_for_good(ours, other)
            for name in BALANCERS:
                assert set(weights(ours, name).values()) == {100}
    finally:
        for name in BALANCERS:
            ours.ssh(name, f"rm -rf {ONCE}; systemctl daemon-reload; systemctl start {UNIT}")


@pytest.mark.parametrize("dead", BROKERS)
def test_each_broker_may_die(site: Site, dead: str) -> None:
    ours = site.hosts
    ours.ssh(dead, "systemctl kill -s KILL slackwater-broker; systemctl stop slackwater-broker")
    try:
        watching = next(name for name in BALANCERS if name != dead)

        def heard() -> bool:
            done = ours.ssh(watching, "slackwater status --json", check=False)
            rows = json.loads(done.stdout)["pools"][0]["rows"] if done.returncode == 0 else []
            return sorted(row["node"] for row in rows if row["state"] != "unknown") == WEBS

        wait_until(heard, f"all are heard without {dead}'s broker")
    finally:
        ours.ssh(dead, "systemctl start slackwater-broker")
