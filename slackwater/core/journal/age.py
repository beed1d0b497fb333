"""How old the journal's rows are, by an order that no clock step can change.

Rows are dated by the wall clock, which can be set to anything. So the journal keeps a count of the seconds that passed
(its age, by the monotonic clock), and beside it what the wall clock showed: a list of segments in which the two ran
alike. "The last day" is then everything that the wall clock showed during the last 86,400 s of age. What is dated
outside of it is older, also if its date is in the future, since the clock was set back afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

BEFORE_S = 10 * 365.25 * 86400.0
"""The clock counts as right for this time before the first segment was written."""
ALIKE_S = 2.0
"""The wall clock is slewed without a step: a new segment begins when it is off by more."""
MOST_AWAY_S = 3600.0
"""The longest stop that is believed: between two runs only the wall clock shows how long nothing ran. Rows from before
a longer stop are kept that much longer."""


class Segment(msgspec.Struct, frozen=True):
    """Time in which the wall clock ran as the monotonic one."""

    begin_age_s: float
    end_age_s: float
    begin_unix_s: float

    @property
    def end_unix_s(self) -> float:
        return self.begin_unix_s + self.end_age_s - self.begin_age_s


def first(newest_unix_s: float) -> Segment:
    """The first segment of a journal that has none, and whose newest row was written at this time."""
    return Segment(-BEFORE_S, 0.0, newest_unix_s - BEFORE_S)


def advance(segments: Sequence[Segment], now_unix_s: float, elapsed_s: float | None) -> list[Segment]:
    """The segments (at least one, oldest first) after `elapsed_s`; None: we did not run, so nobody counted."""
    *before, last = segments
    if elapsed_s is None:
        elapsed_s = min(max(0.0, now_unix_s - last.end_unix_s), MOST_AWAY_S)
    went_on = msgspec.structs.replace(last, end_age_s=last.end_age_s + elapsed_s)
    if abs(now_unix_s - went_on.end_unix_s) <= ALIKE_S:
        return [*before, went_on]
    # It was set between the last time and now, so the two overlap: either may have dated what came in between.
    return [*before, went_on, Segment(last.end_age_s, went_on.end_age_s, now_unix_s - elapsed_s)]


def shown(segments: Sequence[Segment], last_s: float) -> tuple[float, float]:
    """The earliest and the latest time (Unix) that the wall clock showed during the last `last_s` of age."""
    from_age_s = segments[-1].end_age_s - last_s
    among = [segment for segment in segments if segment.end_age_s >= from_age_s]
    return (
        min(segment.begin_unix_s + max(0.0, from_age_s - segment.begin_age_s) for segment in among),
        max(segment.end_unix_s for segment in among),
    )
