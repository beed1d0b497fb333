"""How often a server has a Sample."""

from __future__ import annotations

import pytest

from slackwater.lbengine.view.counters import Counted
from slackwater.lbengine.view.pace import SamplePace, is_busy
from slackwater.lbengine.view.packets import SILENT, Line


def test_a_busy_server_has_a_sample_with_each_look_and_a_quiet_one_once_a_second() -> None:
    pace = SamplePace()
    busy = {look for look in range(50) if 10 <= look < 20}
    made = [look for look in range(50) if pace.is_due("a", look * 0.2, busy=look in busy)]
    assert made == [0, 5, *range(10, 21), 25, 30, 35, 40, 45], "at once when it is quiet again"


def test_servers_have_paces_of_their_own() -> None:
    pace = SamplePace()
    assert pace.is_due("a", 0.0, busy=False)
    assert pace.is_due("b", 0.1, busy=False)
    assert not pace.is_due("a", 0.2, busy=False)


@pytest.mark.parametrize(
    ("line", "counted", "busy"),
    [
        (None, None, False),
        (SILENT, Counted(0.2, 0, 0.0, 0.0, None), False),
        (Line("a", exchanges=1), None, True),
        (Line("a", in_flight=1), None, True),
        (Line("a", unmatched=1), None, True),
        (Line("a", is_foreign=True), None, False),
        (SILENT, Counted(0.2, 0, 5.0, 0.0, None, 1), True),
        (None, Counted(0.2, 1, 0.0, 0.0, None), True),
        (None, Counted(0.2, 0, 0.0, 5.0, None), True),
        (None, Counted(0.2, None, None, None, None, 3), True),
    ],
)
def test_a_server_is_busy_by_its_packets_or_by_the_counters(
    line: Line | None, counted: Counted | None, busy: bool
) -> None:
    assert is_busy(line, counted) == busy
