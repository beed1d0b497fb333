"""Limits of a host's own in the lab: a lower quota, and credits that run out and come back."""

from __future__ import annotations

import threading

from slackwater_lab.cluster.hosts import Host
from slackwater_lab.cluster.limited import BUCKET_S, Bucket, start

WITHIN_S = 10.0


def test_a_limit_lowers_the_quota_until_it_is_stopped() -> None:
    shares: list[float] = []
    limit = start(Host(1), "limit", 0.4, 60.0, shares.append, (0.4, lambda: 0.0))
    limit.check()
    limit.stop()
    assert shares == [0.4, 1.0]


def test_a_bucket_is_empty_after_its_credits_are_used_and_has_some_again_when_nothing_is_used() -> None:
    used_s, changed, lowered = [0.0], threading.Event(), []

    def lower(is_low: bool) -> None:
        lowered.append(is_low)
        changed.set()

    with Bucket(0.5, lambda: used_s[0], lower) as bucket:
        used_s[0] += BUCKET_S + 1.0
        assert changed.wait(WITHIN_S)
        assert lowered == [True]
        changed.clear()
        assert changed.wait(WITHIN_S), "1 s of debt and 0.1 s of credit at half a second a second"
        bucket.check()
    assert lowered == [True, False]
