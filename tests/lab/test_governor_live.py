"""Policies on live services: the load, the events, what is set and seen, and once one of them in the lab."""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from slackwater.governor.types import Action, Configuration, HotEvent, Observation, whole
from slackwater_lab.cluster.cgroups import Cgroups, Hierarchy
from slackwater_lab.cluster.paths import LabError
from slackwater_lab.governor.live.commands import governor_policies
from slackwater_lab.governor.live.hot import HotEvents
from slackwater_lab.governor.live.load import KEYS, Answer, Client, LiveLoad, Memcached, key
from slackwater_lab.governor.live.machine import Place, ServingHost, waited_s
from slackwater_lab.governor.live.phase import Governing, Seen, within_percent
from slackwater_lab.governor.live.policies import LIVE, machine, policy_of
from slackwater_lab.governor.live.services import SERVICES
from slackwater_lab.governor.live.story import summary
from tests.support.real_lab import needs_lab, run_lab

WITHIN_S = 30.0


class Server(Client):
    """Answers each request when the test lets it."""

    def __init__(self) -> None:
        self.may: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.asked: queue.SimpleQueue[None] = queue.SimpleQueue()

    def ask(self) -> bool:
        self.asked.put(None)
        if not self.may.get(timeout=WITHIN_S):
            raise ConnectionError("refused")
        return True

    def close(self) -> None:
        self.may.put(False)


def test_in_an_open_loop_requests_are_due_while_none_is_answered() -> None:
    server = Server()
    with LiveLoad(lambda: server, connections=1, closed=False, seed=1) as load:
        load.run(200.0, 0.2)
        waiting = load.lost
        assert waiting > 1, "one is asked, the others wait for the connection"
        assert load.oldest_s() > 0.0
        for _ in range(waiting):
            server.may.put(True)
        load.finish(WITHIN_S)
        assert load.lost == 0
        assert load.oldest_s() == 0.0
    assert len(load.answers) == waiting
    assert [answer.due_s for answer in load.answers] == sorted(answer.due_s for answer in load.answers)
    assert all(answer.good for answer in load.answers)


def test_in_a_closed_loop_a_connection_waits_for_its_answer() -> None:
    server = Server()
    with LiveLoad(lambda: server, connections=1, closed=True, seed=1) as load:
        runs = threading.Thread(target=load.run, args=(float("inf"), 0.3))
        runs.start()
        server.asked.get(timeout=WITHIN_S)
        runs.join()
        assert server.asked.empty()
        assert load.lost == 1
        server.may.put(False)
        load.finish(WITHIN_S)
        assert [answer.good for answer in load.answers] == [False], "a lost connection is an error"


class Prompt(Client):
    """Answers at once."""

    def ask(self) -> bool:
        return True

    def close(self) -> None:
        pass


