"""Who runs each policy in the lab: one table."""

from __future__ import annotations

from collections.abc import Callable

from lab.cluster.lab import Lab
from lab.compare.actors import Actor, Answering, Knowing, Looking, Passive, Serving
from lab.compare.scenarios import Scenario
from lab.compare.web_actors import Retuning, TwoStages

ACTORS: dict[str, Callable[[Lab, Scenario, str], Actor]] = {
    "static": Passive,
    "leastconn": Passive,
    "random2": Passive,
    "agent-check": Answering,
    "outlier": Looking,
    "wsengine-only": Retuning,
    "ice": TwoStages,
    "slackwater": Serving,
    "slackwater-lc": Serving,
    "oracle": Knowing,
    "oracle-lc": Knowing,
}
"""By the name of a policy."""
