"""The governor end to end: cores and CPU time are really taken from a cgroup, given back, and put back in the end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater.core.config import load
from slackwater.core.journal.journal import Journal, journal_path
from slackwater.core.messages import GOVERNOR
from slackwater.web.content.governor import rows
from tests.support.governor_site import HIGH_CORES, GovernorSite, governor_site
from tests.support.needs_wsengine import pytestmark as needs_wsengine
from tests.support.real_cgroup import needs_cgroups
from tests.support.real_haproxy import needs_haproxy
from tests.support.served_site import until

pytestmark = [needs_haproxy, *needs_wsengine, *needs_cgroups, pytest.mark.slow]
SHORT_LEASE_S = 4.0


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[GovernorSite]:
    with governor_site(tmp_path) as whole:
        yield whole


def test_it_takes_at_low_load_gives_when_it_rises_and_puts_everything_back(whole: GovernorSite) -> None:
    whole.configure("act")
    serving = whole.serve()
    assert GOVERNOR in whole.children()
    until(lambda: whole.has() != whole.own, "less at low load")
    until(
        lambda: (governed := whole.governed()) and governed.cores == whole.has()[0],
        "the governor says what is in force",
    )
    given = until(lambda: whole.changes_by(GOVERNOR), "its Orders in the journal")
    assert {change.cause for change in given} == {"governor"}
    assert given[-1].what in ("order cpu.cores", "order cpu.quota")
    until(
        lambda: [change for change in whole.changes_by("wsengine") if change.follows == given[-1].id], "what came of it"
    )
    printed = whole.cli("why", "web1").stdout
    assert "the governor's last decisions" in printed
    assert "cores of work" in printed
    assert "(by governor" in whole.cli("log").stdout or "governor" in whole.cli("log").stdout
    whole.nodes.busy_cores = HIGH_CORES
    until(lambda: whole.has() == whole.own, "all of it when the load rises")
    whole.nodes.busy_cores = 0.1
    until(lambda: whole.has() != whole.own, "less again")
    serving.terminate()
    serving.wait(30)
    until(lambda: whole.has() == whole.own, "as before when serve stops")


def test_after_kill_9_the_lease_puts_everything_back(whole: GovernorSite) -> None:
    whole.configure("act", SHORT_LEASE_S)
    serving = whole.serve()
    until(lambda: whole.has() != whole.own, "less at low load")
    children = whole.children()
    serving.send_signal(signal.SIGSTOP)  # so that it neither starts the governor again nor ends it in order
    os.kill(children[GOVERNOR], signal.SIGKILL)
    serving.kill()
    serving.wait()
    until(lambda: whole.has() == whole.own, "as before, after the lease")
    ended = until(lambda: "ended without a renewal" in whole.engine.log_text(), "the reason")
    assert ended


def test_hurry_up_runs_on_the_node_and_follows_the_applications_events(whole: GovernorSite) -> None:
    whole.configure("act", policy="hurry-up")
    serving = whole.serve()
    until(lambda: whole.has() != whole.own, "the low state")
    low = whole.has()[1]
    given = until(lambda: whole.changes_by(GOVERNOR), "its Order in the journal")
    assert (given[-1].what, str(given[-1].after).split()[0]) == ("order cpu.policy", "hurry-up")
    reason = "by a quota, which is no clock"
    governed = until(
        lambda: (governed := whole.governed()) and reason in governed.why and governed, "the policy's own reason"
    )
    assert (governed.policy, governed.clock_knob) == ("hurry-up", "cpu.quota")
    with Journal.open(journal_path(whole.state), read_only=True) as journal:
        shown = rows(journal, load(whole.config), time.time())
    assert {row.clock_name for row in shown if row.node == "web1"} == {"quota in place of a clock"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as application:
        application.connect(str(whole.socket))
        application.sendall(b"begin search\n")
        until(lambda: (whole.has()[1] or 0) > (low or 0), "more in the hot function")
    until(lambda: whole.has()[1] == low, "less again")
    serving.terminate()
    serving.wait(30)
    until(lambda: whole.has() == whole.own, "as before when serve stops")


def test_in_observe_it_records_and_touches_nothing(whole: GovernorSite) -> None:
    whole.configure("observe")
    whole.serve()
    until(whole.governed, "the governor at work")
    noted = until(lambda: whole.changes_by(GOVERNOR), "what it would set")
    assert {(change.cause, change.applied) for change in noted} == {("governor", False)}
    assert whole.has() == whole.own
    assert "lease" not in whole.engine.log_text()


def test_the_command_governs_beside_serve_and_only_once(whole: GovernorSite) -> None:
    whole.configure("off")
    whole.serve()
    command = [
        sys.executable,
        "-m",
        "slackwater.controller.cli.main",
        "governor",
        "run",
        "--config",
        str(whole.config),
        "--act",
    ]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        until(lambda: whole.has() != whole.own, "less at low load")
        second = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert second.returncode == 1
        assert "another governor of this controller runs" in second.stderr
        running.send_signal(signal.SIGINT)
        printed, _ = running.communicate(timeout=60)
    finally:
        running.kill()
        running.wait()
    assert "web1: " in printed
    assert " sets " in printed
    assert whole.has() == whole.own, "put back at the end"