class FakeMemcached:
    """Knows `set` and `get`, and gives its answers in small pieces."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.values: dict[bytes, bytes] = {}
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        connection, _ = self.server.accept()
        with connection, connection.makefile("rwb", buffering=0) as talk:
            while line := talk.readline():
                word, *names = line.split()
                if word == b"set":
                    self.values[names[0]] = talk.readline().strip()
                    talk.write(b"STORED\r\n")
                    continue
                for name in names:
                    value = self.values[name]
                    talk.write(b"VALUE %s 0 %d\r\n%s\r\n" % (name, len(value), value))
                talk.write(b"END\r\n")


def test_a_memcached_is_filled_and_asked_for_all_keys() -> None:
    fake = FakeMemcached()
    client = Memcached(fake.server.getsockname())
    client.fill()
    assert sorted(fake.values) == [key(number) for number in range(KEYS)]
    assert client.ask()
    client.close()
    fake.server.close()
    with pytest.raises(OSError, match="refused"):
        client.ask()


@pytest.fixture
def events(tmp_path: Path) -> Iterator[tuple[HotEvents, Path]]:
    place = tmp_path / "socket"
    with HotEvents(place) as hot_events:
        yield hot_events, place
    assert not place.exists()


def next_events(events: HotEvents, count: int) -> list[HotEvent]:
    """Waits until so many came."""
    seen: list[HotEvent] = []
    done = threading.Event()
    timer = threading.Timer(WITHIN_S, done.set)
    timer.start()
    while len(seen) < count and not done.is_set():
        seen += events.drain()
        done.wait(0.01)
    timer.cancel()
    return seen


def test_a_core_is_in_the_hot_function_until_its_last_request_leaves(events: tuple[HotEvents, Path]) -> None:
    hot_events, place = events
    core = min(os.sched_getaffinity(0))
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        first.connect(str(place))
        first.sendall(b"begin search\n")
        assert [(event.core, event.entered) for event in next_events(hot_events, 1)] == [(core, True)]
        second.connect(str(place))
        second.sendall(b"begin search\nend search\n")
        second.sendall(b"begin search\nbegin rank\n")
        first.sendall(b"end search\n")
        # The end of a connection takes its request out of whatever it was in; then the other side closes too.
        for connection in (first, second):
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b""
    seen = hot_events.drain()
    assert (seen[-1].core, seen[-1].entered) == (core, False)


def place(root: Path) -> Place:
    for name in ("service", "batch"):
        (root / name).mkdir()
        for file in ("cpu.shares", "cpu.cfs_period_us", "cpu.cfs_quota_us", "cpuset.cpus"):
            (root / name / file).write_text("")
        (root / name / "cpuacct.usage").write_text("0")
    mine, other = (str(root / name / "cpuset.cpus") for name in ("service", "batch"))
    return Place("service", "batch", mine, other, processors=(4, 5), core_share=0.5, period_s=0.02)


def files(root: Path) -> tuple[str, str, str, str]:
    """Service's cores, batch job's cores, batch job's weight of 1024, service's quota in us."""
    return (
        (root / "service/cpuset.cpus").read_text(),
        (root / "batch/cpuset.cpus").read_text(),
        (root / "batch/cpu.shares").read_text(),
        (root / "service/cpu.cfs_quota_us").read_text(),
    )


def test_the_batch_job_has_the_cores_that_the_service_leaves(tmp_path: Path) -> None:
    host = ServingHost(Cgroups(Hierarchy(1, (tmp_path,))), place(tmp_path), 1000.0)
    host.set(whole(Configuration(2, 1000.0)))
    assert files(tmp_path) == ("4,5", "4,5", "10", "20000"), "two cores of half a processor's time, of 20 ms"
    host.set(Action((0,), (400.0,)))
    assert files(tmp_path) == ("4", "5", "1024", "4000")
    assert host.allowed_cores == pytest.approx(0.2)


def test_waits_of_all_threads_are_added(tmp_path: Path) -> None:
    for thread, waited_ns in ((7, 2_000_000_000), (8, 500_000_000)):
        task = tmp_path / f"7/task/{thread}"
        task.mkdir(parents=True)
        (task / "schedstat").write_text(f"9 {waited_ns} 3\n")
    assert waited_s([7, 99], tmp_path) == pytest.approx(2.5)


class Recorder:
    """A policy that takes one core away when it has seen an answer."""

    name, period_s = "recorder", 0.01

    def __init__(self) -> None:
        self.answered = threading.Event()
        self.done = threading.Event()

    def start(self) -> Action:
        return whole(machine().highest)

    def decide(self, seen: Observation) -> Action:
        if seen.p95_ms is not None:
            self.answered.set()
        if not self.answered.is_set():
            return self.start()
        self.done.set()
        return Action((0,), (machine().clocks_mhz[0],))


def test_a_policy_sees_answers_and_its_action_is_set(tmp_path: Path) -> None:
    hardware, policy = machine(), Recorder()
    host = ServingHost(Cgroups(Hierarchy(1, (tmp_path,))), place(tmp_path), hardware.max_mhz)
    host.set(whole(hardware.highest))
    with (
        LiveLoad(Prompt, connections=1, closed=True, seed=1) as load,
        Governing(policy, hardware, host, load, (os.getpid(),)) as governing,
    ):
        runs = threading.Thread(target=load.run, args=(100.0, WITHIN_S))
        runs.start()
        assert policy.done.wait(WITHIN_S)
    runs.join()
    assert files(tmp_path)[0] == "4"
    assert governing.states[hardware.clocks_mhz[0] / hardware.max_mhz] >= 1


def test_what_a_policy_fails_with_is_told(tmp_path: Path) -> None:
    hardware = machine()
    host = ServingHost(Cgroups(Hierarchy(1, (tmp_path,))), place(tmp_path), hardware.max_mhz)
    (tmp_path / "service/cpuset.cpus").unlink()
    (tmp_path / "service/cpuset.cpus").mkdir()
    load = LiveLoad(Server, connections=1, closed=True, seed=1)
    with pytest.raises(LabError, match="Is a directory"), Governing(Recorder(), hardware, host, load, ()):
        pass


def test_a_second_counts_by_when_its_requests_were_due() -> None:
    answers = [Answer(10.2, 0.01, True), Answer(10.9, 2.0, True), Answer(12.5, 0.02, True)]
    assert within_percent(answers, 10.0, 50.0) == 50.0
    assert within_percent([], 10.0, 50.0) is None


@pytest.mark.parametrize("name", LIVE)
def test_each_policy_begins_with_clocks_of_the_machine(name: str) -> None:
    hardware = machine()
    action = policy_of(name, hardware, 100.0).start()
    assert set(action.clocks_mhz) <= set(hardware.clocks_mhz)


def seen() -> Seen:
    return Seen(10, 1, 5.0, None, 90.0, 3.0, 0.5, 0.3, 1.0, 2.0, {"0.4": 1.0})


def row(number: int, policy: str, p95_ms: float) -> dict[str, object]:
    return {"round": number, "policy": policy, **msgspec.to_builtins(seen()), "p95_ms": p95_ms}


def test_rounds_are_summed_up_by_median_and_range() -> None:
    rows = [row(1, "static", 4.0), row(2, "static", 9.0), row(3, "static", 5.0), row(1, "pareto", 70.0)]
    figures = summary("static", rows)
    assert figures["p95_ms"] == [5.0, 4.0, 9.0]
    assert figures["p99_ms"] is None
    assert (figures["errors"], figures["requests"]) == (3, 30)


def test_hurry_up_needs_a_service_that_tells_of_its_hot_function() -> None:
    done = CliRunner().invoke(governor_policies, ["--service", "php", "--policy", "hurry-up"])
    assert done.exit_code == 2
    assert "php does not tell of its hot function, which hurry-up needs" in done.output
    assert "hurry-up" in SERVICES["search"].policies


@pytest.mark.lab
@pytest.mark.slow
@needs_lab
@pytest.mark.usefixtures("nothing_before_and_after")
@pytest.mark.parametrize(("service", "policy"), [("memcached-closed", "core-switch"), ("search", "hurry-up")])
def test_a_policy_runs_on_a_service_of_the_lab(service: str, policy: str) -> None:
    options = ("--service", service, "--policy", policy, "--rounds", "1", "--step-seconds", "3", "--json", "-")
    done = run_lab("governor-policies", *options, timeout_s=400)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    (played,) = result["rounds"]
    assert played["policy"] == policy
    assert played["requests"] > played["errors"]
    assert played["batch_cores"] > 0.0
    assert played["used_cores"] > 0.0
    if policy == "hurry-up":
        assert len(played["states"]) > 1, "events of the search came"
