"""What a neighbour left waiting is no calm to a training."""

from __future__ import annotations

import pytest

from slackwater.core.messages import Sample, Traffic
from slackwater.detector.recordings.recording import Label, Recording
from slackwater.detector.train.queues import LONGEST_S, with_queues

BEGIN_S, END_S = 30.0, 35.0


def recording(waits_s: float, *labels: Label, answers: bool = True) -> Recording:
    """A minute of a node whose requests take ten times as long beside a noise, and for `waits_s` after it."""
    samples = [
        Sample(
            v=1,
            node="host1",
            pool="web",
            time_unix_s=float(second),
            boot_id="b",
            seq=second,
            period_s=1.0,
            traffic=Traffic(
                rps=50.0,
                rt_p95_ms=(30.0 if BEGIN_S <= second < END_S + waits_s else 3.0) if answers or second < END_S else None,
            ),
        )
        for second in range(60)
    ]
    return Recording(samples, [Label("host1", "cpu", 1.0, BEGIN_S, END_S), *labels], "", nodes=["host1"])


@pytest.mark.parametrize(("waits_s", "ends_s"), [(0.0, END_S), (4.0, END_S + 3.0), (20.0, END_S + LONGEST_S - 1.0)])
def test_a_noises_label_ends_with_the_queue_that_it_left(waits_s: float, ends_s: float) -> None:
    assert with_queues(recording(waits_s)).labels[0].end_unix_s == ends_s


def test_it_ends_before_the_nodes_next_label_and_at_once_where_nothing_is_answered() -> None:
    deploy = Label("*", "deploy", 1.0, END_S + 2.0, END_S + 4.0)
    assert [label.end_unix_s for label in with_queues(recording(9.0, deploy)).labels] == [END_S + 1.0, END_S + 4.0]
    assert with_queues(recording(9.0, answers=False)).labels[0].end_unix_s == END_S
