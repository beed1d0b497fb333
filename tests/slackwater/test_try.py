"""`slackwater try`: a recorded cluster through the real parts, without root, configuration or cluster."""

from __future__ import annotations

import html
import http.client
import json
import lzma
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import pytest

from slackwater.controller.playback.pool import RecordedBalancer
from slackwater.detector.recordings import compact
from slackwater.detector.recordings.recording import RecordingError
from slackwater.lbengine.balancer import BalancerError
from tests.support.paths import ROOT
from tests.support.real_processes import free_port

IN_TIME_S = 120.0
FAST = ("--speed", "1000")
MOST_BYTES = 1_000_000


def command(*words: str) -> list[str]:
    """Without root's powers, whoever runs the tests; it heeds SIGHUP, also under nohup."""
    program = ["env", "--default-signal=HUP", sys.executable, "-m", "slackwater.controller.cli.main", "try", *words]
    if os.geteuid() != 0:
        return program
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("needs setpriv to run without root's capabilities")
    return [setpriv, "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", *program]


def environment(folder: Path) -> dict[str, str]:
    """Temporary files go to `folder`; no configuration is there."""
    return os.environ | {"TMPDIR": str(folder), "SLACKWATER_CONFIG": str(folder / "no-such.toml")}


def events(*words: str, folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run(
        command("--no-page", "--json", *FAST, *words),
        capture_output=True,
        text=True,
        timeout=IN_TIME_S,
        cwd=ROOT,
        env=environment(folder),
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return events(folder=tmp_path_factory.mktemp("played"))


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def run(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
            env=environment(tmp_path),
        )  # fmt: skip
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def lines_until(output: IO[str], text: str) -> list[str]:
    """The lines up to the first with this text; waits for them."""
    lines = []
    for line in output:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"it ended without {text!r}: {lines}")


def get(url: str, path: str) -> tuple[int, str]:
    address = urlsplit(url)
    assert address.hostname is not None
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=IN_TIME_S)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_the_page_s_address_comes_first_and_the_page_shows_what_was_told(start: Start, tmp_path: Path) -> None:
    process = start("--port", str(free_port()), "--once", *FAST)
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first.startswith("The page: http://127.0.0.1:")
    url = first.split()[2]
    assert get(url, "/")[0] == 200, "it answers as soon as it is announced"
    printed = "".join(lines_until(process.stdout, "The page stays"))
    assert "This is a recording" in printed
    assert "AMD EPYC, 2 cores" in printed, "it says of what machine"
    assert "`forks` began beside host2: many short-lived processes" in printed, "and what was noisy"
    assert "host2: interference (cpu)\n            because a program that wants a CPU waits " in printed
    assert "would have been done: weight of host2: 100 → " in printed
    assert "            because interference: a program that wants a CPU waits " in printed
    assert "docs/operations/install.md" in printed.partition("Next:")[2]
    status, health = get(url, "/healthz")
    assert status == 200, health
    status, page = get(url, "/")
    assert status == 200
    sentence = "A recording of 50 s plays 1000 times as fast as it happened, once; the page stays until Ctrl-C."
    assert sentence in printed
    assert f"{sentence} Times are the recording's, and nothing can be changed." in html.unescape(page)
    assert "Nobody can log in to a recording" in get(url, "/login")[1]
    for path in ("/", "/pools/web", "/week", "/changes"):
        status, shown = get(url, path)
        assert status == 200, path
        assert [word for word in ("Pause everything", "Log in", "mode act --pool") if word in shown] == [], path
    assert "A recording has no file of settings." in get(url, "/settings")[1]
    assert "would have been" in page
    status, changes = get(url, "/api/v1/pools/web/changes")
    assert {(change["what"], change["applied"]) for change in json.loads(changes)["changes"]} == {("weight", False)}
    assert len(json.loads(get(url, "/api/v1/pools/web/episodes")[1])["episodes"]) == 5
    process.send_signal(signal.SIGINT)
    output, problems = process.communicate(timeout=IN_TIME_S)
    assert (process.returncode, problems) == (0, "")
    assert output.endswith("Ended; nothing is left behind.\n")
    assert list(tmp_path.iterdir()) == []


def test_other_commands_show_it_too_in_plain_words(start: Start) -> None:
    process = start("--port", str(free_port()), "--once", *FAST)
    assert process.stdout is not None
    printed = "".join(lines_until(process.stdout, "The page stays"))
    told = re.search(r"In another terminal: slackwater (status --url http://127.0.0.1:[0-9]+) ", printed)
    assert told is not None
    status, *at = told.group(1).split()
    for words in ([status], ["log", "--since", "1m"], ["why", "host1"], ["week"]):
        done = subprocess.run([*command()[:-1], *words, *at], capture_output=True, text=True, cwd=ROOT)
        assert (done.returncode, done.stderr) == (0, ""), words
        assert "host1" in done.stdout
    for jargon in ("canary", "run delay", "evidence", "felt cause", "lbengine", "law ", "Sample"):
        assert jargon not in printed
    process.send_signal(signal.SIGINT)
    assert process.wait(IN_TIME_S) == 0


def test_it_plays_as_fast_as_it_happened_again_and_again_and_says_so(start: Start) -> None:
    process = start("--port", str(free_port()))
    assert process.stdout is not None
    printed = "".join(lines_until(process.stdout, "This is a recording"))
    assert "A recording of 50 s plays as fast as it happened, again and again until Ctrl-C.\n" in printed
    process.send_signal(signal.SIGINT)
    assert process.wait(IN_TIME_S) == 0


