"""What policies saw in a recorded run."""

from __future__ import annotations

import json

import msgspec

from slackwater_lab.experiment.decisions import Look, Seen
from tests.support.paths import TRACES

RECORDED = TRACES / "looks.json"
"""A look a second from a run of the lab: half of the capacity asked for, a memory-walking neighbour beside host1 from
the seventh look to the 25th. Verdicts are the shipped model's on the same Samples. The weights were nearly even
throughout, so what a policy does here changes nothing of what it sees next."""


def looks(load: float = 0.5) -> list[Look]:
    looks = []
    for line in json.loads(RECORDED.read_text()):
        servers = msgspec.convert(line["servers"], list[Seen])
        looks.append(Look(line["now_s"], servers, load))
    return looks
