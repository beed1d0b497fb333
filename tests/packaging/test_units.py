"""How far each unit is confined, by `systemd-analyze security` of the unit's file; and that systemd understands it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.unit_exposure import WORST

pytestmark = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")

NEEDED_BY_THE_MONITOR = {
    *("RestrictAddressFamilies=~AF_PACKET", "RestrictAddressFamilies=~AF_(INET|INET6)"),
    *(
        "RestrictAddressFamilies=~AF_UNIX",
        "PrivateNetwork=",
        "CapabilityBoundingSet=~CAP_NET_(BIND_SERVICE|BROADCAST|RAW)",
    ),
    *("AmbientCapabilities=", "PrivateUsers=", "ProtectProc=", "ProcSubset="),
    # perf_event_open, and capset to give up what its settings do not need.
    *("SystemCallFilter=~@debug", "SystemCallFilter=~@privileged"),
    # The site's addresses; a system of its own; and the clock that ProtectClock lets it read.
    *("IPAddressDeny=", "RootDirectory=/RootImage=", "DeviceAllow="),
}
"""What `systemd-analyze security` holds against it."""


def unit(source: str, folder: Path) -> Path:
    """A unit's file under its own name."""
    place = folder / Path(source).name.removesuffix(".j2")
    shutil.copy(ROOT / source, place)
    return place


def test_every_unit_is_here() -> None:
    units = {str(path.relative_to(ROOT)) for path in (ROOT / "packaging").glob("*/*.service")}
    units |= {str(path.relative_to(ROOT)) for path in (ROOT / "ansible").rglob("*.service.j2")}
    assert units == set(WORST)


@pytest.mark.parametrize("source", WORST)
def test_a_unit_is_confined(source: str, tmp_path: Path) -> None:
    bound = str(round(WORST[source] * 10))
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={bound}"]
    done = subprocess.run([*command, str(unit(source, tmp_path))], capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert "Overall exposure level" in done.stdout


def test_the_controller_may_capture_and_the_sniffer_may_give_that_up() -> None:
    lines = (ROOT / "packaging/controller/slackwater-controller.service").read_text().splitlines()
    assert [line for line in lines if "Capabilit" in line and not line.startswith("#")] == [
        "CapabilityBoundingSet=CAP_NET_RAW",
        "AmbientCapabilities=CAP_NET_RAW",
    ]
    assert "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_PACKET AF_NETLINK" in lines
    assert any(line.startswith("SystemCallFilter=") and "capset" in line.split() for line in lines)


def test_nothing_is_left_to_the_monitor_that_it_does_not_need(tmp_path: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", "--json=short"]
    place = unit("packaging/node/slackwater-monitor.service", tmp_path)
    rows = json.loads(subprocess.run([*command, str(place)], capture_output=True, text=True, check=True).stdout)
    assert {row["name"] for row in rows if float(row["exposure"] or 0) > 0} == NEEDED_BY_THE_MONITOR
