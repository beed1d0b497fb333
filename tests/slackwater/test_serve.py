"""The supervisor with real children, a real nats-server and a real HAProxy."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slackwater.core import state_dir
from slackwater.core.bus import nats_server
from tests.support.freezer import frozen, needs_freezer
from tests.support.nats_process import open_server
from tests.support.real_haproxy import RealHAProxy, needs_haproxy
from tests.support.real_processes import is_alive
from tests.support.served_site import CHILDREN, HOSTS, IN_TIME_S, Site, noise_on_host1, until, weights

pytestmark = needs_haproxy

ON_TERMINAL = """
import fcntl, os, sys, termios
terminal = os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY)
fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
os.close(terminal)
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
"""Makes the terminal that is named that of its session, and then runs a program."""


@pytest.fixture
def site(tmp_path: Path, balancer: RealHAProxy) -> Iterator[Site]:
    site = Site(tmp_path, balancer)
    yield site
    site.clean()


@pytest.fixture
def noise(site: Site) -> Iterator[Callable[[], None]]:
    """Call it to say on the bus, five times a second from then on, that host1 has a noisy neighbour."""
    with noise_on_host1(site) as start:
        yield start


def baseline(site: Site) -> bool:
    return set(weights(site.balancer).values()) == {100}


def frozen_lbengine(site: Site) -> int:
    """Stops lbengine (SIGSTOP) while host1 has less, which lasts for a lease after the last word; gives its pid."""
    pid = site.children()["lbengine"]

    def caught() -> bool:
        os.kill(pid, signal.SIGSTOP)
        until(lambda: "\nState:\tT" in Path(f"/proc/{pid}/status").read_text(), "lbengine stands still")
        if site.balancer.weight("host1") < 100:
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    until(caught, "lbengine stands still while host1 has a lower weight")
    return pid


# --- the story


def test_serve_runs_its_parts_replaces_the_dead_and_leaves_nothing_behind(
    site: Site, noise: Callable[[], None]
) -> None:
    serve = site.serve()
    assert set(site.children()) == CHILDREN
    described = state_dir.read_serve(site.state)
    assert described is not None
    assert described["pid"] == serve.pid
    assert described["bus"] == f"nats://{site.listen}"
    assert state_dir.running_serve(str(site.state)) == serve.pid
    site.wait_for_cycles()
    status = site.status()
    assert status["mode"] == "act"
    assert {row["server"]: row["weight"] for row in status["rows"]} == dict.fromkeys(HOSTS, 100)

    noise()
    for name in ("detector", "nats-server"):
        pid = site.children()[name]
        os.kill(pid, signal.SIGKILL)
        until(lambda name=name, pid=pid: site.children().get(name, pid) != pid, f"a new {name}")  # type: ignore[misc]
        assert f"{name} (pid {pid}) was killed by SIGKILL" in site.log.read_text()
    until(lambda: nats_server.answers(site.listen), "the new nats-server")

    second = site.cli("serve")
    assert second.returncode == 1
    assert str(serve.pid) in second.stderr.splitlines()[-1]
    assert second.stderr.splitlines()[-1].startswith("error: pool `web`: process ")

    until(lambda: "the others can carry all " in site.cli("log").stdout, "the Change in the log")
    paused = until(lambda: (done := site.cli("pause", "--why", "a test")).returncode == 0 and done, "the pause")
    assert "(a test)" in paused.stdout
    until(lambda: baseline(site), "the baseline in the pause")
    until(lambda: site.cli("resume").returncode == 0, "the end of the pause")
    until(lambda: not baseline(site), "a lower weight after the pause")

    restored = site.cli("restore")
    assert restored.returncode == 0
    assert "warning: `slackwater serve` runs" in restored.stderr

    made = [site.state, *site.state.rglob("*")]
    assert {"journal.sqlite", "serve.lock", "serve.json"} <= {path.name for path in made}
    assert [path for path in made if path.lstat().st_mode & 0o077] == [], "others may use these"

    pids = list(site.children().values())
    serve.send_signal(signal.SIGTERM)
    assert serve.wait(IN_TIME_S) == 0
    assert not [pid for pid in pids if is_alive(pid)]
    assert baseline(site)
    assert state_dir.read_serve(site.state) is None
    assert state_dir.running_serve(str(site.state)) is None
    log = site.log.read_text()
    assert log.index("stopping (SIGTERM): lbengine first") < log.index("stopped")
    assert "WARNING" not in log.partition("stopping (SIGTERM)")[2].replace("WARNING lbengine", "")
    assert "Traceback" not in log


