"""A recording that is played again and again on one clock and one journal, as if it went on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import count

import msgspec

from slackwater.controller.playback.clock import Clock
from slackwater.controller.playback.events import Again, End, Event, Opened
from slackwater.controller.playback.player import Player
from slackwater.core.config import ControllerSettings
from slackwater.core.journal.retention import Keeper
from slackwater.detector.recordings.recording import Recording

KEEPS_MB = 100.0
"""The journal's size, however long it is played: the oldest Samples go."""


def rounds(
    recording: Recording,
    kinds: Mapping[str, str],
    settings: ControllerSettings,
    clock: Clock,
    wait: Callable[[float], None],
    again: bool,
) -> Iterator[Event]:
    """All that happens. `wait` is called with each time before what happens then; times are seconds since the begin of
    their own round. What the recording is, and its end, is told in the first round alone."""
    first_unix_s = clock()
    kept = msgspec.structs.replace(settings.journal, max_mb=KEEPS_MB, min_free_mb=0.0)
    for number in count(1):
        if number > 1:
            yield Again(round=number)
        with closing(Player(recording.later(clock() - first_unix_s), kinds, settings, clock)) as player:
            for event in player.play(wait):
                if number == 1 or not isinstance(event, Opened | End):
                    yield event
            if not again:
                return
            Keeper(player.journal, kept, wall=clock, elapsed=clock).keep()
