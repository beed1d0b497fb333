"""What is faulty is told seldom."""

from __future__ import annotations

from slackwater.core.complaints import EVERY_S, MOST, Complaints


def test_each_thing_is_told_once_a_minute() -> None:
    now_s = [0.0]
    complaints = Complaints(lambda: now_s[0])
    assert [complaints.are_due("a") for _ in range(3)] == [True, False, False]
    assert complaints.are_due("b")
    now_s[0] = EVERY_S
    assert complaints.are_due("a")
    assert not complaints.are_due("a")


def test_ever_new_things_are_told_up_to_a_number() -> None:
    now_s = [0.0]
    complaints = Complaints(lambda: now_s[0])
    assert sum(complaints.are_due(f"{number}") for number in range(10 * MOST)) == MOST
    now_s[0] = EVERY_S
    assert complaints.are_due("another")