def test_killed_supervisor_takes_its_children_along_and_the_baseline_is_back(
    site: Site, noise: Callable[[], None]
) -> None:
    serve = site.serve()
    noise()
    pids = site.children()
    serve.kill()
    serve.wait()
    until(lambda: not [pid for pid in pids.values() if is_alive(pid)], "the end of the children")
    assert baseline(site)
    again = site.serve()  # what was left behind stands in nobody's way
    assert again.pid == state_dir.running_serve(str(site.state))


def test_ctrl_c_on_the_terminal_stops_in_order(site: Site, noise: Callable[[], None]) -> None:
    serve = site.serve()
    noise()
    pids = site.children()
    os.killpg(serve.pid, signal.SIGINT)
    os.killpg(serve.pid, signal.SIGINT)
    assert serve.wait(IN_TIME_S) == 0
    assert not [pid for pid in pids.values() if is_alive(pid)]
    assert baseline(site)
    assert "Traceback" not in site.log.read_text()


def test_weights_that_everybody_left_behind_are_set_by_the_restore_command(
    site: Site, noise: Callable[[], None]
) -> None:
    serve = site.serve()
    noise()
    serve.send_signal(signal.SIGSTOP)
    os.kill(frozen_lbengine(site), signal.SIGKILL)
    serve.kill()
    serve.wait()
    before = site.balancer.weight("host1")
    assert before < 100
    done = site.cli("restore", "--why", "everything was killed")
    assert (done.returncode, done.stdout) == (0, f"web: host1 {before} -> 100\n")
    assert baseline(site)
    assert "everything was killed" in site.cli("log").stdout
    assert site.cli("restore").stdout == "web: nothing to put back\n"


@pytest.mark.parametrize("nohup", [False, True])
def test_end_of_the_terminal_stops_in_order_unless_nohup(site: Site, nohup: bool) -> None:
    master, slave = pty.openpty()
    # These tests may run under nohup themselves.
    handling = ["nohup"] if nohup else ["env", "--default-signal=HUP"]
    site.program = [*handling, sys.executable, "-c", ON_TERMINAL, os.ttyname(slave), *site.program[1:]]
    serve = site.serve()
    os.close(slave)
    os.close(master)
    if nohup:
        with pytest.raises(subprocess.TimeoutExpired):
            serve.wait(1.0)
        serve.send_signal(signal.SIGTERM)
    assert serve.wait(IN_TIME_S) == 0
    assert f"stopping (SIG{'TERM' if nohup else 'HUP'}): lbengine first" in site.log.read_text()


# --- lbengine fails


def test_supervisor_sets_the_baseline_when_lbengine_hangs_at_the_end(site: Site, noise: Callable[[], None]) -> None:
    serve = site.serve()
    noise()
    frozen_lbengine(site)
    serve.send_signal(signal.SIGTERM)
    assert serve.wait(IN_TIME_S) == 0
    assert "lbengine (pid" in site.log.read_text()
    assert "did not end within 5 s: killing it" in site.log.read_text()
    assert baseline(site)
    assert [(change.target, change.after) for change in site.changes_by("serve")] == [("host1", 100)]


def test_supervisor_sets_the_baseline_when_lbengine_cannot_be_kept_running(
    site: Site, noise: Callable[[], None]
) -> None:
    site.serve()
    noise()
    pid = frozen_lbengine(site)
    site.broken.write_text("lbengine")
    os.kill(pid, signal.SIGKILL)
    until(lambda: baseline(site), "the baseline")
    assert [(change.target, change.after) for change in site.changes_by("serve")] == [("host1", 100)]
    printed = site.log.read_text()
    assert "lbengine runs again" in printed
    assert "lbengine could not be kept running for 1.5 s" in printed


def test_supervisor_sets_the_baseline_when_lbengine_hangs(site: Site, noise: Callable[[], None]) -> None:
    site.write(socket_timeout_s=3.0)
    site.serve()
    noise()
    pid = frozen_lbengine(site)
    until(lambda: not is_alive(pid), "the end of the lbengine that hangs")
    until(lambda: site.changes_by("serve"), "the return to the baseline")
    change = site.changes_by("serve")[0]
    assert (change.target, change.after, change.why) == ("host1", 100, "lbengine hung")
    until(lambda: site.children().get("lbengine", pid) != pid, "another lbengine")
    until(lambda: site.balancer.weight("host1") < 100, "its work")
    assert f"lbengine (pid {pid}) hangs: no progress for" in site.log.read_text()
    described = state_dir.read_serve(site.state)
    assert described is not None
    assert described["hangs"] == {name: int(name == "lbengine") for name in CHILDREN}
    assert described["starts"]["lbengine"] == 2


