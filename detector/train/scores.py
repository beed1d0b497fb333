"""How Verdicts compare with a recording's labels: ticks by state, found noises and their delays, false episodes.

Times are the Samples' own. A running detector looks every `detector.tick_s`, so its delays are longer by up to that.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slackwater.core.messages import SLOW_ALONE, Verdict
from slackwater.detector.recordings.recording import Label, Recording
from slackwater.detector.train.reliability import Reliability
from slackwater.detector.train.slow_alone import Felt, was_slow

GRACE_S = 3.0
"""Ticks this soon after a label's end do not count: queues drain, and the episode is held a while."""
STATES = ("calm", "interference", "overload", "all_slow")
FOUND = (*STATES, "unknown")
SURE = 0.95
"""Confidence of the intervals."""
FELT = 1.5
"""Users notice a noise (`felt`) when the median of its node's p95 response times is at least this many times that of
calm."""


@dataclass(frozen=True)
class ScoredNoise:
    """A noise of a label, and its detection."""

    kind: str
    intensity: float
    delay_s: float | None
    """Time from its start to the first `interference`, or `slow`, of that node; None: it was missed."""
    harm: float | None
    """p95 response time during it over that in calm; None where either is unknown."""

    @property
    def felt(self) -> bool:
        return self.harm is not None and self.harm >= FELT


@dataclass
class Scores:
    """The comparison of Verdicts with labels; `merge` adds up over recordings."""

    confusion: dict[str, Counter[str]] = field(
        default_factory=lambda: {truth: Counter(dict.fromkeys(FOUND, 0)) for truth in STATES}
    )
    """Number of ticks by true state, then by found state."""
    noises: list[ScoredNoise] = field(default_factory=list)
    true_episodes: int = 0
    false_episodes: int = 0
    """Episodes that began while the node had no neighbour; of a server without a monitor those of them that began while
    it was not slow by itself either."""
    slow_episodes: int = 0
    """Episodes of servers without a monitor that began while they had no neighbour, and were slow by themselves."""
    slow_during: Counter[str] = field(default_factory=Counter)
    """Kind of the disturbance when such an episode began, or `nothing` -> number of such episodes."""
    false_during: Counter[str] = field(default_factory=Counter)
    """Kind of the disturbance when a false episode began, or `nothing` -> number of such episodes."""
    disturbed_node_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Kind of label that is no noise -> its seconds, summed over the nodes to which it was done."""
    calm_node_hours: float = 0.0
    """Node-hours without a neighbour."""
    reliability: Reliability = field(default_factory=Reliability)
    """Reliability of the stated probability, over the Verdicts that count (`_count_reliability`)."""

    def merge(self, other: Scores) -> None:
        for truth, found_states in other.confusion.items():
            self.confusion[truth].update(found_states)
        self.noises += other.noises
        self.true_episodes += other.true_episodes
        self.false_episodes += other.false_episodes
        self.false_during.update(other.false_during)
        self.slow_episodes += other.slow_episodes
        self.slow_during.update(other.slow_during)
        for kind, seconds in other.disturbed_node_s.items():
            self.disturbed_node_s[kind] += seconds
        self.calm_node_hours += other.calm_node_hours
        self.reliability.merge(other.reliability)

    def as_dict(self) -> dict[str, Any]:
        """The scores for `--json` and a model's metadata; a score is None where there was nothing to score."""
        states = {}
        for state in STATES:
            right = self.confusion[state][state]
            found_ticks = sum(row[state] for row in self.confusion.values())
            true_ticks = sum(self.confusion[state].values())
            states[state] = {
                "precision": _share(right, found_ticks),
                "recall": _share(right, true_ticks),
                "ticks": true_ticks,
            }
        kinds: dict[str, dict[str, Any]] = defaultdict(dict)
        for kind, intensity in sorted({(noise.kind, noise.intensity) for noise in self.noises}):
            noises = [noise for noise in self.noises if (noise.kind, noise.intensity) == (kind, intensity)]
            kinds[kind][f"{intensity:g}"] = of_noises(noises)
        hours = self.calm_node_hours
        return {
            "states": states,
            "confusion": self.confusion,
            **of_noises(self.noises),
            "felt": of_noises([noise for noise in self.noises if noise.felt]),
            "by_noise": dict(kinds),
            "by_kind": self._by_kind(),
            "delays_s": [round(noise.delay_s, 3) for noise in self.noises if noise.delay_s is not None],
            "precision": _share(self.true_episodes, self.true_episodes + self.false_episodes),
            "false_episodes": self.false_episodes,
            "false_during": dict(self.false_during),
            "slow_episodes": self.slow_episodes,
            "slow_during": dict(self.slow_during),
            "disturbances": self._disturbances(),
            "calm_node_hours": round(hours, 4),
            "false_episodes_per_node_hour": round(self.false_episodes / hours, 3) if hours else None,
            "false_episodes_per_node_day": round(self.false_episodes / hours * 24, 2) if hours else None,
            "false_episodes_per_node_day_interval": rate_interval(self.false_episodes, hours / 24),
            "reliability": self.reliability.as_dict(),
        }

    def _disturbances(self) -> dict[str, dict[str, Any]]:
        """Kind of label that is no noise, or `nothing` -> its node-seconds and false episodes."""
        calm_s = self.calm_node_hours * 3600
        seconds = {**self.disturbed_node_s, "nothing": max(0.0, calm_s - sum(self.disturbed_node_s.values()))}
        return {
            kind: {"node_s": round(node_s, 1), "false_episodes": self.false_during.get(kind, 0)}
            for kind, node_s in sorted(seconds.items())
        }

    def _by_kind(self) -> dict[str, dict[str, Any]]:
        """Kind -> recall and delays of all its noises, the same of those that were felt, and their median harm."""
        by_kind = {}
        for kind in sorted({noise.kind for noise in self.noises}):
            noises = [noise for noise in self.noises if noise.kind == kind]
            harm = _quantile([noise.harm for noise in noises if noise.harm is not None], 0.5)
            felt = of_noises([noise for noise in noises if noise.felt])
            by_kind[kind] = {**of_noises(noises), "harm_median": harm, "felt": felt}
        return by_kind


