"""Monitor and wsengine on a real cgroup v2 tree, in a guest: this machine may have version 1 alone."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.ipvs_guest import IpvsGuest, needs_ipvs
from tests.support.paths import ROOT
from tests.support.real_wsengine import PROGRAM

TREE = "/sys/fs/cgroup"
WEB = "system.slice/php8.2-fpm.service"
FILES = ("lab/test_cgroups.py", "monitor/test_cgroup.py", "wsengine/test_batch.py", "wsengine/test_cgroup.py")
MONITOR = shutil.which("slackwater-monitor")
pytestmark = [
    needs_ipvs,
    pytest.mark.skipif(PROGRAM is None or MONITOR is None, reason="the programs are not built (make setup)"),
]
NODE = f"""\
node = "n1"
period_s = 1.0
[cpu]
cgroup = "{WEB}"
[processes]
cgroup = "{WEB}"
[sniffer]
interface = ""
[canary]
enabled = false
"""
ENGINE = f"""\
node = "n1"
state_dir = "/run/state"
[cpu]
cgroup = "{WEB}"
share = [10, 400]
cores = [1, 8]
"""


@pytest.fixture
def tree(guest: IpvsGuest) -> Iterator[IpvsGuest]:
    """The tree as systemd shapes it on a server where no unit has a CPU setting, with a busy process in one service.

    Whoever reads a port for commands stays where it is, in a cgroup of its own: only the root may have processes beside
    children with controllers.
    """
    guest.ok(f"mount -t cgroup2 cgroup2 {TREE} && cd {TREE} && mkdir -p {WEB} system.slice/apache2.service")
    for folder in ("", "/system.slice"):
        guest.ok(f"echo '+memory +pids' >{TREE}{folder}/cgroup.subtree_control")
    guest.ok(
        f"(echo $BASHPID >{TREE}/{WEB}/cgroup.procs; exec busybox sh -c 'while :; do :; done') >/dev/null 2>&1 &"
        f" until grep -q . {TREE}/{WEB}/cgroup.procs; do sleep 0.05; done"
    )
    for name, text in (("node.toml", NODE), ("wsengine.toml", ENGINE)):
        guest.replace(f"/run/{name}", text)
    yield guest
    guest.ok(f"echo 1 >{TREE}/{WEB}/cgroup.kill")
    guest.ok(f"while grep -q 'populated 1' {TREE}/{WEB}/cgroup.events; do sleep 0.05; done")
    guest.ok(f"cd {TREE} && rmdir {WEB} system.slice/apache2.service system.slice && cd / && umount {TREE}")


def run(guest: IpvsGuest, program: str | None, words: str, status: int = 0) -> str:
    """What the program prints in the guest, with this machine's own libraries."""
    assert program is not None
    exit_status, printed = guest.sh(f"LD_LIBRARY_PATH= {Path(program).resolve()} {words}")
    assert exit_status == status, printed
    return printed


def sample(guest: IpvsGuest) -> dict[str, Any]:
    measured: dict[str, Any] = json.loads(run(guest, MONITOR, "once --json --config /run/node.toml 2>/dev/null"))
    return measured


def changes(guest: IpvsGuest, words: str) -> list[dict[str, Any]]:
    """The Changes of a `try` of a second: the one that sets the knob, and the one that puts it back."""
    printed = run(guest, PROGRAM, f"try --config /run/wsengine.toml --json {words} --seconds 1 2>/dev/null")
    return [json.loads(line) for line in printed.splitlines()]


def test_without_the_cpu_controller_a_service_is_measured_and_what_cannot_be_set_is_named(tree: IpvsGuest) -> None:
    """systemd leaves the controllers `cpu` and `cpuset` off until a unit wants them."""
    measured = sample(tree)
    cpu = measured["cpu"]
    assert (cpu["scope"], cpu["cores"]) == ("cgroup", 2.0)
    assert 0.0 < cpu["utilisation"] < 0.6, cpu
    assert measured["sched"]["processes"] == 1
    assert "cgroup_cpu_some" in measured["pressure"]
    assert measured["absent"]["cpu.throttled"] == "neither the cgroup nor one above it has a quota"
    printed = run(tree, PROGRAM, "check --config /run/wsengine.toml", status=1)
    assert f"cpu.share: cgroup {WEB}: neither cpu.weight (version 2; is the cpu controller on for it?)" in printed
    assert f"cpu.cores: cgroup {WEB}: no cpuset.cpus (is the cpuset controller on for it?)" in printed


def test_share_and_cores_of_a_service_are_set_and_put_back(tree: IpvsGuest) -> None:
    for folder in ("", "/system.slice"):
        tree.ok(f"echo '+cpu +cpuset' >{TREE}{folder}/cgroup.subtree_control")
    applied, back = changes(tree, "cpu.share 300")
    assert (applied["before"], applied["after"], applied["applied"]) == (100, 300, True)
    assert "weight 300, no quota" in applied["why"]
    assert (back["after"], back["cause"]) == (100, "lease_ended")
    applied, back = changes(tree, "cpu.cores 1")
    assert (applied["before"], applied["after"], back["after"]) == (2, 1, 2)
    assert tree.ok(f"cat {TREE}/{WEB}/cpu.weight {TREE}/{WEB}/cpuset.cpus.effective").split() == ["100", "0-1"]
    # A quota of the slice above counts for the service, and its throttling is read there.
    tree.ok(f"echo '20000 100000' >{TREE}/system.slice/cpu.max")
    cpu = sample(tree)["cpu"]
    assert cpu["cores"] == 0.2
    # How much of it the process gets depends on what else this machine does.
    assert 0.0 < cpu["utilisation"] < 1.5, cpu
    assert cpu["throttled"] > 0.0


@pytest.mark.slow
def test_quotas_shares_cores_and_the_monitor_on_version_2(guest: IpvsGuest) -> None:
    settings = f"LD_LIBRARY_PATH= PATH={shlex.quote(os.environ['PATH'])}"
    settings += f" PYTHONPATH={ROOT} PYTHONDONTWRITEBYTECODE=1"
    guest.ok(f"mount -t cgroup2 cgroup2 {TREE}")
    try:
        status, log_text = guest.sh(
            f"cd {ROOT} && {settings} {sys.executable} -m pytest -p no:cacheprovider --basetemp=/run/pytest"
            f" {' '.join(f'tests/{name}' for name in FILES)}"
        )
    finally:
        guest.sh(f"umount {TREE}; rm -rf /run/pytest")
    assert status == 0, log_text
    assert "skipped" not in log_text, log_text