@needs_freezer
def test_lbengine_that_cannot_be_ended_costs_the_watchdog_and_no_weight(
    site: Site, noise: Callable[[], None], tmp_path: Path
) -> None:
    """The baseline is back all the same; systemd hears nothing until the process is gone."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        site.program = ["sh", "-c", 'WATCHDOG_PID=$$ exec "$@"', "sh", *site.program]
        site.environment |= {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}

        def hear(within_s: float = IN_TIME_S) -> bytes:
            """The next that is sent from now on."""
            manager.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    manager.recv(100)
            manager.settimeout(within_s)
            return manager.recv(100)

        site.write(socket_timeout_s=3.0)
        site.serve()
        noise()
        assert hear() == b"WATCHDOG=1"
        pid = site.children()["lbengine"]
        with frozen(pid):
            until(lambda: site.changes_by("serve"), "the return to the baseline")
            until(lambda: baseline(site), "the baseline")
            assert is_alive(pid)
            with pytest.raises(TimeoutError):
                hear(1.0)
        assert hear() == b"WATCHDOG=1"
        until(lambda: site.children().get("lbengine", pid) != pid, "another lbengine")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CHILDREN - {"lbengine"}))
def test_any_part_that_hangs_is_replaced(site: Site, name: str) -> None:
    site.serve()
    until(lambda: (state_dir.read_serve(site.state) or {})["works"][name], f"the first progress of {name}")
    pid = site.children()[name]
    os.kill(pid, signal.SIGSTOP)
    until(lambda: site.children().get(name, pid) != pid, f"another {name}")
    assert f"{name} (pid {pid}) hangs" in site.log.read_text()
    assert baseline(site)


def test_end_without_a_balancer_is_not_called_clean(site: Site, noise: Callable[[], None]) -> None:
    serve = site.serve()
    noise()
    frozen_lbengine(site)
    site.balancer.stop()
    serve.send_signal(signal.SIGTERM)
    assert serve.wait(IN_TIME_S) == 1
    assert "pool web: the baseline weights could not be set: " in site.log.read_text()


# --- other configurations


def test_observe_mode_touches_nothing(site: Site) -> None:
    site.write(mode="observe", web="")
    serve = site.serve()
    assert set(site.children()) == CHILDREN - {"web"}
    site.wait_for_cycles()
    assert site.status()["mode"] == "observe"
    serve.send_signal(signal.SIGTERM)
    assert serve.wait(IN_TIME_S) == 0
    assert baseline(site)


def test_own_nats_of_the_site_is_used_and_left_running(site: Site, tmp_path: Path) -> None:
    with subprocess.Popen(open_server(tmp_path, site.listen)) as own:
        try:
            nats_server.wait_until_it_answers(site.listen, tmp_path / "nats.log")
            site.write(bus=f'url = "nats://{site.listen}"', web="")
            serve = site.serve()
            assert "nats-server" not in site.children()
            site.wait_for_cycles()
            serve.send_signal(signal.SIGTERM)
            assert serve.wait(IN_TIME_S) == 0
            assert nats_server.answers(site.listen)
        finally:
            own.terminate()


# --- what is refused at the start


def test_taken_address_of_the_bus_is_a_clear_error_and_nothing_stays(site: Site) -> None:
    host, _, port = site.listen.partition(":")
    with socket.socket() as taken:
        taken.bind((host, int(port)))
        taken.listen()
        done = site.cli("serve")
    assert done.returncode == 1
    error = done.stderr.splitlines()[-1]
    assert error.startswith(f"error: the private nats-server cannot listen on {site.listen} (Address already in use)")
    assert "Traceback" not in done.stderr
    assert state_dir.read_serve(site.state) is None
    assert state_dir.running_serve(str(site.state)) is None


def test_state_dir_that_cannot_be_written_is_a_clear_error(site: Site) -> None:
    site.config.write_text(site.config.read_text().replace(str(site.state), "/proc/self"))
    done = site.cli("serve")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: state_dir /proc/self: cannot be written")


def test_wrong_configuration_is_a_clear_error(site: Site) -> None:
    site.config.write_text(site.config.read_text().replace("lease_s", "lese_s"))
    done = site.cli("serve")
    assert done.returncode == 1
    assert "unknown setting `lese_s` in lbengine" in done.stderr.splitlines()[-1]
