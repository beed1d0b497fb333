"""Recording a live pool: Samples from a real nats-server, labels from marks, and what cannot be is refused in words."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from slackwater.controller.cli.main import cli
from slackwater.core.bus import nats_server
from slackwater.core.bus.bus import Bus
from slackwater.detector.recordings import live, marks
from slackwater.detector.recordings.marks import Mark
from slackwater.detector.recordings.recording import RecordingError, read
from tests.support.paths import PROGRAMS
from tests.support.real_processes import free_address
from tests.support.synthetic_cluster import Cluster

NATS = shutil.which("nats-server", path=str(PROGRAMS)) or shutil.which("nats-server")
DEADLINE_S = 60.0
TICKS = 15
"""Thrice as many are fewer than a node may say in a second: none is left out, should they all come at once."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Path]:
    """A configuration with a bus that is there, and one pool."""
    assert NATS, "nats-server is missing: run `make setup`"
    address = free_address()
    host, _, port = address.rpartition(":")
    server = subprocess.Popen([NATS, "-a", host, "-p", port], stderr=subprocess.DEVNULL)
    nats_server.wait_until_it_answers(address, tmp_path / "no.log", DEADLINE_S)
    path = tmp_path / "controller.toml"
    path.write_text(
        f'state_dir = "{tmp_path}/state"\n[bus]\nurl = "nats://{address}"\n'
        '[[pool]]\nname = "web"\nbackend = "web"\nsocket = "/nowhere"\n'
    )
    yield path
    server.terminate()
    server.wait(DEADLINE_S)


def mark(site: Path, *arguments: str) -> tuple[int, str]:
    run = CliRunner().invoke(cli, ["mark", "--config", str(site), *arguments])
    return run.exit_code, run.output


