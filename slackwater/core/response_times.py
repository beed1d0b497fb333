"""Response times counted in buckets, which add up over periods and servers. Pure.

There are 240 buckets in 15 classes, and one more for what is longer. The classes' bounds are those that the monitor
shows to Prometheus; between them the bounds are a geometric series. `sniffer/src/buckets.rs` has the same bounds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

CLASS_BOUNDS_S = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the classes."""
BUCKETS_OF_CLASS = 16
LAST_BUCKET = len(CLASS_BOUNDS_S) * BUCKETS_OF_CLASS
"""The number of the bucket without an upper bound."""


def upper_bound_s(bucket: int) -> float:
    """The highest time in the bucket of this number; infinite for the last one."""
    if bucket >= LAST_BUCKET:
        return float("inf")
    number, place = divmod(bucket, BUCKETS_OF_CLASS)
    upper_s, share = CLASS_BOUNDS_S[number], (place + 1) / BUCKETS_OF_CLASS
    if number == 0:
        return upper_s * share
    return float(upper_s * (CLASS_BOUNDS_S[number - 1] / upper_s) ** (1.0 - share))


@dataclass
class Histogram:
    """Numbers of response times by bucket."""

    sum_s: float = 0.0
    """Sum of the response times."""
    counts: dict[int, int] = field(default_factory=dict)
    """Number of a bucket -> how many times are in it; empty buckets are missing."""

    @property
    def count(self) -> int:
        return sum(self.counts.values())

    def add(self, sum_s: float, counts: Iterable[tuple[int, int]]) -> None:
        self.sum_s += sum_s
        for bucket, count in counts:
            self.counts[bucket] = self.counts.get(bucket, 0) + count

    def since(self, before: Histogram) -> Histogram:
        """What came after `before`, an earlier state of this one."""
        counts = {bucket: count - before.counts.get(bucket, 0) for bucket, count in self.counts.items()}
        return Histogram(
            max(0.0, self.sum_s - before.sum_s), {bucket: count for bucket, count in counts.items() if count > 0}
        )

    def cumulative(self) -> list[int]:
        """The number of response times up to each of `CLASS_BOUNDS_S`."""
        by_class = [0] * (len(CLASS_BOUNDS_S) + 1)
        for bucket, count in self.counts.items():
            by_class[bucket // BUCKETS_OF_CLASS] += count
        return [sum(by_class[: number + 1]) for number in range(len(CLASS_BOUNDS_S))]

    def percentile_s(self, share: float) -> float | None:
        """The middle of the bucket with the percentile (nearest rank); None where there are too few for it. What is
        longer than the last bound counts as that bound."""
        total = self.count
        if total * (1.0 - share) < 1.0 - 1e-9:
            return None
        rank, passed = share * total, 0
        for bucket in sorted(self.counts):
            passed += self.counts[bucket]
            if passed >= rank - 1e-9:
                if bucket >= LAST_BUCKET:
                    return CLASS_BOUNDS_S[-1]
                return (upper_bound_s(bucket) + (upper_bound_s(bucket - 1) if bucket else 0.0)) / 2.0
        return None
