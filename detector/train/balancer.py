"""The tree for servers without a monitor: from recordings of monitors, of which only the traffic is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from slackwater.core.messages import Sample
from slackwater.detector.classify.tree import BALANCER, KINDS, Tree, model_of
from slackwater.detector.recordings.recording import Recording
from slackwater.detector.train import levels, training

KIND = KINDS[BALANCER]


def seen_from_balancer(recording: Recording) -> Recording:
    """The recording as a balancer would have made it: of each Sample only what it sees, the traffic, is left."""
    return replace(recording, samples=[_outside(sample) for sample in recording.samples])


def _outside(sample: Sample) -> Sample:
    return Sample(
        v=sample.v,
        node=sample.node,
        pool=sample.pool,
        time_unix_s=sample.time_unix_s,
        boot_id=sample.boot_id,
        seq=sample.seq,
        period_s=sample.period_s,
        next_within_s=sample.next_within_s,
        source="balancer",
        traffic=sample.traffic,
    )


def fit(
    recordings: Sequence[Recording],
    of_monitors: dict[str, Any],
    coefficients: Sequence[float],
    progress: training.Progress,
) -> tuple[Any, dict[str, Any]]:
    """The classifier of servers without a monitor and its tree's arrays, as `Tree.of` reads them.

    `of_monitors`: the arrays of the other trees. Raises `slackwater.detector.train.training.TrainingError` where the
    recordings have too little traffic.
    """
    seen = [seen_from_balancer(recording) for recording in recordings]
    parts = [training.learn(recording).of_kind(BALANCER) for recording in training.track(seen, KIND, progress)]
    classifier = training.fit_tree(parts)
    first = training.trees_of({KIND: classifier}, lambda tree, _: training.counted(tree, parts))
    ticks = training.show(seen, model_of("first", {**of_monitors, **first}, coefficients, {}), progress)
    trees = training.trees_of({KIND: classifier}, lambda tree, kind: levels.evidence(ticks, tree, kind))
    arrays = trees[KIND]
    arrays["calm"] = levels.calm_sums(ticks, Tree.of(arrays), BALANCER).as_dict()
    return classifier, arrays
