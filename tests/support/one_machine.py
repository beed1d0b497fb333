"""The detector's state machine of a single node. For tests only: the detector steps all nodes at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detector.classify.episodes import CODES, STATES, StateMachines
from detector.classify.evidence import QUIET, Evidence
from slackwater.messages import State

EVIDENCE = Evidence(calm=(99_950, 50, 100, 10), neighbour=(100, 10, 200, 700))
"""Round figures: a quiet tick says -2.3, a faint one 3.0, a weak one 5.0, a strong one 8.9."""
FAINT, WEAK, STRONG = 1, 2, 3
THRESHOLD = 12.0
"""Two strong ticks, with a quiet one between them too, or three weak ones."""


@dataclass
class Status:
    """What a step made of the node."""

    state: State
    since_unix_s: float
    episode: int
    why: str
    began: bool
    waits: bool
    probability: float


class OneMachine:
    """One slot of `StateMachines`."""

    def __init__(self, calm_dwell_s: float, now_s: float, label_unix_s: float) -> None:
        self.machines = StateMachines(calm_dwell_s)
        self.machines.resize(1)
        self.machines.add_node(0, now_s, label_unix_s)

    @property
    def state(self) -> State:
        return STATES[int(self.machines.state[0])]

    def step(
        self,
        now_s: float,
        label_unix_s: float,
        seen: State,
        *,
        level: int = STRONG,
        weight: float = 1.0,
        low_traffic: bool = False,
        residual: str = "",
        answered: bool = False,
    ) -> Status:
        """Takes one tick in; `residual` is what shows, in words."""
        steps = self.machines.step(
            np.array([0]),
            now_s,
            np.array([label_unix_s]),
            np.array([CODES[seen]]),
            says=np.array([EVIDENCE.ratios[QUIET if seen == "calm" else level]]),
            quiet=EVIDENCE.ratios[[QUIET]],
            threshold=np.array([THRESHOLD]),
            weight=weight,
            low_traffic=np.array([low_traffic]),
            residual=np.array([bool(residual)]),
            answered=np.array([answered]),
        )
        why = steps.describe(0, lambda _: residual)
        state = STATES[int(steps.state[0])]
        return Status(
            state,
            float(steps.since_unix_s[0]),
            int(steps.episode[0]),
            why,
            bool(steps.began[0]),
            bool(steps.waits[0]),
            float(steps.probability[0]),
        )
