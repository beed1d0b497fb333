"""Which variants the evaluation measures in which scenario."""

from __future__ import annotations

from slackwater_lab.compare import goals
from slackwater_lab.compare.blocks import Question
from slackwater_lab.experiment.scenarios import SCENARIOS

EVERYWHERE = ("leastconn", "slackwater-lc", "nginx-least-time", "outlier")
"""Variants of every scenario: ours, stock `leastconn` and the best peers."""
ROUNDROBIN = ("static", "slackwater", "oracle-split")
MORE: dict[str, tuple[str, ...]] = {
    "two": (*ROUNDROBIN, "oracle-split-lc"),
    "two-dokuwiki": (*ROUNDROBIN, "oracle-split-lc"),
    "load-80": ("observed-lc",),
    "one": (*ROUNDROBIN, "oracle-split-lc", "oracle", "oracle-lc"),
    "one-70": ("random2", "bounded-random", "traefik-least-time", "agent-check", "ice", "wsengine-only"),
}
"""Scenario -> variants besides."""
FIRST = ("two", "one", *goals.BETTER, "two-dokuwiki")
VARIANTS: dict[str, tuple[str, ...]] = {
    name: (*EVERYWHERE, *MORE.get(name, ())) for name in dict.fromkeys((*FIRST, *SCENARIOS))
}
"""Scenario -> variants, in the order of measurement."""


def question() -> Question:
    return Question(VARIANTS, goals.ROUNDS)
