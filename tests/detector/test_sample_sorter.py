"""The sorter of Samples: newest Samples per node, staleness, restarts, duplicates, what comes out of order."""

from __future__ import annotations

import math

import msgspec
import pytest

from slackwater.core.messages import Sample
from slackwater.detector.features.columns import row_of, table_of
from slackwater.detector.lateness import AT_ITS_OWN_PACE
from slackwater.detector.sample_sorter import (
    ARRIVALS,
    FORGET_AFTER_S,
    LONGEST_PROMISE_S,
    OLD_IN_A_ROW,
    QUEUE,
    Loss,
    SampleSorter,
)


def sample(
    seq: int,
    time_unix_s: float | None = None,
    *,
    node: str = "host1",
    boot: str = "a",
    pool: str = "web",
    next_within_s: float | None = None,
) -> Sample:
    unix_s = 1000.0 + seq * 0.2 if time_unix_s is None else time_unix_s
    own = Sample(v=1, node=node, pool=pool, time_unix_s=unix_s, boot_id=boot, seq=seq, period_s=0.2)
    return msgspec.structs.replace(own, next_within_s=next_within_s)


class Box:
    """A sorter, and what came out of it."""

    def __init__(self) -> None:
        self.sorter = SampleSorter("web", stale_after_s=1.0)
        self.out: list[list[tuple[str, int, bool]]] = []

    def tick(self, now_s: float, *samples: Sample) -> list[str]:
        """What the Samples of a tick were."""
        table = table_of([row_of(sample) for sample in samples], "web")
        sorted_samples = self.sorter.sort(table, now_s)
        for part in sorted_samples.rounds:
            rows = zip(part.rows.tolist(), part.first.tolist(), strict=True)
            self.out.append([(samples[row].node, samples[row].seq, first) for row, first in rows])
        return [ARRIVALS[arrival] for arrival in sorted_samples.arrivals]

    def taken(self) -> list[list[tuple[str, int, bool]]]:
        """What was taken since the last call."""
        out, self.out = self.out, []
        return out


def box_with(*samples: Sample) -> tuple[Box, list[str]]:
    box = Box()
    return box, box.tick(0.0, *samples)


def test_samples_come_out_once_one_of_each_node_at_a_time_in_order() -> None:
    box, logged = box_with(sample(0), sample(1), sample(0, node="host2"))
    assert logged == ["new"] * 3
    assert box.taken() == [[("host1", 0, True), ("host2", 0, True)], [("host1", 1, False)]]
    assert box.taken() == []


def test_a_duplicate_is_left_out() -> None:
    box, logged = box_with(sample(4), sample(4))
    assert logged == ["new", "duplicate"]
    assert box.taken() == [[("host1", 4, True)]]


def test_an_older_sample_is_left_out() -> None:
    box, logged = box_with(sample(4), sample(6), sample(5))
    assert logged == ["new", "new", "old"]
    assert box.taken()[-1] == [("host1", 6, False)]


def test_a_gap_is_no_restart() -> None:
    _, logged = box_with(sample(4), sample(40))
    assert logged == ["new", "new"]


def test_a_reboot_and_a_restarted_monitor_are_reported_to_who_keeps_windows() -> None:
    box, logged = box_with(
        sample(4), sample(0, 2000.0, boot="b"), sample(1, 2000.2, boot="b"), sample(0, 3000.0, boot="b")
    )
    assert logged == ["new", "restart", "new", "restart"]
    assert [batch[0][2] for batch in box.taken()] == [True, True, False, True]


def test_a_late_sample_of_the_boot_before_is_no_restart() -> None:
    _, logged = box_with(sample(4), sample(0, 2000.0, boot="b"), sample(5, boot="a"))
    assert logged == ["new", "restart", "old"]


def test_a_node_is_heard_again_after_somebody_spoke_in_its_name() -> None:
    goes_on = [sample(seq) for seq in range(5, 5 + OLD_IN_A_ROW + 1)]
    _, logged = box_with(sample(4), sample(0, 9e9, boot="b"), sample(1, 9e9, boot="b"), *goes_on)
    assert logged == ["new", "restart", "new"] + ["old"] * (OLD_IN_A_ROW - 1) + ["restart", "new"]


def test_a_restarted_monitor_whose_clock_was_set_back_is_heard_again_soon() -> None:
    again = [sample(seq, 500.0 + seq * 0.2) for seq in range(OLD_IN_A_ROW + 1)]
    _, logged = box_with(sample(90), *again)
    assert logged == ["new"] + ["old"] * (OLD_IN_A_ROW - 1) + ["restart", "new"]


def test_a_clock_set_back_under_a_running_monitor_changes_nothing() -> None:
    _, logged = box_with(sample(4), sample(5, 10.0), sample(6, 10.2))
    assert logged == ["new"] * 3


def test_a_quiet_node_is_stale_and_reported_so_once_a_second_and_one_never_heard_of_is_absent() -> None:
    box = Box()
    box.tick(10.0, sample(0))
    logged = [bool(box.sorter.stale(10.0 + tick / 20)) for tick in range(81)]
    assert logged.count(True) == 4, "at 1, 2, 3 and 4 s"
    assert not any(logged[:20])
    assert logged[20]
    box.tick(14.1, sample(1))
    assert box.sorter.stale(14.2) == []
    assert [stale.node for stale in box.sorter.stale(15.2)] == ["host1"]


