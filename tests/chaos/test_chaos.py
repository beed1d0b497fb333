"""Chaos without a lab: the schedule, the invariants, frames, links, units and clocks."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.core import messages
from slackwater.core.config import BusSettings
from slackwater_lab.cluster.balancer import free_port
from slackwater_lab.cluster.traces import mounts_below
from tests.chaos import clock as clocks
from tests.chaos import starts
from tests.chaos.clock import Clock
from tests.chaos.commands import kept_logs
from tests.chaos.faults import TableExcuses, table
from tests.chaos.frames import Disorder, Frames
from tests.chaos.hostile import PER_S, Hostile
from tests.chaos.invariants import Invariant, invariants
from tests.chaos.link import Link, State
from tests.chaos.look import Failed, Look, Recorded, Usage
from tests.chaos.run import Judge
from tests.chaos.schedule import CALM_EVERY_S, CALM_S, Injection, calm_windows, clash, schedule
from tests.chaos.site import CONTROLLER, Site
from tests.chaos.story import Broken, story
from tests.chaos.unit import RESTART_S, Unit

HOSTS = ["host1", "host2", "host3"]
FAULTS = table(HOSTS)
KINDS = {name: fault.kind for name, fault in FAULTS.items()}
EXCUSES = TableExcuses(FAULTS)
BASE = dict.fromkeys(HOSTS, 100)
LOWERED = BASE | {"host1": 10}


def eventually(description: str, happened: Callable[[], bool], within_s: float = 60.0) -> None:
    end_s = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < end_s, f"not within {within_s:g} s: {description}"
        time.sleep(0.02)


# --- the schedule


@given(st.integers(), st.floats(60, 7200))
def test_a_seed_gives_the_same_faults_within_the_time_and_none_in_the_calm(seed: int, length_s: float) -> None:
    plan = schedule(seed, length_s, KINDS)
    assert plan == schedule(seed, length_s, KINDS)
    assert [injection.at_s for injection in plan] == sorted(injection.at_s for injection in plan)
    for injection in plan:
        assert injection.end_s <= length_s + 0.1
        assert injection.target in KINDS[injection.kind].targets
        assert not any(
            begin_s < injection.end_s - 0.1 and injection.at_s < end_s for begin_s, end_s in calm_windows(length_s)
        )


@given(st.integers())
def test_no_fault_undoes_another_one_that_is_still_at_work(seed: int) -> None:
    for before, after in itertools.combinations(schedule(seed, 1800, KINDS), 2):
        assert not clash(after, KINDS[after.kind], before, KINDS[before.kind])


def test_hours_of_chaos_have_every_fault_and_other_seeds_have_others() -> None:
    plan = schedule(1, 4 * 3600, KINDS)
    assert {injection.kind for injection in plan} == set(KINDS)
    assert plan != schedule(2, 4 * 3600, KINDS)
    assert {injection.target for injection in plan if injection.kind == "kill"} == set(KINDS["kill"].targets)
    windows = calm_windows(4 * 3600)
    assert len(windows) == 4 * 3600 // (CALM_EVERY_S + CALM_S)


# --- the invariants


def judge() -> Judge:
    rules = invariants(EXCUSES, 32_000_000, [(120.0, 150.0)], frozenset(HOSTS), frozenset({"lbengine", "serve"}))
    return Judge(rules)


def at(at_s: float, **fields: object) -> Look:
    look = Look(at_s, weights=BASE, cycle_s=at_s, verdict_s=at_s, judged=frozenset(HOSTS))
    return dataclasses.replace(look, **fields)  # type: ignore[arg-type]


def fault(kind: str, target: str = "host1", at_s: float = 0.0, seconds: float = 1000.0) -> Injection:
    return Injection(at_s, kind, target, seconds)


def broken(*looks: Look) -> list[str]:
    judging = judge()
    for look in looks:
        judging.judge(look)
    return [breach.invariant for breach in judging.broken]


def moved(by: str | None, **more: object) -> list[Look]:
    recorded = [Recorded(2.0, "host1", 10, by)] if by else []
    later = [at(second, weights=LOWERED, **more) for second in (10.0, 30.0)]
    return [at(1.0, **more), at(2.0, weights=LOWERED, recorded=recorded, **more), *later]


FAILED = [Failed(10.0, 15.0, 3, "status 503")]
CASES: list[tuple[str, list[Look], list[str]]] = [
    ("all is well", [at(second) for second in range(0, 160, 5)], []),
    ("a request fails and nobody was hurt", [at(15.0, failed=FAILED)], ["requests"]),
    ("a part of ours was killed: no excuse", [at(15.0, failed=FAILED, active=[fault("kill")])], ["requests"]),
    ("the web server was killed", [at(15.0, failed=FAILED, active=[fault("kill web server")])], []),
    (
        "that was long before",
        [at(1.0, active=[Injection(1.0, "reboot", "host1", 2.0)]), at(99.0, failed=[Failed(90, 95, 1, "")])],
        ["requests"],
    ),
    ("all weights are 0", [at(1.0, weights=dict.fromkeys(HOSTS, 0))], ["bounds"]),
    ("a weight above the baseline", [at(1.0, weights=BASE | {"host2": 101})], ["bounds"]),
    (
        "nobody decides",
        [at(1.0, weights=LOWERED), at(20.0, weights=LOWERED, cycle_s=1.0, verdict_s=20.0)],
        ["baseline"],
    ),
    (
        "there are no Verdicts",
        [at(1.0, weights=LOWERED), at(20.0, weights=LOWERED, cycle_s=20.0, verdict_s=1.0)],
        ["baseline"],
    ),
    (
        "it is drained for a reload, which has a time of its own",
        [at(20.0, weights=LOWERED, cycle_s=1.0, drained_until_s={"host1": 50.0})],
        [],
    ),
    (
        "and that time is over",
        [at(60.0, weights=LOWERED, cycle_s=1.0, drained_until_s={"host1": 50.0})],
        ["baseline"],
    ),
    (
        "the disk is full: lbengine cannot be heard",
        [at(20.0, weights=LOWERED, cycle_s=1.0, active=[fault("full disk", "lb1")])],
        [],
    ),
    (
        "but Verdicts can",
        [at(20.0, weights=LOWERED, verdict_s=1.0, active=[fault("full disk", "lb1")])],
        ["baseline"],
    ),
    ("it is within the time", [at(1.0, weights=LOWERED), at(12.0, weights=LOWERED, cycle_s=1.0)], []),
    (
        "HAProxy hangs",
        [at(20.0, weights=LOWERED, cycle_s=1.0, active=[fault("hang HAProxy", "haproxy")])],
        [],
    ),
    (
        "a knob without a lease",
        [at(60.0, knobs_set=frozenset({"host1"}), leases_until_s={"host1": 20.0})],
        ["knobs"],
    ),
    ("with one", [at(60.0, knobs_set=frozenset({"host1"}), leases_until_s={"host1": 40.0})], []),
    (
        "its host is off",
        [at(60.0, knobs_set=frozenset({"host1"}), active=[fault("reboot")])],
        [],
    ),
    ("memory", [at(1.0, usage={"monitor of host1": Usage(200_000_000, 1, 1)})], ["usage"]),
    ("descriptors", [at(1.0, usage={"controller: lbengine": Usage(1, 5000, 1)})], ["usage"]),
    ("threads", [at(1.0, usage={"controller: nats-server": Usage(1, 1, 500)})], ["usage"]),
    ("the journal", [at(1.0, journal_bytes=33_000_000)], ["usage"]),
    ("a move without a Change", moved(None), ["changes"]),
    ("a move with one", moved("lbengine"), []),
    ("somebody else's", moved("mallory"), ["changes"]),
    ("the disk is full", moved(None, active=[fault("full disk", "lb1")]), []),
    (
        "HAProxy forgot by a reload",
        [
            *moved("lbengine"),
            *(at(second, active=[fault("reload HAProxy", "haproxy", 29.0)]) for second in (31.0, 60.0)),
        ],
        [],
    ),
    (
        "it does not come right in the calm",
        [at(float(second), judged=frozenset(HOSTS[:2])) for second in (121, 135, 151)],
        ["recovery"],
    ),
    (
        "it is drained for a reload then",
        [
            at(s, weights=LOWERED, cycle_s=s, verdict_s=s, drained_until_s={"host1": 170.0})
            for s in (121.0, 149.0, 151.0)
        ],
        [],
    ),
    ("it does at its end", [at(121.0, judged=frozenset()), at(149.0), at(151.0, judged=frozenset())], []),
]


@pytest.mark.parametrize(("looks", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_invariants(looks: list[Look], expected: list[str]) -> None:
    assert broken(*looks) == expected


def test_every_invariant_has_a_case_in_which_it_breaks() -> None:
    rules: list[Invariant] = invariants(EXCUSES, 1, [], frozenset(), frozenset())
    assert {rule.name for rule in rules} == {name for _, _, expected in CASES for name in expected}


def test_the_story_has_what_was_injected_before_and_how_to_have_it_again() -> None:
    done = [
        fault("kill", "lbengine", 5.0, 0.0),
        fault("cut", "host2", 300.0, 0.0),
        fault("reboot", "host1", 400.0, 5.0),
    ]
    text = story(7, done, [Broken(310.0, "baseline", "host1 10")], "make chaos SEED=7")
    assert "cut host2" in text
    assert "BROKEN baseline: host1 10" in text
    assert "kill web" not in text
    assert "reboot" not in text
    assert text.endswith("again: make chaos SEED=7")


# --- messages on the bus

PUB = b"PUB slackwater.sample.web.host1 5\r\nhello\r\n"
HPUB = b"HPUB slackwater.order.web.host1 12 17\r\nNATS/1.0\r\n\r\nhello\r\n"
MSG = b"MSG slackwater.verdict.web.host1 7 5\r\n\r\n+OK\r\n"
OTHERS = [b"PING\r\n", b"SUB slackwater.order.> 1\r\n", b"PUB $KV.lease.web 2\r\nab\r\n"]


@given(st.lists(st.sampled_from([PUB, HPUB, MSG, *OTHERS])), st.data())
def test_frames_are_whole_however_the_stream_is_cut(sent: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(sent)
    frames, received, begin = Frames(), [], 0
    while begin < len(stream):
        size = data.draw(st.integers(1, len(stream) - begin))
        received += list(frames.feed(stream[begin : begin + size]))
        begin += size
    assert received == sent


@given(st.lists(st.sampled_from([PUB, *OTHERS]), min_size=1), st.integers())
def test_disorder_touches_messages_alone(sent: list[bytes], seed: int) -> None:
    disorder = Disorder(1.0, Random(seed))
    passed = list(Frames().feed(b"".join(disorder.through(frame) for frame in sent)))
    assert [frame for frame in passed if frame != PUB] == [frame for frame in sent if frame != PUB]


def test_disorder_loses_doubles_and_swaps() -> None:
    disorder = Disorder(0.5, Random(1))
    sent = [b"PUB slackwater.sample.web.n 4\r\n%04d\r\n" % number for number in range(400)]
    passed = [frame.split(b"\r\n")[1] for piece in sent for frame in Frames().feed(disorder.through(piece))]
    assert len(set(passed)) < 400
    assert len(passed) > len(set(passed))
    first_seen = list(dict.fromkeys(passed))
    assert first_seen != sorted(first_seen)


@pytest.fixture
def link() -> Iterator[tuple[Link, socket.socket, socket.socket]]:
    """A link, a client's connection to it and what the bus has at the other end."""
    with socket.create_server(("127.0.0.1", 0)) as bus:
        between = Link("host1", ("127.0.0.1", free_port(0)), ("127.0.0.1", bus.getsockname()[1]), seed=1)
        between.start()
        try:
            with socket.create_connection(between.listen, 20.0) as client:
                accepted, _ = bus.accept()
                with accepted:
                    accepted.settimeout(20.0)
                    yield between, client, accepted
        finally:
            between.close()


