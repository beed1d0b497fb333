"""Commands that another distribution adds to ours, as `slackwater-lab` does: it names each in an entry point.

An entry point's name is the words after `slackwater`, joined by dots: `lab`, `governor.plan`. Only words that our own
tables name are looked for.
"""

from __future__ import annotations

import importlib.util
from importlib.metadata import entry_points

GROUP = "slackwater.commands"


def place_of(name: str) -> str | None:
    """`MODULE:ATTRIBUTE` of an added command; None: the distribution that has it is not installed."""
    for point in entry_points(group=GROUP, name=name):
        if importlib.util.find_spec(point.module.partition(".")[0]) is not None:
            return point.value
    return None