def of_noises(noises: Sequence[ScoredNoise]) -> dict[str, Any]:
    """Recall with its interval, and delays, of these noises."""
    delays_s = [noise.delay_s for noise in noises if noise.delay_s is not None]
    return {
        "noises": len(noises),
        "missed": len(noises) - len(delays_s),
        "recall": _share(len(delays_s), len(noises)),
        "recall_interval": share_interval(len(delays_s), len(noises)),
        "detection_delay_median_s": _quantile(delays_s, 0.5),
        "detection_delay_p95_s": _quantile(delays_s, 0.95),
    }


def share_interval(part: int, whole: int) -> list[float] | None:
    """Low and high end of the exact interval of a share (Clopper and Pearson, Biometrika 26, 1934); None without any.

    The trials are taken as independent.
    """
    from scipy.stats import binomtest

    if not whole:
        return None
    interval = binomtest(part, whole).proportion_ci(SURE, method="exact")
    return [round(float(interval.low), 4), round(float(interval.high), 4)]


def rate_interval(count: int, exposure: float) -> list[float] | None:
    """Low and high end of the exact interval of a Poisson rate (Garwood, Biometrika 28, 1936) per unit of exposure.

    None without exposure.
    """
    from scipy.stats import chi2

    if exposure <= 0.0:
        return None
    low = chi2.ppf((1 - SURE) / 2, 2 * count) / 2 if count else 0.0
    high = chi2.ppf((1 + SURE) / 2, 2 * count + 2) / 2
    return [round(float(low) / exposure, 2), round(float(high) / exposure, 2)]


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _quantile(values: Sequence[float], share: float) -> float | None:
    return round(float(np.quantile(values, share)), 3) if values else None