def test_a_partition_holds_one_direction_until_it_is_over(link: tuple[Link, socket.socket, socket.socket]) -> None:
    between, client, bus = link
    client.sendall(b"PING\r\n")
    assert bus.recv(100) == b"PING\r\n"
    between.state["to_bus"] = State(stalled=True)
    client.sendall(b"PONG\r\n")
    bus.sendall(b"+OK\r\n")
    assert client.recv(100) == b"+OK\r\n"
    bus.settimeout(0.3)
    with pytest.raises(TimeoutError):
        bus.recv(100)
    bus.settimeout(20.0)
    between.restore()
    assert bus.recv(100) == b"PONG\r\n"


def test_a_cut_ends_both_connections(link: tuple[Link, socket.socket, socket.socket]) -> None:
    between, client, bus = link
    between.cut()
    for end in (client, bus):
        with contextlib.suppress(ConnectionResetError):
            assert end.recv(100) == b""


# --- units and clocks


@pytest.fixture
def unit(tmp_path: Path) -> Iterator[Unit]:
    started = Unit("part", ["sleep", "1000"], tmp_path, after=["touch", str(tmp_path / "after")])
    over = threading.Event()

    def tend() -> None:
        while not over.wait(0.02):
            started.tend()

    thread = threading.Thread(target=tend, daemon=True)
    thread.start()
    eventually("the unit runs", lambda: started.pid is not None)
    yield started
    over.set()
    thread.join()
    started.close()