def test_a_live_pool_is_recorded_with_what_was_marked(site: Path, tmp_path: Path) -> None:
    out = tmp_path / "live.parquet"
    argv = [sys.executable, "-m", "slackwater.controller.cli.main", "record", "--config", str(site), "--out", str(out)]
    recorder = subprocess.Popen([*argv, "--about", "a test"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert recorder.stderr is not None
    assert "recording pool web" in recorder.stderr.readline()

    async def story() -> None:
        cluster = Cluster()
        bus = await Bus.connect("nats://" + site.read_text().split("nats://")[1].split('"')[0], "test")

        async def send(ticks: int) -> None:
            for _ in range(ticks):
                for name in cluster.names:
                    sample = cluster.sample(name, cluster.now_s)
                    sample.time_unix_s = time.time()
                    await bus.publish(sample)
                await bus.flush(DEADLINE_S)
                await asyncio.sleep(0.02)

        await send(TICKS)
        assert mark(site, "host1", "dcopy", "--begin", "--intensity", "0.5") == (0, "dcopy on host1 begins\n")
        await send(TICKS)
        assert mark(site, "host1", "dcopy", "--end")[0] == 0
        assert mark(site, "*", "deploy", "--begin")[0] == 0
        await send(TICKS)
        await bus.close()

    try:
        asyncio.run(story())
        recorder.send_signal(signal.SIGINT)
        printed, trouble = recorder.communicate(timeout=DEADLINE_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            recorder.kill()
    assert recorder.returncode == 0, trouble
    assert "2 labels" in printed
    recording = read(out)
    assert recording.nodes == ["host1", "host2", "host3"]
    assert recording.description == "a test"
    noise, deploy = recording.labels
    assert (noise.node, noise.kind, noise.intensity, noise.state) == ("host1", "dcopy", 0.5, "interference")
    assert (deploy.node, deploy.state) == ("*", "calm")
    assert deploy.end_unix_s == max(sample.time_unix_s for sample in recording.samples), "it was open to the end"


def test_a_recording_of_nothing_is_refused(site: Path, tmp_path: Path) -> None:
    argv = ["record", "--config", str(site), "--out", str(tmp_path / "x.parquet"), "--seconds", "0.2"]
    run = CliRunner().invoke(cli, argv)
    assert run.exit_code == 1
    assert "no Sample of pool web came" in run.output
    assert not (tmp_path / "x.parquet").exists()


def test_marks_that_make_no_sense_are_refused_in_words(site: Path) -> None:
    for arguments, says in (
        (["host1", "dcopy", "--end"], "has not begun"),
        (["host1", "dcopy"], "give one of --begin, --end and --for"),
        (["host1", "d copy", "--begin"], "expected a name such as"),
        (["host 1", "dcopy", "--begin"], "expected a node's name"),
        (["host1", "dcopy", "--begin", "--pool", "none"], "no pool `none`"),
        (["host1", "dcopy", "--begin", "--intensity", "-1"], "-1.0 is not in the range x>=0"),
        (["host1", "dcopy", "--for", "inf"], "expected a finite number, got inf"),
        (["host1", "dcopy", "--for", "1e10"], "expected a time from 1970 to 2100"),
    ):
        code, printed = mark(site, *arguments)
        assert code != 0
        assert says in printed
    assert mark(site, "host1", "dcopy", "--begin")[0] == 0
    code, printed = mark(site, "host1", "dcopy", "--begin")
    assert code == 1
    assert "has begun already" in printed


def test_marks_are_cut_to_the_recording_and_only_its_nodes_count(tmp_path: Path) -> None:
    for mark in (
        Mark("web", "n1", "a", 1.0, 0.0, 15.0),
        Mark("web", "n1", "b", 1.0, 18.0),
        Mark("web", "n2", "c", 1.0, 11.0, 12.0),
        Mark("api", "n1", "d", 1.0, 11.0, 12.0),
        Mark("web", "*", "e", 1.0, 1.0, 2.0),
    ):
        marks.append(tmp_path, mark)
    labels = marks.labels(tmp_path, "web", {"n1"}, 10.0, 20.0)
    assert [(label.kind, label.start_unix_s, label.end_unix_s) for label in labels] == [
        ("a", 10.0, 15.0),
        ("b", 18.0, 20.0),
    ]


@pytest.mark.parametrize("line", [b"{\n", b"\xff\n", b'{"pool": "we', b'{"start_unix_s": -Infinity}\n'])
def test_a_damaged_file_of_marks_is_refused_with_its_line_before_anything_is_recorded(
    site: Path, tmp_path: Path, line: bytes
) -> None:
    folder = tmp_path / "state"
    marks.append(folder, Mark("web", "n1", "a", 1.0, 0.0, 15.0))
    with (folder / marks.FILE).open("ab") as file:
        file.write(line)
    before = (folder / marks.FILE).read_bytes()
    for words in (
        ["mark", "n1", "b", "--for", "5"],
        ["record", "--out", str(tmp_path / "x.parquet"), "--seconds", "60"],
    ):
        run = CliRunner().invoke(cli, [words[0], "--config", str(site), *words[1:]])
        assert run.exit_code == 1
        assert "marks.jsonl: line 2 is no mark" in run.output
        assert "recording pool" not in run.output
    assert (folder / marks.FILE).read_bytes() == before


def test_a_line_that_is_damaged_while_a_recording_goes_on_costs_its_label_and_no_sample(tmp_path: Path) -> None:
    heard = [sample for _, batch in Cluster(("n1",), seed=1).run(2.0) for sample in batch]
    marks.append(tmp_path, Mark("web", "n1", "a", 1.0, heard[0].time_unix_s, heard[-1].time_unix_s))
    with (tmp_path / marks.FILE).open("a") as file:
        file.write("{\n")
    left_out: list[str] = []
    made = live.save(tmp_path / "x.parquet", heard, "web", tmp_path, "", left_out)
    assert (len(made.samples), [label.kind for label in made.labels]) == (len(heard), ["a"])
    assert [fault.partition(": line 2 is no mark")[0] for fault in left_out] == [str(tmp_path / marks.FILE)]


def test_a_recording_that_could_not_be_written_does_not_begin(site: Path, tmp_path: Path) -> None:
    out = tmp_path / "file" / "x.parquet"
    out.parent.write_text("")
    run = CliRunner().invoke(cli, ["record", "--config", str(site), "--out", str(out), "--seconds", "60"])
    assert run.exit_code == 1
    assert f"{out}: cannot be written; expected a file in a folder" in run.output
    assert "recording pool" not in run.output


def test_nothing_heard_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="are the monitors running"):
        live.save(tmp_path / "x.parquet", [], "web", tmp_path, "", [])
