"""Neighbours beside all servers: a recording from the lab is judged anew, and lbengine decides on the Verdicts.

The weights were equal while it was recorded, so what is played says nothing of servers that have lost their weight.
"""

from __future__ import annotations

import itertools

import pytest

from slackwater.core.messages import Verdict
from slackwater.detector.recordings.recording import Label, Recording, read
from slackwater.detector.train.replay import batches
from slackwater.lbengine.decision.position import Position
from tests.support.judges import new_judge
from tests.support.paths import RECORDINGS
from tests.support.pool_shown import decided, server, snapshot

RECORDING = RECORDINGS / "events-all-noisy.parquet"
AT_ONCE, ONE_AFTER_THE_OTHER, ONE = 0, 1, 2
Weights = list[tuple[float, dict[str, int]]]
"""Seconds of wall time, weight by server."""


@pytest.fixture(scope="module")
def recording() -> Recording:
    return read(RECORDING)


@pytest.fixture(scope="module")
def played(recording: Recording) -> Weights:
    judge = new_judge()
    verdicts: dict[str, Verdict] = {}
    positions = {name: Position(100) for name in recording.nodes}
    steps: Weights = []
    for now_s, batch in batches(recording):
        verdicts |= {verdict.node: verdict for verdict in judge.tick(now_s, batch)}
        servers = tuple(server(name, positions[name].weight) for name in recording.nodes)
        decisions = decided(
            snapshot(servers),
            positions,
            verdicts,
            now_s=now_s,
            rates={name: verdict.rps or 0.0 for name, verdict in verdicts.items()},
            total_rps=sum(verdict.rps or 0.0 for verdict in verdicts.values()),
        )
        positions = {name: decision.position for name, decision in decisions.servers.items()}
        steps.append((batch[-1].time_unix_s, {name: position.weight for name, position in positions.items()}))
    return steps


def noises(recording: Recording) -> list[list[Label]]:
    """Labels that overlap, together."""
    groups: list[list[Label]] = []
    for label in sorted(recording.labels, key=lambda label: label.start_unix_s):
        if not groups or label.start_unix_s > groups[-1][0].end_unix_s:
            groups.append([])
        groups[-1].append(label)
    return groups


def during(played: Weights, labels: list[Label], after_s: float = 4.0) -> Weights:
    begin_s, end_s = labels[0].start_unix_s, max(label.end_unix_s for label in labels) + after_s
    return [(at_s - begin_s, weights) for at_s, weights in played if begin_s <= at_s <= end_s]


def below_s(weights: Weights, server: str) -> float:
    """Seconds for which the server had less than its baseline."""
    steps = itertools.pairwise(weights)
    return sum(then_s - at_s for (at_s, weights), (then_s, _) in steps if weights[server] < 100)


def test_the_recording_holds_the_three_stories(recording: Recording) -> None:
    labelled = noises(recording)
    assert [len(labels) for labels in labelled] == [3, 3, 1]
    first = [max(label.start_unix_s for label in labels) - labels[0].start_unix_s for labels in labelled]
    assert first[AT_ONCE] < 0.1 < 0.4 < first[ONE_AFTER_THE_OTHER]


def test_neighbours_that_begin_beside_all_at_once_move_no_weight(recording: Recording, played: Weights) -> None:
    moved = [row for row in during(played, noises(recording)[AT_ONCE]) if set(row[1].values()) != {100}]
    assert not moved


def test_what_the_first_one_lost_is_given_back_when_the_others_are_as_slow(
    recording: Recording, played: Weights
) -> None:
    labels = noises(recording)[ONE_AFTER_THE_OTHER]
    story = during(played, labels)
    assert sum(below_s(story, server) for server in recording.nodes) < 1.0
    all_on_s = labels[-1].start_unix_s - labels[0].start_unix_s
    assert all(set(weights.values()) == {100} for at_s, weights in story if at_s > all_on_s + 0.6)


def test_one_neighbour_alone_is_met_within_three_ticks_and_moves_no_other_server(
    recording: Recording, played: Weights
) -> None:
    story = during(played, noises(recording)[ONE], after_s=0.0)
    assert any(weights["host1"] < 100 for at_s, weights in story if at_s <= 0.6)
    assert any(weights["host1"] < 10 for at_s, weights in story if at_s <= 1.2)
    assert below_s(story, "host1") > 0.7 * (story[-1][0] - story[0][0])
    assert all(weights["host2"] == weights["host3"] == 100 for _, weights in story)
