"""What chaos hears on the bus of the cluster that it watches."""

from __future__ import annotations

from tests.chaos.watch import Listener
from tests.support.pool_shown import verdict


def test_a_second_controller_that_knows_nothing_yet_does_not_hide_the_first_ones_verdicts() -> None:
    listener = Listener()
    listener.hear(verdict("web1", "calm", 0.0, None))
    heard_s = listener.judgement_s
    assert heard_s is not None
    listener.hear(verdict("web1", "unknown", 0.0, None))
    assert listener.judgement_s == heard_s
    assert listener.verdicts["web1"][1] == "unknown"
