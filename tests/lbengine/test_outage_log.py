"""What the log says of a balancer that goes, comes back, or comes and goes."""

from __future__ import annotations

import logging

import pytest

from slackwater.lbengine.outage_log import LONG_S, STEADY_S, SUMMARY_EVERY_S, OutageLog

LOG = logging.getLogger("test")


class Balancer:
    """One that is asked five times a second, and its log."""

    def __init__(self, caplog: pytest.LogCaptureFixture, patience_s: float = 0.0) -> None:
        self.now_s, self.caplog = 1000.0, caplog
        self.log = OutageLog(LOG, "web", "HAProxy", lambda: self.now_s, patience_s)

    def for_s(self, seconds: float, *, answers: bool) -> list[str]:
        """What is said meanwhile."""
        self.caplog.clear()
        for _ in range(round(5 * seconds)):
            self.now_s += 0.2
            self.log.answered() if answers else self.log.lost("/run/haproxy.sock: Connection refused")
        return [record.getMessage() for record in self.caplog.records]


def test_an_outage_has_one_line_at_its_begin_and_one_at_its_end_with_its_length(
    caplog: pytest.LogCaptureFixture,
) -> None:
    balancer = Balancer(caplog)
    assert balancer.for_s(100.0, answers=True) == []
    (lost,) = balancer.for_s(3600.0, answers=False)
    assert lost == "pool web: /run/haproxy.sock: Connection refused; trying again until it answers"
    assert caplog.records[0].levelname == "ERROR"
    assert balancer.for_s(100.0, answers=True) == ["pool web: HAProxy answers again after 3600.0 s"]


def test_one_that_comes_and_goes_is_told_with_its_first_outage_and_then_in_sum(
    caplog: pytest.LogCaptureFixture,
) -> None:
    balancer = Balancer(caplog)
    hour = [text for _ in range(1800) for answers in (False, True) for text in balancer.for_s(1.0, answers=answers)]
    steady = balancer.for_s(STEADY_S + 1.0, answers=True)
    assert len(hour) <= 2 + 3600.0 / SUMMARY_EVERY_S
    assert steady[0].startswith("pool web: HAProxy came and went: ")
    counted = [int(text.split(": ")[2].split()[0]) for text in [*hour[2:], *steady]]
    assert sum(counted) == 1800 - 1, "each interruption but the first"
    assert len(balancer.for_s(1.0, answers=False)) == 1, "after a steady time each outage is told at once again"


def test_a_long_outage_is_told_also_soon_after_another(caplog: pytest.LogCaptureFixture) -> None:
    balancer = Balancer(caplog)
    balancer.for_s(1.0, answers=False)
    balancer.for_s(1.0, answers=True)
    assert balancer.for_s(LONG_S - 1.0, answers=False) == []
    assert len(balancer.for_s(LONG_S, answers=False)) == 1
    assert len(balancer.for_s(STEADY_S, answers=True)) == 1


def test_who_has_patience_says_nothing_of_what_is_short(caplog: pytest.LogCaptureFixture) -> None:
    balancer = Balancer(caplog, patience_s=10.0)
    assert balancer.for_s(9.0, answers=False) == []
    assert balancer.for_s(200.0, answers=True) == []
    assert len(balancer.for_s(11.0, answers=False)) == 1
    assert len(balancer.for_s(200.0, answers=True)) == 1
