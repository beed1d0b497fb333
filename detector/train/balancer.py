"""Recordings of monitors as the balancer would have made them, to train and score what judges servers without one."""

from __future__ import annotations

from dataclasses import replace

from slackwater.core.messages import Sample
from slackwater.detector.recordings.recording import Recording


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