def test_each_round_is_as_the_first_and_the_page_goes_on(start: Start, tmp_path: Path) -> None:
    process = start("--json", "--port", str(free_port()), *FAST)
    assert process.stdout is not None
    rounds: list[list[dict[str, Any]]] = [[]]
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "page":
            url = event["url"]
        if event["event"] == "again":
            assert event["round"] == len(rounds) + 1
            rounds.append([])
        if len(rounds) == 3:
            break
        rounds[-1].append(event)
    began = [
        [(event["event"], event.get("at_s")) for event in events if event["event"] in ("noise", "episode")]
        for events in rounds
    ]
    assert began[0] == began[1]
    assert len(began[0]) == 15, "five noises begin and end, each with an episode"
    assert not {"recording", "end", "next", "page"} & {event["event"] for event in rounds[1]}
    assert get(url, "/healthz")[0] == 200
    assert len(json.loads(get(url, "/api/v1/pools/web/episodes")[1])["episodes"]) >= 10
    process.send_signal(signal.SIGTERM)
    for _ in process.stdout:
        pass
    assert process.wait(IN_TIME_S) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_it_plays_ends_it_and_removes_the_folder(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    process = start("--no-page", "--speed", "0.1")
    assert process.stdout is not None
    lines_until(process.stdout, "This is a recording")
    assert len(list(tmp_path.iterdir())) == 1
    process.send_signal(number)
    output, problems = process.communicate(timeout=IN_TIME_S)
    assert (process.returncode, problems) == (0, "")
    assert output.endswith("Ended; nothing is left behind.\n")
    assert list(tmp_path.iterdir()) == []


def test_each_noise_has_an_episode_and_a_would_be_change_with_its_reason(played: list[dict[str, Any]]) -> None:
    assert [event["event"] for event in played[:2]] == ["plays", "recording"], "the first, as there is no page"
    assert [event["event"] for event in played[-2:]] == ["end", "next"]
    noises = [event for event in played if event["event"] == "noise" and event["begins"]]
    assert [(noise["node"], noise["kind"]) for noise in noises] == [
        ("host2", "forks"), ("host1", "cpu"), ("host1", "disk"), ("host3", "cpu"), ("host3", "llcprobe"),
    ]  # fmt: skip
    begun = [event for event in played if event["event"] == "episode"]
    assert [event["node"] for event in begun] == [event["node"] for event in noises]
    delays_s = [episode["at_s"] - noise["at_s"] for noise, episode in zip(noises, begun, strict=True)]
    assert played[-2]["delay_s"] == pytest.approx(statistics.median(delays_s), abs=1e-6)
    for noise, episode in zip(noises, begun, strict=True):
        assert episode["state"] == "interference"
        assert noise["at_s"] < episode["at_s"] < noise["at_s"] + 2.0
        assert episode["because"]
    changes = [event["change"] for event in played if event["event"] == "would_change"]
    assert len(changes) == played[-2]["changes"]
    assert not any(change["applied"] for change in changes), "in observe mode"
    lowered = [change for change in changes if change["after"] < change["before"]]
    assert {change["target"] for change in lowered} == {"host1", "host2", "host3"}
    assert all(change["why"].startswith("interference: ") and change["by"] == "lbengine" for change in lowered)
    last = {change["target"]: change["after"] for change in changes}
    assert last == dict.fromkeys(("host1", "host2", "host3"), 100), "each would be back at its baseline"
    assert (played[-2]["found"], played[-2]["noises"], played[-2]["false_episodes"]) == (5, 5, 0)


def test_episodes_cost_users_something(played: list[dict[str, Any]]) -> None:
    ends = [event for event in played if event["event"] == "episode_end"]
    assert len(ends) == 5
    assert all(episode["p95_during_ms"] > 5 * episode["p95_before_ms"] > 0 for episode in ends)


def test_it_says_the_same_each_time_at_any_speed(played: list[dict[str, Any]], tmp_path: Path) -> None:
    def without_ids(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        events = [event for event in events if event["event"] != "plays"]
        return [event | {"change": event["change"] | {"id": ""}} if "change" in event else event for event in events]

    assert without_ids(events("--speed", "30", folder=tmp_path)) == without_ids(played)


def test_a_port_that_is_taken_is_one_line(start: Start) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = start("--port", str(taken.getsockname()[1]))
        output, problems = process.communicate(timeout=IN_TIME_S)
    assert (process.returncode, output) == (1, "")
    assert problems.startswith("error: the page cannot listen on 127.0.0.1:")
    assert problems.count("\n") == 1


def test_the_help_has_an_example() -> None:
    done = subprocess.run(command("--help"), capture_output=True, text=True, timeout=IN_TIME_S, cwd=ROOT)
    assert "Example: slackwater try --speed 10 --once" in done.stdout


def test_nothing_of_a_recording_can_be_set() -> None:
    with pytest.raises(BalancerError, match="a recording's weights cannot be set: host1"):
        RecordedBalancer(["host1"]).set_weights({"host1": 0})


def test_the_shipped_recording_is_small_and_what_its_tool_makes() -> None:
    from tools import try_recording

    shipped = compact.SHIPPED.read_bytes()
    assert len(shipped) < MOST_BYTES
    assert lzma.decompress(shipped) == lzma.decompress(try_recording.content())


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "cannot be read"),
        (b"no xz", "cannot be read"),
        (lzma.compress(b""), "cannot be read"),
        (lzma.compress(b'{"format":2,"description":"","labels":[]}\n'), "format 2; this program reads format 1"),
        (lzma.compress(b'{"format":1,"description":"","labels":[]}\n'), "holds no Sample"),
        (lzma.compress(b'{"format":1,"description":"","labels":[]}\n{}\n'), "cannot be read"),
    ],
)
def test_a_damaged_recording_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    file = tmp_path / "recording.jsonl.xz"
    file.write_bytes(content)
    with pytest.raises(RecordingError, match=problem):
        compact.read(file)
