"""What a neighbour left waiting: its label ends with the queue that it made. Pure.

Noises stop at once, and what waited then is answered for seconds. These Samples are no calm, and to a model that is
taught that they are, users who wait say nothing.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict

from slackwater.core.messages import Sample
from slackwater.detector.recordings.recording import Label, Recording
from slackwater.detector.train.scores import FELT, median_ms

LONGEST_S = 10.0
"""A queue counts as its neighbour's for this long."""


def with_queues(recording: Recording) -> Recording:
    """The recording, with each noise's label until its node's users no longer wait longer than in calm."""
    by_node: dict[str, list[Sample]] = defaultdict(list)
    for sample in recording.samples:
        by_node[sample.node].append(sample)
    labels = []
    for label in recording.labels:
        samples = by_node.get(label.node, [])
        if label.state == "interference" and samples:
            beside = [other for other in recording.labels if other.node in (label.node, "*")]
            label = dataclasses.replace(label, end_unix_s=_served_unix_s(label, samples, beside))
        labels.append(label)
    return dataclasses.replace(recording, labels=labels)


def _served_unix_s(label: Label, samples: list[Sample], beside: list[Label]) -> float:
    """The time from which a noise's node is calm. `beside`: all labels of the node."""
    usual_ms = median_ms(
        _p95_ms(sample)
        for sample in samples
        if not any(other.start_unix_s <= sample.time_unix_s < other.end_unix_s + LONGEST_S for other in beside)
    )
    last_unix_s = min(
        [label.end_unix_s + LONGEST_S]
        + [other.start_unix_s for other in beside if other.start_unix_s > label.end_unix_s]
    )
    served_unix_s = label.end_unix_s
    for sample in samples:
        waited_ms = _p95_ms(sample)
        if usual_ms is None or waited_ms is None or not label.end_unix_s <= sample.time_unix_s < last_unix_s:
            continue
        if waited_ms < FELT * usual_ms:
            break
        served_unix_s = sample.time_unix_s
    return served_unix_s


def _p95_ms(sample: Sample) -> float | None:
    return None if sample.traffic is None else sample.traffic.rt_p95_ms
