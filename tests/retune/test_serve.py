"""The second stage end to end, from Samples to a turned knob and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.needs_wsengine import pytestmark as needs_wsengine
from tests.support.real_haproxy import needs_haproxy
from tests.support.retune_site import BY_HAND, RetuneSite, whole_site
from tests.support.served_site import until, weights

pytestmark = [needs_haproxy, *needs_wsengine]
LEASE_S = 60.0
"""However slow the machine is, it does not end by itself."""


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[RetuneSite]:
    with whole_site(tmp_path) as whole:
        yield whole


def test_a_long_episode_is_drained_retuned_reported_and_given_back(whole: RetuneSite) -> None:
    whole.begin("act", LEASE_S)
    assert "retune" in whole.children()
    whole.wait_until_turned()
    until(lambda: weights(whole.balancer)["host1"] < 100, "a lower weight: the neighbour is still there")

    def row() -> Any:
        return {server["node"]: server for server in (whole.status() or {"rows": []})["rows"]}.get("web1", {})

    until(lambda: row().get("retuned") == ["streaming.num_threads 4 → 16"], "`status` tells it")
    by_retune = until(lambda: whole.changes_by("retune"), "the Order in the journal")
    by_engine = until(lambda: whole.changes_by("wsengine"), "what came of it in the journal")
    assert by_retune[-1].what == "order streaming.num_threads"
    assert by_engine[-1].follows == by_retune[-1].id
    assert by_retune[-1].why.startswith(f"for {LEASE_S:g} s: interference: ")
    whole.nodes.loud = False
    until(lambda: whole.scene.text() == BY_HAND, "the knob is as before")
    until(lambda: set(weights(whole.balancer).values()) == {100}, "the weights are as before")
    back = until(lambda: [c for c in whole.changes_by("wsengine") if c.why.startswith("put back")], "it is recorded")
    assert back[0].why == "put back: given back by retune: the episode is over"
    printed = whole.cli("why", "web1").stdout
    assert "streaming.num_threads of web1: 4 → 16, by Slackwater: interference: " in printed
    assert "given back by retune" in printed


def test_in_observe_it_is_recorded_and_nothing_is_touched(whole: RetuneSite) -> None:
    whole.begin("observe")
    (would,) = until(lambda: whole.changes_by("retune"), "what it would do")
    assert (would.what, would.before, would.after, would.applied) == ("streaming.num_threads", 4, 16, False)
    assert whole.scene.text() == BY_HAND
    assert not whole.scene.reloads.exists()


def test_a_pause_gives_everything_back(whole: RetuneSite) -> None:
    whole.begin("act", LEASE_S)
    whole.wait_until_turned()
    until(lambda: whole.cli("pause", "--pool", "web", "--why", "deploy").returncode == 0, "the pause")
    until(lambda: whole.scene.text() == BY_HAND, "the knob is as before")
    until(lambda: set(weights(whole.balancer).values()) == {100}, "the weights are as before")
