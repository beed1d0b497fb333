"""The supervisor with real children, a real nats-server and a real HAProxy."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slackwater.bus import nats_server
from slackwater.bus.bus import Bus
from slackwater.journal.journal import Journal, journal_path
from slackwater.messages import Verdict
from slackwater.supervise import state_dir
from slackwater.supervise.serve import stop_signals
from tests.support.real_haproxy import RealHAProxy, backend, haproxy, needs_haproxy
from tests.support.real_processes import free_address, is_alive

pytestmark = needs_haproxy
IN_TIME_S = 60.0
HOSTS = ("host1", "host2", "host3")
CHILDREN = {"nats-server", "journal", "detector", "lbengine", "web"}


def until(condition: Callable[[], Any], what: str = "it") -> Any:
    """Waits for the first true value of `condition`."""
    deadline = time.monotonic() + IN_TIME_S
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen within {IN_TIME_S:g} s"
        time.sleep(0.02)
    return value


def weights(balancer: RealHAProxy) -> dict[str, int]:
    return {host: balancer.weight(host) for host in HOSTS}


class Site:
    """A configuration in a folder of its own, and what is started with it."""

    def __init__(self, folder: Path, balancer: RealHAProxy) -> None:
        self.state = folder / "state"
        self.config = folder / "controller.toml"
        self.listen = free_address()
        self.balancer = balancer
        self.log = folder / "serve.log"
        self.program = [sys.executable, "-m", "slackwater.cli.main"]
        self.environment = dict(os.environ)
        self._running: list[subprocess.Popen[bytes]] = []
        self.write()

    def write(self, *, mode: str = "act", bus: str = "", web: str | None = None) -> None:
        bus = bus or f'listen = "{self.listen}"'
        web = free_address() if web is None else web
        self.config.write_text(
            f'state_dir = "{self.state}"\n[bus]\n{bus}\n[web]\nlisten = "{web}"\n'
            "[lbengine]\nlease_s = 1.5\nsocket_timeout_s = 20\n"
            f'[[pool]]\nname = "web"\nbackend = "web"\nsocket = "{self.balancer.socket}"\nmode = "{mode}"\n'
        )

    def serve(self) -> subprocess.Popen[bytes]:
        """Starts `serve` and waits until all its children run."""
        command = [*self.program, "serve", "--config", str(self.config)]
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stderr=log, start_new_session=True, env=self.environment
            )
        self._running.append(process)
        until(lambda: process.poll() is not None or self._describes(process.pid), "serve.json")
        assert process.poll() is None, self.log.read_text()
        return process

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*self.program, *arguments, "--config", str(self.config)]
        return subprocess.run(command, capture_output=True, text=True, timeout=IN_TIME_S, env=self.environment)

    def children(self) -> dict[str, int]:
        """Pids by name of those that run now."""
        found = (state_dir.read_serve(self.state) or {}).get("children", {})
        return {name: pid for name, pid in found.items() if pid is not None}

    def _describes(self, pid: int) -> bool:
        return (state_dir.read_serve(self.state) or {}).get("pid") == pid

    def status(self) -> Any:
        done = self.cli("status", "--json")
        return json.loads(done.stdout)["pools"][0] if done.returncode == 0 else None

    def wait_for_cycles(self) -> None:
        until(lambda: (status := self.status()) and not status["stale"], "a cycle in the journal")

    def changes_by(self, who: str) -> list[Any]:
        with Journal.open(journal_path(self.state), read_only=True) as journal:
            return [change for change in journal.changes() if change.by == who]

    def clean(self) -> None:
        pids = list(self.children().values())
        for process in self._running:
            process.kill()
            process.wait()
        for pid in pids:
            until(lambda pid=pid: not is_alive(pid), "the end of the children")  # type: ignore[misc]


@pytest.fixture
def balancer() -> Iterator[RealHAProxy]:
    """A HAProxy with three servers of weight 100 that nobody asks."""
    with haproxy(backend([1, 2, 3])) as running:
        yield running


@pytest.fixture
def site(tmp_path: Path, balancer: RealHAProxy) -> Iterator[Site]:
    site = Site(tmp_path, balancer)
    yield site
    site.clean()


@pytest.fixture
def noise(site: Site) -> Iterator[Callable[[], None]]:
    """Call it to say on the bus, five times a second from then on, that host1 has a noisy neighbour."""
    done = threading.Event()
    threads: list[threading.Thread] = []

    def verdict(node: str, since_unix_s: float) -> Verdict:
        noisy = node == "host1"
        return Verdict(
            v=1,
            node=node,
            pool="web",
            time_unix_s=time.time(),
            state="interference" if noisy else "calm",
            since_unix_s=since_unix_s,
            severity=0.9 if noisy else 0.0,
            path=["said by the test"],
            model="test",
            capacity_rps=30.0 if noisy else 300.0,
            rps=80.0,
            rt_mean_ms=60.0 if noisy else 2.0,
        )

    async def tell() -> None:
        bus = await Bus.connect(f"nats://{site.listen}", "test", wait_s=IN_TIME_S)
        since_unix_s = time.time()
        while not done.is_set():
            for host in HOSTS:
                await bus.publish(verdict(host, since_unix_s))
            await asyncio.sleep(0.2)
        await bus.close()

    def start() -> None:
        threads.append(threading.Thread(target=asyncio.run, args=(tell(),)))
        threads[-1].start()
        until(lambda: site.balancer.weight("host1") < 100, "a lower weight of host1")

    yield start
    done.set()
    for thread in threads:
        thread.join()


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

    until(lambda: "said by the test" in site.cli("log").stdout, "the Change in the log")
    paused = until(lambda: (done := site.cli("pause", "--why", "a test")).returncode == 0 and done, "the pause")
    assert "(a test)" in paused.stdout
    until(lambda: baseline(site), "the baseline in the pause")
    until(lambda: site.cli("resume").returncode == 0, "the end of the pause")
    until(lambda: not baseline(site), "a lower weight after the pause")

    restored = site.cli("restore")
    assert restored.returncode == 0
    assert "warning: `slackwater serve` runs" in restored.stderr

    pids = list(site.children().values())
    serve.send_signal(signal.SIGTERM)
    assert serve.wait(IN_TIME_S) == 0
    assert not [pid for pid in pids if is_alive(pid)]
    assert baseline(site)
    assert state_dir.read_serve(site.state) is None
    assert state_dir.running_serve(str(site.state)) is None
    log = site.log.read_text()
    assert log.index("stopping (SIGTERM): lbengine first") < log.index("stopped")
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


def test_weights_that_everybody_left_behind_are_restored_by_hand(site: Site, noise: Callable[[], None]) -> None:
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


def test_nohup_is_heeded() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert stop_signals() == {signal.SIGTERM, signal.SIGINT}
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        assert stop_signals() == {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    finally:
        signal.signal(signal.SIGHUP, before)


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
    site.config.write_text("")  # with which no other one begins
    os.kill(pid, signal.SIGKILL)
    until(lambda: baseline(site), "the baseline")
    assert [(change.target, change.after) for change in site.changes_by("serve")] == [("host1", 100)]
    said = site.log.read_text()
    assert "lbengine runs again" in said
    assert "lbengine could not be kept running for 1.5 s" in said


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
    with subprocess.Popen(nats_server.command(tmp_path, site.listen)) as own:
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


def test_missing_socket_is_a_clear_error(site: Site) -> None:
    site.config.write_text(site.config.read_text().replace("admin.sock", "other.sock"))
    done = site.cli("serve")
    assert done.returncode == 1
    assert "other.sock: No such file or directory" in done.stderr.splitlines()[-1]
    assert done.stderr.splitlines()[-1].startswith("error: ")


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
