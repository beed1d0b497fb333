"""Load in pieces, one after the other, and what several runs of the generator saw together."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from slackwater_lab.cluster.load import Load, Requests, Stream, joined
from slackwater_lab.cluster.paths import LabError


def requests(*due: float, lost: dict[str, int] | None = None) -> Requests:
    late_s = np.zeros(len(due))
    return Requests(np.array(due), np.array(due) / 1000.0, np.full(len(due), 200), lost or {}, late_s)


def test_requests_of_several_runs_are_put_together() -> None:
    together = joined([requests(1.0, 2.0, lost={"timeout": 1}), requests(3.0, lost={"timeout": 2, "reset": 1})])
    assert together.due_mono_s.tolist() == [1.0, 2.0, 3.0]
    assert together.status.tolist() == [200, 200, 200]
    assert together.lost == {"timeout": 3, "reset": 1}


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
        received = stream.finish()
    assert received.due_mono_s.tolist() == [load.begin_mono_s for load in begun]
    assert all(step >= 0.02 for step in np.diff(received.due_mono_s))


def test_a_stream_that_cannot_go_on_says_so() -> None:
    failed = threading.Event()

    def start(seconds: float) -> Load:
        failed.set()
        raise OSError(f"no memory for {seconds:g} s")

    with Stream(start, 1.0) as stream:
        assert failed.wait(60.0)
    with pytest.raises(LabError, match="the load cannot go on: no memory for 1 s"):
        stream.check()