@pytest.mark.parametrize(
    ("promised_s", "believed_s"),
    [(None, 0.0), (0.0, 0.0), (0.05, 0.05), (3.0, 3.0), (3600.0, LONGEST_PROMISE_S), (math.inf, 0.0)],
)
def test_a_node_is_waited_for_as_long_as_it_said_but_not_for_ever(promised_s: float | None, believed_s: float) -> None:
    box = Box()
    box.tick(10.0, sample(0, next_within_s=promised_s))
    stale_s = 10.0 + believed_s + box.sorter.stale_after_s
    assert box.sorter.due_s() == pytest.approx(stale_s)
    assert box.sorter.stale(stale_s - 0.01) == []
    assert [stale.node for stale in box.sorter.stale(stale_s + 0.01)] == ["host1"]


def test_the_newest_promise_counts_and_a_late_samples_does_not() -> None:
    box = Box()
    for seq in range(10):
        box.tick(10.0 + seq / 5, sample(seq, next_within_s=1.0))
    box.tick(12.0, sample(10, next_within_s=0.05))
    assert [stale.node for stale in box.sorter.stale(13.1)] == ["host1"], "in an event the next one comes soon"
    assert box.tick(20.0, sample(11, next_within_s=9.0)) == ["late"]
    assert [stale.node for stale in box.sorter.stale(21.5)] == ["host1"]


def test_a_node_that_left_is_forgotten_and_its_slot_used_again() -> None:
    box = Box()
    box.tick(0.0, sample(0))
    assert box.sorter.stale(FORGET_AFTER_S + 1.0) == []
    assert box.sorter.nodes == {}
    box.tick(FORGET_AFTER_S + 2.0, sample(0, node="host2"))
    assert box.sorter.nodes == {"host2": 0}
    assert box.sorter.slots == 1


def test_a_backlog_is_bounded_and_keeps_the_newest() -> None:
    box, _ = box_with(*(sample(seq) for seq in range(QUEUE + 10)))
    batches = box.taken()
    assert len(batches) == QUEUE
    assert batches[-1][0][1] == QUEUE + 9


def test_a_sample_of_another_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="pool api was handed to the detector of pool web"):
        table_of([row_of(sample(0)), row_of(sample(0, pool="api"))], "web")


def arrivals(box: Box, *offered: tuple[float, Sample]) -> list[str]:
    return [logged for now_s, offered_sample in offered for logged in box.tick(now_s, offered_sample)]


def test_what_waited_while_the_bus_was_away_is_not_taken_for_now() -> None:
    """A minute without a bus, 25 Samples kept: the old ones come in a bunch, then those of now."""
    box = Box()
    assert arrivals(box, *((seq * 0.2, sample(seq)) for seq in range(10))) == ["new"] * 10
    box.taken()
    back_s = 61.8
    kept = [sample(seq) for seq in range(285, 310)]
    kept[0].samples_dropped = 275
    logged = arrivals(box, *((back_s, waiting) for waiting in kept))
    assert logged[:19] == ["late"] * 19, "from 5 s to 1 s old"
    assert set(logged[21:]) == {"new"}, "the last second's"
    judged = [batch[0] for batch in box.taken()]
    assert judged[0][2], "nothing of before the gap counts in the windows"
    assert not any(first for _, _, first in judged[1:])
    assert arrivals(box, (back_s + 0.2, sample(310))) == ["new"]


def test_a_node_of_which_only_late_samples_come_stays_stale() -> None:
    box = Box()
    arrivals(box, (0.0, sample(0)), (0.2, sample(1)))
    assert arrivals(box, (20.0, sample(2)), (20.0, sample(3))) == ["late"] * 2
    assert [stale.node for stale in box.sorter.stale(20.0)] == ["host1"]


def test_a_node_that_was_suspended_is_heard_again_within_some_samples() -> None:
    """Its clock stood still meanwhile, so all it says looks late, and comes at its own pace."""
    box = Box()
    arrivals(box, *((seq * 0.2, sample(seq)) for seq in range(10)))
    logged = arrivals(box, *((600.0 + seq * 0.2, sample(seq)) for seq in range(10, 20)))
    assert logged == ["late"] * AT_ITS_OWN_PACE + ["new"] * (10 - AT_ITS_OWN_PACE)


def test_clocks_that_drift_apart_make_nothing_late() -> None:
    box = Box()
    logged = arrivals(box, *((seq * 0.2 * (1 + 8e-4), sample(seq)) for seq in range(10_000)))
    assert set(logged) == {"new"}


def test_loss_is_noticed_reported_once_a_minute_and_does_not_reach_into_the_windows() -> None:
    box = Box()
    dropped = sample(40)
    dropped.samples_dropped = 30
    assert arrivals(box, (0.8, sample(4)), (1.2, sample(6)), (8.0, dropped)) == ["new"] * 3
    assert [batch[0][2] for batch in box.taken()] == [True, False, True]
    assert box.sorter.losses(10.0) == [Loss("host1", 34, 30)]
    assert box.sorter.losses(80.0) == []
    arrivals(box, (8.4, sample(42)))
    assert box.sorter.losses(20.0) == []
    assert box.sorter.losses(71.0) == [Loss("host1", 1, 0)]


def test_a_restart_loses_nothing() -> None:
    box, logged = box_with(sample(90), sample(0, 2000.0), sample(3, 3000.0, boot="b"))
    assert logged == ["new", "restart", "restart"]
    assert box.sorter.losses(0.0) == []