def test_a_unit_that_ends_is_cleaned_up_after_and_started_again(unit: Unit, tmp_path: Path) -> None:
    before = unit.pid
    begin_s = time.monotonic()
    unit.send(signal.SIGKILL)
    eventually("it runs again", lambda: unit.pid not in (None, before))
    assert (tmp_path / "after").exists()
    assert time.monotonic() - begin_s >= RESTART_S


def test_a_unit_that_is_not_wanted_stays_down(unit: Unit) -> None:
    unit.wanted = False
    unit.send(signal.SIGTERM)
    eventually("it has ended", lambda: unit.restarts == 1)
    assert unit.pid is None
    unit.up()
    eventually("it runs again", lambda: unit.pid is not None)


def content(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text() if path.is_file() else "" for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("way", starts.WAYS)
def test_what_keeps_a_controller_from_starting_is_undone(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("bus/nodes", "web host1\n"), ("serve.lock", ""), ("jetstream/data", "x"), ("c.toml", "x = 1")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    address = ("127.0.0.1", free_port(0))
    for name, value in (("STATE_DIR", tmp_path), ("CONTROLLER_FILE", tmp_path / "c.toml"), ("BUS", address)):
        monkeypatch.setattr(starts, name, value)
    monkeypatch.setitem(starts.WAYS, "bus folder", lambda: starts.no_folder("bus"))
    before = content(tmp_path)
    undo = starts.WAYS[way]()
    if way == "port":
        with pytest.raises(OSError, match="in use"), socket.create_server(address):
            pass
    else:
        assert content(tmp_path) != before
    undo()
    assert content(tmp_path) == before


def test_a_killed_controller_starts_again_without_the_units_last_command(unit: Unit, tmp_path: Path) -> None:
    site, before, after = SimpleNamespace(units={CONTROLLER: unit}), unit.pid, unit.after
    down: list[int | None] = []

    def meanwhile() -> starts.Undo:
        down.append(unit.pid)
        return lambda: down.append(0)

    undo = starts.kill_controller(cast(Site, site), meanwhile)
    eventually("it runs again", lambda: unit.pid not in (None, before))
    assert not (tmp_path / "after").exists()
    undo()
    assert down == [None, 0]
    assert unit.after == after


def test_a_clock_steps_for_running_programs_and_for_nobody_else(tmp_path: Path) -> None:
    clock = Clock(tmp_path / "clock", clocks.build(tmp_path))
    ask = "import sys, time\nfor _ in sys.stdin: print(time.time(), time.monotonic(), flush=True)"
    process = subprocess.Popen(
        [sys.executable, "-c", ask],
        env={**os.environ, **clock.env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        for step_s in (0.0, 365 * 86_400.0, -86_400.5):
            clock.step_to(step_s)
            process.stdin.write("\n")
            process.stdin.flush()
            wall_s, monotonic_s = map(float, process.stdout.readline().split())
            assert wall_s - time.time() == pytest.approx(step_s, abs=5.0)
            assert monotonic_s == pytest.approx(time.monotonic(), abs=5.0)
        process.stdin.close()


@pytest.mark.parametrize("attack", list(PER_S))
def test_what_a_hostile_node_says_is_valid(attack: str) -> None:
    nowhere = BusSettings("nats://nowhere:1")
    hostile = Hostile(nowhere, nowhere, "host1", attack, seed=1)
    for _ in range(50):
        message = hostile.message()
        kind = type(message).__name__.lower()
        assert type(messages.decode(kind, messages.encode(message))) is type(message)


def test_logs_outlive_the_lab(tmp_path: Path) -> None:
    (tmp_path / "lb1").mkdir()
    (tmp_path / "lb1/controller.log").write_text("words")
    kept = kept_logs(tmp_path)
    try:
        assert [(log.name, log.read_text()) for log in kept.iterdir()] == [("lb1-controller.log", "words")]
    finally:
        shutil.rmtree(kept)


def test_mounts_within_the_lab_are_found_the_innermost_first() -> None:
    mounts = "\n".join(f"tmpfs {place} tmpfs rw 0 0" for place in ("/", "/var/lib/slackwater-lab/a", "/var/lib/x"))
    assert mounts_below(mounts + "\ntmpfs /var/lib/slackwater-lab/a/b tmpfs rw 0 0") == [
        "/var/lib/slackwater-lab/a/b",
        "/var/lib/slackwater-lab/a",
    ]
