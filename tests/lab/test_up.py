"""The real lab goes up, serves from separate hosts, and leaves nothing, however it ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest

from slackwater_lab.cluster.applications import APPLICATIONS, wiki_page
from slackwater_lab.cluster.lab import Lab, LabSettings
from slackwater_lab.cluster.load import Demand
from slackwater_lab.cluster.paths import LabError
from slackwater_lab.cluster.traces import state, traces
from tests.support.real_lab import eventually, lab_command, needs_lab, run_lab

pytestmark = [pytest.mark.lab, needs_lab, pytest.mark.usefixtures("nothing_before_and_after")]


def start_up(*arguments: str) -> subprocess.Popen[str]:
    """`slackwater lab up`, once it says that it is up."""
    process = subprocess.Popen(
        lab_command("up", *arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    printed = []
    for line in process.stdout:
        printed.append(line)
        if "Ctrl-C" in line:
            return process
    raise AssertionError(f"lab up ended with {process.wait()}: {''.join(printed)}")


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as reply:
        return str(reply.read().decode())


@pytest.mark.parametrize("app", list(APPLICATIONS))
def test_each_host_serves_the_application_and_the_balancer_shares_it_out(app: str) -> None:
    with Lab(LabSettings(app=app)) as lab:
        pages = [page(f"http://{host.address}{lab.app.paths[1]}") for host in lab.hosts]
        assert all("</html>" in text for text in pages)
        if app in ("events", "search"):
            assert len(set(pages)) == 1
        else:
            written = re.findall(r"\*\*(.+?)\*\*", wiki_page(1))
            assert len(written) == 30
            assert all(sentence in text for sentence in written for text in pages)
        requests = lab.load(Demand(rate_rps=20), 3.0).finish()
        assert requests.lost == {}
        assert set(requests.status.tolist()) == {200}
        counts = lab.balancer.snapshot().requests.values()
        assert min(counts) > sum(counts) / 4, "roundrobin gives each host a third"
        for host in lab.hosts:
            namespace = Path(f"/run/netns/{host.netns}").stat().st_ino
            found_inside = programs(lab.cgroups.pids(host.vm))
            assert found_inside == {("apache2", namespace), ("php-fpm8.2", namespace)}


def programs(pids: list[int]) -> set[tuple[str, int]]:
    """Name and network namespace of those that are still there."""
    running = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            process = Path(f"/proc/{pid}")
            running.add(((process / "comm").read_text().strip(), (process / "ns/net").stat().st_ino))
    return running


def test_a_neighbour_shares_the_hosts_quota_and_processor_but_not_its_guest() -> None:
    with Lab(LabSettings(hosts=2)) as lab:
        noise = lab.noise(lab.noisy, "cpu", 1.0, 30.0)
        assert noise.process.pid in lab.cgroups.pids(lab.noisy.neighbour)
        assert noise.process.pid not in lab.cgroups.pids(lab.noisy.vm)
        served_on = {frozenset(os.sched_getaffinity(pid)) for pid in lab.cgroups.pids(lab.noisy.vm)}
        assert served_on == {frozenset(os.sched_getaffinity(noise.process.pid))}, "they want the same processor"
        assert len(served_on.pop()) == 1
        begin = lab.cgroups.cpu_s(lab.noisy.neighbour)
        eventually("it uses CPU", lambda: lab.cgroups.cpu_s(lab.noisy.neighbour) > begin + 0.1, 29.0)


def test_an_error_inside_takes_all_of_it_down() -> None:
    def fails_under_load() -> None:
        with Lab(LabSettings(hosts=2)) as lab:
            lab.noise(lab.noisy, "cpu", 0.5, 60.0)
            lab.load(Demand(rate_rps=20), 60.0)
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        fails_under_load()
    assert traces() == []


def test_a_web_server_that_ends_is_reported_by_name() -> None:
    with Lab(LabSettings(hosts=2)) as lab:
        lab.programs[1].signal(signal.SIGKILL)
        eventually("it ended", lambda: not lab.programs[1].running, 60.0)
        with pytest.raises(LabError, match="apache2 of host1 ended with status -9"):
            lab.check()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_takes_all_of_it_down(how: signal.Signals) -> None:
    process = start_up("--hosts", "2")
    assert traces()
    process.send_signal(how)
    process.communicate(timeout=120)
    assert traces() == []


def test_a_second_lab_is_refused_and_down_ends_the_first() -> None:
    process = start_up("--hosts", "2")
    second = run_lab("up")
    assert second.returncode == 1
    assert "a lab is up already: run `slackwater lab down`" in second.stderr
    assert (state() or {})["owner"]["pid"] == process.pid
    done = run_lab("down")
    assert (done.returncode, done.stdout[:9]) == (0, "removed: ")
    process.communicate(timeout=120)
    assert traces() == []
    again = run_lab("down")
    assert (again.returncode, again.stdout) == (0, "nothing to remove\n")


def test_after_a_crash_down_finds_and_removes_everything() -> None:
    process = start_up("--hosts", "2")
    process.kill()
    process.communicate(timeout=120)
    assert any("processes" in trace and "with 0" not in trace for trace in traces())
    second = run_lab("up")
    assert second.returncode == 1
    assert "a lab was left behind" in second.stderr
    assert run_lab("status").stdout.startswith("lab left behind")
    assert run_lab("down").returncode == 0
    assert traces() == []
