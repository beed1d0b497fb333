"""Plays a recording to a Judge as the live bus would, and compares its Verdicts with the labels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from detector.judge import Judge
from detector.recording import Label, Recording
from slackwater.messages import Sample, Verdict

TICK_S = 0.05
"""The detector's default `tick_s`."""
GRACE_S = 3.0
"""Ticks this soon after a label's end count neither for nor against: queues drain, and the episode is held a while."""
STATES = ("calm", "interference", "overload", "all_slow")


def batches(recording: Recording, tick_s: float = TICK_S) -> Iterator[tuple[float, list[Sample]]]:
    """The Samples as a detector with this tick would have taken them: (seconds since the start, those of the tick)."""
    start = recording.samples[0].time_unix_s
    batch: list[Sample] = []
    tick = 0
    for sample in recording.samples:
        at = int((sample.time_unix_s - start) / tick_s)
        if at != tick and batch:
            yield (tick + 1) * tick_s, batch
            batch = []
        tick = at
        batch.append(sample)
    if batch:
        yield (tick + 1) * tick_s, batch


def play(recording: Recording, judge: Judge, before: Callable[[float], None] | None = None) -> list[Verdict]:
    """All Verdicts on a recording. `before` is called with each tick's wall time first."""
    verdicts: list[Verdict] = []
    for now_s, batch in batches(recording):
        if before is not None:
            before(batch[0].time_unix_s)
        verdicts += judge.tick(now_s, batch)
    return verdicts


@dataclass
class Scores:
    """How Verdicts compare with labels; add up over recordings with `merge`."""

    confusion: dict[str, dict[str, int]] = field(
        default_factory=lambda: {truth: dict.fromkeys((*STATES, "unknown"), 0) for truth in STATES}
    )
    """Ticks by truth, then by the state found."""
    delays_s: list[float] = field(default_factory=list)
    """From the start of a neighbour's noise to the first `interference` of that node."""
    missed: int = 0
    """Noises that were not found at all."""
    false_episodes: int = 0
    """Episodes of interference that began while the node had no neighbour."""
    calm_node_hours: float = 0.0
    """Node-hours without a neighbour."""

    def merge(self, other: Scores) -> None:
        for truth, found in other.confusion.items():
            for state, count in found.items():
                self.confusion[truth][state] += count
        self.delays_s += other.delays_s
        self.missed += other.missed
        self.false_episodes += other.false_episodes
        self.calm_node_hours += other.calm_node_hours

    def as_dict(self) -> dict[str, Any]:
        """For `--json` and a model's metadata; None where there was nothing to score."""
        states = {}
        for state in STATES:
            right = self.confusion[state][state]
            found = sum(row[state] for row in self.confusion.values())
            there = sum(self.confusion[state].values())
            states[state] = {
                "precision": round(right / found, 4) if found else None,
                "recall": round(right / there, 4) if there else None,
                "ticks": there,
            }
        return {
            "states": states,
            "confusion": self.confusion,
            "noises": len(self.delays_s) + self.missed,
            "missed": self.missed,
            "detection_delay_median_s": _quantile(self.delays_s, 0.5),
            "detection_delay_p95_s": _quantile(self.delays_s, 0.95),
            "false_episodes": self.false_episodes,
            "calm_node_hours": round(self.calm_node_hours, 4),
            "false_episodes_per_node_hour": round(self.false_episodes / self.calm_node_hours, 3)
            if self.calm_node_hours
            else None,
        }


def _quantile(values: Sequence[float], share: float) -> float | None:
    return round(float(np.quantile(values, share)), 3) if values else None


def score(recording: Recording, verdicts: Sequence[Verdict]) -> Scores:
    """Compares Verdicts on a recording with its labels."""
    scores = Scores()
    by_node: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        by_node[verdict.node].append(verdict)
    for node, ticks in by_node.items():
        noises = [label for label in recording.labels if label.node in (node, "*") and label.state == "interference"]
        calm_s = ticks[-1].time_unix_s - ticks[0].time_unix_s
        for noise in noises:
            calm_s -= noise.end_unix_s - noise.start_unix_s
            found = [
                tick.time_unix_s
                for tick in ticks
                if tick.state == "interference" and noise.start_unix_s <= tick.time_unix_s < noise.end_unix_s
            ]
            if found:
                scores.delays_s.append(found[0] - noise.start_unix_s)
            else:
                scores.missed += 1
        scores.calm_node_hours += max(0.0, calm_s) / 3600
        before = "calm"
        for tick in ticks:
            began = tick.state == "interference" and before != "interference"
            before = tick.state
            if began and not any(_covers(noise, tick.time_unix_s) for noise in noises):
                scores.false_episodes += 1
            if not any(
                label.node in (node, "*") and label.end_unix_s <= tick.time_unix_s < label.end_unix_s + GRACE_S
                for label in recording.labels
            ):
                scores.confusion[recording.truth(node, tick.time_unix_s)][tick.state] += 1
    return scores


def _covers(label: Label, time_unix_s: float) -> bool:
    return label.start_unix_s <= time_unix_s < label.end_unix_s + GRACE_S
