"""The inbox: newest Samples per node, staleness, restarts, duplicates, what comes out of order."""

from __future__ import annotations

import pytest

from detector.inbox import FORGET_AFTER_S, OLD_IN_A_ROW, QUEUE, Inbox
from slackwater.messages import Sample


def sample(
    seq: int, time_unix_s: float | None = None, *, node: str = "host1", boot: str = "a", pool: str = "web"
) -> Sample:
    at = 1000.0 + seq * 0.2 if time_unix_s is None else time_unix_s
    return Sample(v=1, node=node, pool=pool, time_unix_s=at, boot_id=boot, seq=seq, period_s=0.2)


def taken(inbox: Inbox) -> list[list[tuple[str, int, bool]]]:
    batches = []
    while batch := inbox.take():
        batches.append([(one.node, one.seq, first) for _, one, first in batch])
    return batches


def inbox_with(*samples: Sample) -> tuple[Inbox, list[str]]:
    inbox = Inbox("web", stale_after_s=1.0)
    return inbox, [inbox.offer(one, now_s=0.0) for one in samples]


def test_samples_come_out_once_one_of_each_node_at_a_time_in_order() -> None:
    inbox, said = inbox_with(sample(0), sample(1), sample(0, node="host2"))
    assert said == ["new"] * 3
    assert taken(inbox) == [[("host1", 0, True), ("host2", 0, True)], [("host1", 1, False)]]
    assert taken(inbox) == []


def test_a_duplicate_is_left_out() -> None:
    inbox, said = inbox_with(sample(4), sample(4))
    assert said == ["new", "duplicate"]
    assert taken(inbox) == [[("host1", 4, True)]]


def test_an_older_sample_is_left_out() -> None:
    inbox, said = inbox_with(sample(4), sample(6), sample(5))
    assert said == ["new", "new", "old"]
    assert taken(inbox)[-1] == [("host1", 6, False)]


def test_a_gap_is_no_restart() -> None:
    _, said = inbox_with(sample(4), sample(40))
    assert said == ["new", "new"]


def test_a_reboot_and_a_restarted_monitor_are_told_to_who_keeps_windows() -> None:
    inbox, said = inbox_with(
        sample(4), sample(0, 2000.0, boot="b"), sample(1, 2000.2, boot="b"), sample(0, 3000.0, boot="b")
    )
    assert said == ["new", "restart", "new", "restart"]
    assert [batch[0][2] for batch in taken(inbox)] == [True, True, False, True]


def test_a_late_sample_of_the_boot_before_is_no_restart() -> None:
    _, said = inbox_with(sample(4), sample(0, 2000.0, boot="b"), sample(5, boot="a"))
    assert said == ["new", "restart", "old"]


def test_a_restarted_monitor_whose_clock_was_set_back_is_heard_again_soon() -> None:
    again = [sample(seq, 500.0 + seq * 0.2) for seq in range(OLD_IN_A_ROW + 1)]
    _, said = inbox_with(sample(90), *again)
    assert said == ["new"] + ["old"] * (OLD_IN_A_ROW - 1) + ["restart", "new"]


def test_a_clock_set_back_under_a_running_monitor_changes_nothing() -> None:
    _, said = inbox_with(sample(4), sample(5, 10.0), sample(6, 10.2))
    assert said == ["new"] * 3


def test_a_quiet_node_is_stale_and_said_so_once_a_second_and_one_never_heard_of_is_absent() -> None:
    inbox = Inbox("web", stale_after_s=1.0)
    inbox.offer(sample(0), now_s=10.0)
    said = [bool(inbox.stale(10.0 + tick / 20)) for tick in range(81)]
    assert said.count(True) == 4, "at 1, 2, 3 and 4 s"
    assert not any(said[:20])
    assert said[20]
    inbox.offer(sample(1), now_s=14.1)
    assert inbox.stale(14.2) == []
    assert [stale.node for stale in inbox.stale(15.2)] == ["host1"]


def test_a_node_that_left_is_forgotten_and_its_slot_used_again() -> None:
    inbox = Inbox("web", stale_after_s=1.0)
    inbox.offer(sample(0), now_s=0.0)
    assert inbox.stale(FORGET_AFTER_S + 1.0) == []
    assert inbox.nodes == {}
    inbox.offer(sample(0, node="host2"), now_s=FORGET_AFTER_S + 2.0)
    assert inbox.nodes == {"host2": 0}
    assert inbox.slots == 1


def test_a_backlog_is_bounded_and_keeps_the_newest() -> None:
    inbox, _ = inbox_with(*(sample(seq) for seq in range(QUEUE + 10)))
    batches = taken(inbox)
    assert len(batches) == QUEUE
    assert batches[-1][0][1] == QUEUE + 9


def test_a_sample_of_another_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="pool api was handed to the inbox of pool web"):
        Inbox("web", 1.0).offer(sample(0, pool="api"), 0.0)