def score(recording: Recording, verdicts: Iterable[Verdict]) -> Scores:
    """Compares Verdicts on a recording with its labels."""
    scores = Scores()
    by_node: dict[str, list[Verdict]] = defaultdict(list)
    felt: dict[str, list[Felt]] = defaultdict(list)
    for verdict in verdicts:
        by_node[verdict.node].append(verdict)
        if (felt_now := felt_in(verdict, verdict.time_unix_s)) is not None:
            felt[verdict.node].append(felt_now)
    for node, ticks in by_node.items():
        labels = [label for label in recording.labels if label.node in (node, "*")]
        noises = [label for label in labels if label.state == "interference"]
        calm_ms = median_ms(
            tick.rt_p95_ms for tick in ticks if not any(reaches(label, tick.time_unix_s) for label in labels)
        )
        calm_s = ticks[-1].time_unix_s - ticks[0].time_unix_s
        felt_noises: list[Label] = []
        for noise in noises:
            calm_s -= noise.end_unix_s - noise.start_unix_s
            during = [tick for tick in ticks if noise.start_unix_s <= tick.time_unix_s < noise.end_unix_s]
            found_unix_s = next((tick.time_unix_s for tick in during if tick.state in SLOW_ALONE), None)
            loud_ms = median_ms(tick.rt_p95_ms for tick in during)
            harm = loud_ms / calm_ms if loud_ms and calm_ms else None
            delay_s = None if found_unix_s is None else found_unix_s - noise.start_unix_s
            scores.noises.append(ScoredNoise(noise.kind, noise.intensity, delay_s, harm))
            if scores.noises[-1].felt:
                felt_noises.append(noise)
        _count_reliability(scores.reliability, ticks, noises, felt_noises)
        scores.calm_node_hours += max(0.0, calm_s) / 3600
        for label in labels:
            if label.state != "interference":
                scores.disturbed_node_s[label.kind] += label.end_unix_s - label.start_unix_s
        before = "calm"
        for tick in ticks:
            began = tick.state in SLOW_ALONE and before not in SLOW_ALONE
            before = tick.state
            if began and any(reaches(noise, tick.time_unix_s) for noise in noises):
                scores.true_episodes += 1
            elif began:
                reaching = [label for label in labels if reaches(label, tick.time_unix_s)]
                latest = max(reaching, key=lambda label: label.start_unix_s, default=None)
                beside = "nothing" if latest is None else latest.kind
                if tick.state == "slow" and was_slow(node, tick.time_unix_s, felt):
                    scores.slow_episodes += 1
                    scores.slow_during[beside] += 1
                else:
                    scores.false_episodes += 1
                    scores.false_during[beside] += 1
            if not any(label.end_unix_s <= tick.time_unix_s < label.end_unix_s + GRACE_S for label in labels):
                state = "interference" if tick.state in SLOW_ALONE else tick.state
                scores.confusion[recording.truth(node, tick.time_unix_s)][state] += 1
    return scores


def felt_in(verdict: Verdict, at_s: float) -> Felt | None:
    """What users felt by a Verdict of a server without a monitor, or with one; None where nothing was answered."""
    rt_ms = verdict.rt_mean_ms if verdict.rt_p95_ms is None else verdict.rt_p95_ms
    return None if rt_ms is None else Felt(at_s, rt_ms, verdict.state == "calm")


def _count_reliability(
    reliability: Reliability, ticks: Iterable[Verdict], noises: Sequence[Label], felt: Sequence[Label]
) -> None:
    """Counts a node's Verdicts that state a probability.

    Verdicts beside a noise that users did not feel, or just after any noise, are left out: the truth is not known.
    """
    counted = []
    for tick in ticks:
        beside = any(noise.start_unix_s <= tick.time_unix_s < noise.end_unix_s for noise in felt)
        if tick.probability is not None and (beside or not any(reaches(noise, tick.time_unix_s) for noise in noises)):
            counted.append((tick.probability, beside))
    reliability.count([stated for stated, _ in counted], [beside for _, beside in counted])


def median_ms(times_ms: Iterable[float | None]) -> float | None:
    """Median of the known times; None without any."""
    known_ms = [time_ms for time_ms in times_ms if time_ms is not None]
    return float(np.median(known_ms)) if known_ms else None


def reaches(label: Label, time_unix_s: float) -> bool:
    """Whether a label is going on at a time, or has just ended (`GRACE_S`)."""
    return label.start_unix_s <= time_unix_s < label.end_unix_s + GRACE_S
