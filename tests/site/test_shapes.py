"""Each shape of the test site goes up, serves, and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slackwater_lab.cluster.cgroups import Cgroups
from tests.site.machine import owner_name, owner_runs, remove_leftovers
from tests.site.site import FOLDER, SHAPES, TOP, Site, missing

LACKS = missing()
needs_site = pytest.mark.skipif(bool(LACKS), reason=f"the test site cannot run here; missing: {'; '.join(LACKS)}")
pytestmark = [pytest.mark.lab, needs_site]
UP = """
import os, time
from tests.site.site import SHAPES, Site
with Site(SHAPES["stock"]) as site:
    print(site.cgroup, flush=True)
    time.sleep(60)
"""


def left() -> list[str]:
    """What there is of sites whose process is gone."""
    folders = [path.name for path in FOLDER.glob("*") if not owner_runs(path.name)]
    cgroups = [path.name for root in Cgroups.of_this_machine().roots for path in (root / TOP).glob("*-*")]
    return folders + [name for name in cgroups if not owner_runs(name)]


@pytest.mark.parametrize(
    "name", [name if name in ("stock", "tls") else pytest.param(name, marks=pytest.mark.slow) for name in SHAPES]
)
def test_each_shape_serves_from_all_its_servers(name: str) -> None:
    with Site(SHAPES[name]) as site:
        requests = site.load(60, 2.0).finish()
        assert requests.errors == 0
        assert set(requests.server.tolist()) == {web.name for web in site.webs}
        assert set(site.snapshot().status.values()) == {"UP"}
        folder, cgroup = site.folder, site.cgroup
    assert not folder.exists()
    assert not Cgroups.of_this_machine().exists(cgroup)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_nothing_of_a_site_stays_however_its_process_ends(number: signal.Signals) -> None:
    owner = subprocess.Popen([sys.executable, "-c", UP], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    cgroup = owner.stdout.readline().strip()
    cgroups = Cgroups.of_this_machine()
    programs = cgroups.pids(cgroup)
    assert len(programs) > 10
    owner.send_signal(number)
    owner.wait(30)
    owner.stdout.close()
    until_s = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in programs):
        assert time.monotonic() < until_s, f"still there: {cgroups.pids(cgroup)}"
        time.sleep(0.05)
    remove_leftovers(cgroups, TOP, FOLDER)
    assert not cgroups.exists(cgroup)
    assert left() == []


def test_who_is_alive_is_told_by_its_start_too() -> None:
    assert owner_runs(owner_name())
    assert owner_runs(f"{owner_name()}-abc")
    assert not owner_runs(f"{os.getpid()}-1")
    assert not owner_runs("something-else")
