"""Of which nodes another controller speaks, and what a node that lies can reach by it."""

from __future__ import annotations

import math

import pytest

from slackwater.core.messages import Sample, Traffic
from slackwater.lbengine.view.others import BUSY_WITHIN_S, LONGEST_PROMISE_S, OtherControllers

OURS, SMALLER, LARGER = "b", "a", "c"


def sample(node: str, boot_id: str, rps: float | None = None, within_s: float | None = 1.0) -> Sample:
    traffic = None if rps is None else Traffic(rps=rps)
    return Sample(1, node, "web", 1.0, boot_id, 0, 0.2, next_within_s=within_s, traffic=traffic, source="balancer")


@pytest.fixture
def others() -> OtherControllers:
    return OtherControllers(OURS, unannounced_s=3.0)


def test_whoever_speaks_for_a_node_silences_that_node_alone_and_not_for_ever(others: OtherControllers) -> None:
    for boot_id in (SMALLER, LARGER):
        others.hear(sample("web1", boot_id, rps=1e9, within_s=math.inf), 100.0, we_are_busy=False)
    assert others.speak_of("web1", 100.0)
    assert not others.speak_of("web2", 100.0)
    assert not others.speak_of("web1", 100.0 + LONGEST_PROMISE_S)


@pytest.mark.parametrize("boot_id", [SMALLER, LARGER])
def test_the_controller_whose_balancer_has_requests_speaks_of_its_idle_servers_too(
    others: OtherControllers, boot_id: str
) -> None:
    others.hear(sample("web1", boot_id, rps=5.0), 100.0, we_are_busy=False)
    others.hear(sample("web2", boot_id, rps=0.0), 100.5, we_are_busy=False)
    assert others.speak_of("web2", 100.6)
    later_s = 100.5 + BUSY_WITHIN_S
    others.hear(sample("web2", boot_id, rps=0.0), later_s, we_are_busy=False)
    assert others.speak_of("web2", later_s) == (boot_id == SMALLER), "both are idle"


@pytest.mark.parametrize("rps", [None, 0.0])
def test_an_idle_controller_is_not_listened_to_while_this_balancer_has_requests(
    others: OtherControllers, rps: float | None
) -> None:
    others.hear(sample("web1", SMALLER, rps), 100.0, we_are_busy=True)
    assert not others.speak_of("web1", 100.0)


def test_of_two_alike_the_smaller_boot_id_speaks_and_the_own_host_is_no_other(others: OtherControllers) -> None:
    for node, boot_id in (("web1", SMALLER), ("web2", LARGER), ("web3", OURS)):
        others.hear(sample(node, boot_id, rps=1.0, within_s=None), 100.0, we_are_busy=True)
    assert [others.speak_of(node, 102.9) for node in ("web1", "web2", "web3")] == [True, False, False]
    assert not others.speak_of("web1", 103.0)
