"""For how long a failing server keeps load from being moved."""

from __future__ import annotations

import msgspec

from slackwater.core.messages import Verdict
from slackwater.lbengine.decision import failing
from slackwater.lbengine.decision.failing import MOST_S, FailingServer
from tests.support.pool_shown import verdict


def fails(share: float) -> dict[str, Verdict]:
    return {
        "web1": msgspec.structs.replace(verdict("web1", "calm", 0.0, 100.0), failed_share=share, peers_failed_share=0.0)
    }


def keeps(known: dict[str, FailingServer], share: float) -> bool:
    return failing.keeps_load(fails(share)["web1"], known.get("web1"))


def test_no_load_is_moved_for_a_minute_and_then_in_spite_of_it_until_it_fails_half_as_much_again() -> None:
    known: dict[str, FailingServer] = {}
    for second in range(int(MOST_S)):
        known = failing.after(known, fails(0.02 + 0.001 * second), float(second))
        assert keeps(known, 0.05), second
    known = failing.after(known, fails(0.08), MOST_S)
    assert not keeps(known, 0.08)
    known = failing.after(known, fails(0.11), MOST_S + 1.0)
    assert not keeps(known, 0.11)
    known = failing.after(known, fails(0.13), MOST_S + 2.0)
    assert keeps(known, 0.13), "what was moved may be the reason"
    for second in range(3, 64):
        known = failing.after(known, fails(0.08), MOST_S + second)
    assert not keeps(known, 0.08)
    known = failing.after(known, fails(0.13), MOST_S + 64.0)
    assert keeps(known, 0.13), "as before"


def test_a_server_that_fails_no_more_is_forgotten_and_one_in_an_episode_of_errors_is_not_meant() -> None:
    known = failing.after({"web1": FailingServer(0.0, 0.05)}, {"web1": verdict("web1", "calm", 0.0, 100.0)}, 90.0)
    assert known == {}
    lost = msgspec.structs.replace(fails(0.9)["web1"], state="errors", shown=True)
    known = failing.after({}, {"web1": lost}, 0.0)
    assert (known, failing.keeps_load(lost, None)) == ({}, True)
