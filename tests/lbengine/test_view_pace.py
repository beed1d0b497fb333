"""How often a server has a Sample."""

from __future__ import annotations

from collections import Counter

import pytest

from slackwater.core.messages import Sample
from slackwater.lbengine.view.counters import Counted
from slackwater.lbengine.view.pace import SamplePace, is_busy
from slackwater.lbengine.view.packets import SILENT, SnifferLine
from slackwater.lbengine.view.samples import Origin, sample_of
from tests.support.judges import new_judge


def test_a_busy_server_has_a_sample_with_each_look_and_a_quiet_one_once_a_second() -> None:
    pace = SamplePace()
    busy = {look for look in range(50) if 10 <= look < 20}
    made = [look for look in range(50) if pace.is_due("a", look * 0.2, 0.2, busy=look in busy)]
    assert made == [0, 5, *range(10, 21), 25, 30, 35, 40, 45], "at once when it is quiet again"


def test_servers_have_paces_of_their_own() -> None:
    pace = SamplePace()
    assert pace.is_due("a", 0.0, 0.2, busy=False)
    assert pace.is_due("b", 0.1, 0.2, busy=False)
    assert not pace.is_due("a", 0.2, 0.2, busy=False)


def test_a_quiet_server_that_has_a_sample_once_a_second_is_not_late() -> None:
    """Else its Samples would not count, and it would be `unknown` while it is drained."""
    pace, origin, judge = SamplePace(), Origin("web", "boot", 1.6), new_judge("web")
    states, samples = Counter[str](), list[Sample]()
    for look in range(1, 200):
        now_s, arrived = look * 0.2, list[Sample]()
        line = (
            SnifferLine("a", exchanges=10, rt_mean_ms=2.0, rt_p50_ms=2.0, rt_p95_ms=2.0) if look % 40 == 39 else SILENT
        )
        if pace.is_due("a", now_s, 0.2, busy=is_busy(line, None)):
            counted, times = Counted(0.2, None, None, None, None), (line, SnifferLine(period_s=0.2))
            place = origin, "a", "a", len(samples), now_s, counted, times, ""
            arrived = [sample_of(*place, complete=True, quiet_s=pace.take_skipped_s("a"))]
        samples += arrived
        states.update(verdict.state for verdict in judge.tick(now_s, arrived))
    assert len(samples) < 60
    assert sum(sample.period_s for sample in samples) == pytest.approx(now_s)
    answered = sum((sample.traffic.rps or 0.0) * sample.period_s for sample in samples if sample.traffic is not None)
    assert answered == pytest.approx(50.0)
    assert set(states) == {"calm"}


def test_what_the_balancer_counted_in_a_look_is_spread_over_the_quiet_time_before_it() -> None:
    counted = Counted(0.2, 1, 10.0, 5.0, 3.0, 2).after_quiet(0.8)
    assert counted == Counted(1.0, 1, 2.0, 1.0, 3.0, 2)
    assert Counted(0.2, None, None, None, None, 2).after_quiet(0.8) == Counted(1.0, None, None, None, None, 2)


@pytest.mark.parametrize(
    ("line", "counted", "busy"),
    [
        (None, None, False),
        (SILENT, Counted(0.2, 0, 0.0, 0.0, None), False),
        (SnifferLine("a", exchanges=1), None, True),
        (SnifferLine("a", in_flight=1), None, True),
        (SnifferLine("a", unmatched=1), None, True),
        (SnifferLine("a", is_foreign=True), None, False),
        (SILENT, Counted(0.2, 0, 5.0, 0.0, None, 1), True),
        (None, Counted(0.2, 1, 0.0, 0.0, None), True),
        (None, Counted(0.2, 0, 0.0, 5.0, None), True),
        (None, Counted(0.2, None, None, None, None, 3), True),
    ],
)
def test_a_server_is_busy_by_its_packets_or_by_the_counters(
    line: SnifferLine | None, counted: Counted | None, busy: bool
) -> None:
    assert is_busy(line, counted) == busy
