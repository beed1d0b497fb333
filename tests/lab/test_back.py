"""`slackwater lab back`: what it derives from the watched weights and the journal, and one round in the real lab."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from lab.cluster.balancer import Snapshot
from lab.cluster.load import Load, Requests, Stream, joined
from lab.cluster.paths import LabError
from lab.commands import lab as group
from lab.experiment.balancer_watch import back_for_good, first_rise, lowered, weights_at
from lab.stories.time_back import COLUMNS, episode, rows, sentence, summary, summary_line, watched
from slackwater.journal.journal import StateSpan
from slackwater.messages import State
from tests.support.real_lab import needs_lab, run_lab

SERVERS = ("host1", "host2", "host3")


def history(*seen: tuple[float, int, int, int]) -> list[Snapshot]:
    """Rows of (time, weights of three servers)."""
    return [Snapshot(at, dict(zip(SERVERS, weights, strict=True)), {}, {}) for at, *weights in seen]


DRAINED_AND_BACK = history(
    (9.0, 100, 100, 100),
    (10.5, 40, 100, 100),
    (11.0, 0, 100, 100),
    (25.0, 0, 100, 100),
    (27.0, 5, 100, 100),
    (29.0, 50, 80, 100),
    (30.0, 100, 100, 100),
    (30.5, 60, 100, 100),
    (32.0, 100, 100, 100),
    (34.0, 100, 100, 100),
    (35.0, 100, 100, 100),
    (36.0, 100, 50, 100),
)
"""The noise is in host1 from 10 to 26."""


def test_the_weights_at_an_instant_are_those_last_seen() -> None:
    assert weights_at(DRAINED_AND_BACK, 10.9)["host1"] == 40
    assert weights_at(DRAINED_AND_BACK, 11.0)["host1"] == 0
    assert weights_at(DRAINED_AND_BACK, 8.9) == {}


def test_a_rise_is_above_what_the_weight_was_at_that_instant() -> None:
    assert first_rise(DRAINED_AND_BACK, "host1", 26.0) == pytest.approx(1.0)
    assert first_rise(DRAINED_AND_BACK, "host1", 30.5) == pytest.approx(1.5)
    assert first_rise(DRAINED_AND_BACK, "host2", 26.0) is None
    assert first_rise(DRAINED_AND_BACK, "host1", 8.0) is None


def test_servers_whose_weight_fell_between_two_instants_are_found() -> None:
    assert lowered(DRAINED_AND_BACK, 10.0, 26.0) == ["host1"]
    assert lowered(DRAINED_AND_BACK, 26.0, 35.0) == ["host1", "host2"]
    assert lowered(DRAINED_AND_BACK, 32.0, 35.0) == []


def test_weights_are_back_for_good_when_they_stay() -> None:
    assert back_for_good(DRAINED_AND_BACK, 100, 26.0, 3.0) == pytest.approx(6.0)
    assert back_for_good(DRAINED_AND_BACK, 100, 26.0, 0.0) == pytest.approx(4.0)
    assert back_for_good(DRAINED_AND_BACK, 100, 26.0, 4.0) is None
    assert back_for_good(DRAINED_AND_BACK[:5], 100, 26.0, 3.0) is None


def test_weights_that_never_left_are_back_at_once() -> None:
    assert back_for_good(history((1.0, 100, 100, 100), (6.0, 100, 100, 100)), 100, 2.0, 3.0) == 0.0
    assert back_for_good(history((1.0, 100, 100, 100), (4.0, 100, 100, 100)), 100, 2.0, 3.0) is None


def test_a_round_shows_the_change_the_drain_the_trial_the_return_and_who_was_cut_meanwhile() -> None:
    found = watched(DRAINED_AND_BACK, {"host1": 10.0}, 26.0)
    weights = found.pop("weights")
    assert [step["after_s"] for step in weights] == [-17.0, -15.5, -15.0, 1.0, 3.0, 4.0, 4.5, 6.0, 10.0]
    assert weights[4] == {"after_s": 3.0, "host1": 50, "host2": 80, "host3": 100}
    assert found == {
        "noisy": {"host1": {"detection_s": 0.5, "drained": True, "cut_after": True, "trial_s": 1.0}},
        "back_s": 6.0,
        "lowered": ["host1", "host2"],
        "cut_after": ["host2"],
    }


def test_a_first_change_after_the_noise_is_no_detection() -> None:
    late = history((9.0, 100, 100, 100), (27.0, 50, 100, 100), (28.0, 100, 100, 100), (31.0, 100, 100, 100))
    found = watched(late, {"host1": 10.0}, 26.0)
    assert found["noisy"]["host1"] == {"detection_s": None, "drained": False, "cut_after": True, "trial_s": None}
    assert (found["back_s"], found["lowered"], found["cut_after"]) == (2.0, ["host1"], [])


def test_a_second_neighbours_server_is_not_counted_as_healthy() -> None:
    found = watched(DRAINED_AND_BACK, {"host1": 10.0, "host2": 10.0}, 26.0)
    assert found["cut_after"] == []
    assert found["noisy"]["host2"] == {"detection_s": None, "drained": False, "cut_after": True, "trial_s": None}


def test_each_change_is_timed_from_its_own_neighbours_beginning() -> None:
    seen = history((9.0, 100, 100, 100), (10.5, 0, 100, 100), (12.5, 0, 0, 100), (27.0, 100, 100, 100))
    found = watched(seen, {"host1": 10.0, "host2": 12.0}, 26.0)
    assert [server["detection_s"] for server in found["noisy"].values()] == [0.5, 0.5]
    assert found["lowered"] == ["host1", "host2"]


def span(state: State, since_unix_s: float, last_unix_s: float, node: str = "host1") -> StateSpan:
    return StateSpan(node, state, since_unix_s, last_unix_s, 0.5, ["because"])


def test_an_episode_is_over_when_its_node_is_calm() -> None:
    spans = [span("calm", 1.0, 10.4), span("interference", 10.5, 29.0), span("calm", 29.5, 40.0)]
    other = span("interference", 12.0, 50.0, "host2")
    assert episode([*spans, other], "host1", 10.0, 26.0) == {"episodes": 1, "episode_over_s": 3.5}


def test_the_last_of_several_episodes_counts() -> None:
    spans = [
        *(span("interference", 10.5, 12.0), span("calm", 12.0, 15.0)),
        *(span("interference", 15.0, 30.0), span("overload", 30.0, 31.0), span("calm", 31.0, 40.0)),
    ]
    assert episode(spans, "host1", 10.0, 26.0) == {"episodes": 2, "episode_over_s": 5.0}
    assert episode(spans[:-1], "host1", 10.0, 26.0) == {"episodes": 2, "episode_over_s": None}


def test_an_episode_before_the_noise_is_another_one() -> None:
    before = [span("interference", 1.0, 5.0), span("calm", 5.0, 40.0)]
    assert episode(before, "host1", 10.0, 26.0) == {"episodes": 0, "episode_over_s": None}


def one(kind: str, back_s: float | None, cut: list[str], moved: bool = True) -> dict[str, Any]:
    host = {"detection_s": 0.4, "drained": moved, "trial_s": 2.0, "episodes": 1, "episode_over_s": None}
    phase = {"requests": 100, "errors": 1, "p95_ms": 5.0}
    return {
        "kind": kind,
        "noisy": {"host1": host},
        "back_s": back_s,
        "lowered": ["host1"] if moved else [],
        "cut_after": cut,
        "phases": dict.fromkeys(("calm", "noise", "after"), phase),
    }


ROUNDS = [one("cpu", 4.0, []), one("cpu", 8.0, ["host2"]), one("disk", None, ["host2", "host3"])]


def test_the_summary_is_of_the_rounds_in_which_a_weight_moved() -> None:
    assert summary_line(summary(ROUNDS)) == (
        "back: median 6.0 s, worst 8.0 s, 2 of 3; healthy servers cut after the noise: 3"
    )
    assert summary_line(summary([*ROUNDS, one("flood", 0.0, [], moved=False)])) == (
        "back: median 6.0 s, worst 8.0 s, 2 of 3; no weight moved in 1; healthy servers cut after the noise: 3"
    )
    assert summary_line(summary([])) == "back: median - s, worst - s, 0 of 0; healthy servers cut after the noise: 0"


def test_a_round_in_a_line() -> None:
    assert sentence(ROUNDS[2]) == (
        "disk: first change after 0.40 s, 1 drained, tried again after 2.0 s, episode over after - s, not back; "
        "healthy servers cut after the noise: host2, host3"
    )
    assert sentence(one("flood", 0.0, [], moved=False)) == "flood: no weight moved"


def test_the_table_has_a_row_a_kind() -> None:
    made = rows({"settings": {"kinds": ["cpu", "disk"]}, "rounds": ROUNDS})
    assert made == [
        ["cpu", "0.40", "2 of 2", "2.0", "-", "6.0", "2 of 2", "1", "6/600", "5.0", "5.0"],
        ["disk", "0.40", "1 of 1", "2.0", "-", "-", "0 of 1", "2", "3/300", "5.0", "5.0"],
    ]
    assert len(made[0]) == 1 + len(COLUMNS)


def requests(*due: float, lost: dict[str, int] | None = None) -> Requests:
    return Requests(np.array(due), np.array(due) / 1000.0, np.full(len(due), 200), lost or {})


def test_requests_of_several_runs_are_put_together() -> None:
    found = joined([requests(1.0, 2.0, lost={"timeout": 1}), requests(3.0, lost={"timeout": 2, "reset": 1})])
    assert found.due_mono_s.tolist() == [1.0, 2.0, 3.0]
    assert found.status.tolist() == [200, 200, 200]
    assert found.lost == {"timeout": 3, "reset": 1}


class Piece:
    """A run of the generator that was answered one request as it began."""

    def __init__(self, seconds: float) -> None:
        self.begin_mono_s, self.seconds = time.monotonic(), seconds

    def check(self) -> None:
        pass

    def finish(self) -> Requests:
        return requests(self.begin_mono_s)


def test_a_stream_begins_its_next_run_when_the_last_ones_time_is_over() -> None:
    begun: list[Piece] = []
    third = threading.Event()

    def start(seconds: float) -> Load:
        begun.append(Piece(seconds))
        if len(begun) == 3:
            third.set()
        return begun[-1]  # type: ignore[return-value]

    with Stream(start, 0.02) as stream:
        assert third.wait(60.0)
        stream.check()
        found = stream.finish()
    assert found.due_mono_s.tolist() == [one.begin_mono_s for one in begun]
    assert all(step >= 0.02 for step in np.diff(found.due_mono_s))


def test_a_stream_that_cannot_go_on_says_so() -> None:
    failed = threading.Event()

    def start(seconds: float) -> Load:
        failed.set()
        raise OSError(f"no memory for {seconds:g} s")

    with Stream(start, 1.0) as stream:
        assert failed.wait(60.0)
    with pytest.raises(LabError, match="the load cannot go on: no memory for 1 s"):
        stream.check()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--rate", "10", "--load", "0.4"], "at most one of --rate and --load"),
        (["--neighbours", "4"], "4 neighbours: there are 3 hosts"),
        (["--noise", "party"], "'party' is not one of"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(group, ["back", *arguments])
    assert done.exit_code == 2
    assert says in done.output


@pytest.mark.slow
@pytest.mark.lab
@needs_lab
@pytest.mark.usefixtures("nothing_before_and_after")
def test_one_round_in_the_lab(tmp_path: Path) -> None:
    file = tmp_path / "back.json"
    done = run_lab("back", "--noise", "llcprobe", "--seconds", "8", "--json", str(file), timeout_s=280.0)
    assert done.returncode == 0, done.stderr
    assert "back: median" in done.stdout
    assert "round 1 of 1: llcprobe" in done.stderr
    found = json.loads(file.read_text())
    assert found["machine"]["app"] == "events"
    (only,) = found["rounds"]
    assert "host1" in only["lowered"]
    assert only["noisy"]["host1"]["episodes"] >= 1
    assert all(phase["requests"] > 0 for phase in only["phases"].values())
