"""The inbox: newest Samples per node, staleness, restarts, duplicates, what comes out of order."""

from __future__ import annotations

import pytest

from detector.inbox import FORGET_AFTER_S, OLD_IN_A_ROW, QUEUE, Inbox, Loss
from detector.lateness import AT_ITS_OWN_PACE
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


def arrivals(inbox: Inbox, *offered: tuple[float, Sample]) -> list[str]:
    return [inbox.offer(one, now_s) for now_s, one in offered]


def test_what_waited_while_the_bus_was_away_is_not_taken_for_now() -> None:
    """A minute without a bus, 25 Samples kept: the old ones come in a bunch, then those of now."""
    inbox = Inbox("web", stale_after_s=1.0)
    assert arrivals(inbox, *((seq * 0.2, sample(seq)) for seq in range(10))) == ["new"] * 10
    taken(inbox)
    back_s = 61.8
    kept = [sample(seq) for seq in range(285, 310)]
    kept[0].samples_dropped = 275
    said = arrivals(inbox, *((back_s, one) for one in kept))
    assert said[:19] == ["late"] * 19, "from 5 s to 1 s old"
    assert set(said[21:]) == {"new"}, "the last second's"
    judged = [batch[0] for batch in taken(inbox)]
    assert judged[0][2], "nothing of before the gap counts in the windows"
    assert not any(first for _, _, first in judged[1:])
    assert arrivals(inbox, (back_s + 0.2, sample(310))) == ["new"]


def test_a_node_of_which_only_late_samples_come_stays_stale() -> None:
    inbox = Inbox("web", stale_after_s=1.0)
    arrivals(inbox, (0.0, sample(0)), (0.2, sample(1)))
    assert arrivals(inbox, (20.0, sample(2)), (20.0, sample(3))) == ["late"] * 2
    assert [stale.node for stale in inbox.stale(20.0)] == ["host1"]


def test_a_node_that_was_suspended_is_heard_again_within_some_samples() -> None:
    """Its clock stood still meanwhile, so all it says looks late, and comes at its own pace."""
    inbox = Inbox("web", stale_after_s=1.0)
    arrivals(inbox, *((seq * 0.2, sample(seq)) for seq in range(10)))
    said = arrivals(inbox, *((600.0 + seq * 0.2, sample(seq)) for seq in range(10, 20)))
    assert said == ["late"] * AT_ITS_OWN_PACE + ["new"] * (10 - AT_ITS_OWN_PACE)


def test_clocks_that_drift_apart_make_nothing_late() -> None:
    inbox = Inbox("web", stale_after_s=1.0)
    said = arrivals(inbox, *((seq * 0.2 * (1 + 2e-4), sample(seq)) for seq in range(100_000)))
    assert set(said) == {"new"}


def test_loss_is_noticed_told_once_a_minute_and_does_not_reach_into_the_windows() -> None:
    inbox = Inbox("web", stale_after_s=1.0)
    dropped = sample(40)
    dropped.samples_dropped = 30
    assert arrivals(inbox, (0.8, sample(4)), (1.2, sample(6)), (8.0, dropped)) == ["new"] * 3
    assert [batch[0][2] for batch in taken(inbox)] == [True, False, True]
    assert inbox.losses(10.0) == [Loss("host1", 34, 30)]
    assert inbox.losses(80.0) == []
    arrivals(inbox, (8.4, sample(42)))
    assert inbox.losses(20.0) == []
    assert inbox.losses(71.0) == [Loss("host1", 1, 0)]


def test_a_restart_loses_nothing() -> None:
    inbox, said = inbox_with(sample(90), sample(0, 2000.0), sample(3, 3000.0, boot="b"))
    assert said == ["new", "restart", "restart"]
    assert inbox.losses(0.0) == []
