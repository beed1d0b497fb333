"""Plays a recording to a Judge as the live bus would."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from slackwater.core.messages import Sample, Verdict
from slackwater.detector.judge import Judge
from slackwater.detector.recordings.recording import Recording

TICK_S = 0.05
"""The detector's default `tick_s`."""


def batches(recording: Recording, tick_s: float = TICK_S) -> Iterator[tuple[float, list[Sample]]]:
    """(seconds since the start, Samples of a tick) for each tick of a detector that would have received them."""
    start = recording.received_unix_s[0]
    batch: list[Sample] = []
    tick = 0
    for sample, received_unix_s in zip(recording.samples, recording.received_unix_s, strict=True):
        sample_tick = int((received_unix_s - start) / tick_s)
        if sample_tick != tick and batch:
            yield (tick + 1) * tick_s, batch
            batch = []
        tick = sample_tick
        batch.append(sample)
    if batch:
        yield (tick + 1) * tick_s, batch


def play(recording: Recording, judge: Judge, before: Callable[[float], None] | None = None) -> list[Verdict]:
    """All Verdicts on a recording. `before` is called before each tick, with its wall time (Unix, in s)."""
    verdicts: list[Verdict] = []
    for now_s, batch in batches(recording):
        if before is not None:
            before(batch[0].time_unix_s)
        verdicts += judge.tick(now_s, batch)
    return verdicts
