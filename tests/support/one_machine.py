"""The detector's state machine of a single node. For tests only: the detector steps all nodes at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slackwater.core.messages import State
from slackwater.detector.classify.episodes import CODES, SIGNS, STATES, Signs, StateMachines
from slackwater.detector.classify.evidence import QUIET, REFERENCE_S, Evidence
from slackwater.detector.explain import episode_reason, proof_numbers

EVIDENCE = Evidence(calm=(99_950, 50, 100, 10), neighbour=(100, 10, 200, 700))
"""Round figures: a quiet tick says -2.3, a faint one 3.0, a weak one 5.0, a strong one 8.9."""
FAINT, WEAK, STRONG = 1, 2, 3
THRESHOLD = 12.0
"""Two strong ticks, with a quiet one between them too, or three weak ones."""
SIGNAL = "the probe's wait"
"""The one signal that is known here."""


@dataclass(frozen=True)
class Shows:
    """What a tick shows of a neighbour where there are no requests."""

    moments: int = 0
    waited: int = 0
    loud: bool | None = None
    """The signal is beyond its scale; None: it has no value."""
    answered: bool = False
    slow: bool = False
    rps: float = 0.0
    excused: bool = False


NOTHING = Shows()
ANSWERED, ANSWERED_SLOWLY = Shows(answered=True), Shows(answered=True, slow=True)
LOUD, QUIET_SIGNAL = Shows(loud=True), Shows(loud=False)


def signs(*ticks: Shows) -> Signs:
    """One row each."""
    return Signs(
        rps=np.array([tick.rps for tick in ticks]),
        moments=np.array([float(tick.moments) for tick in ticks]),
        waited=np.array([float(tick.waited) for tick in ticks]),
        loud=np.array([[bool(tick.loud)] for tick in ticks]),
        known=np.array([[tick.loud is not None] for tick in ticks]),
        answered=np.array([tick.answered for tick in ticks]),
        slow=np.array([tick.slow for tick in ticks]),
        excused=np.array([tick.excused for tick in ticks]),
    )


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
    calm_shows_within_s: float
    needed: float
    """Evidence that proves calm."""


class OneMachine:
    """One slot of `StateMachines`."""

    def __init__(self, calm_dwell_s: float, now_s: float, label_unix_s: float) -> None:
        self.machines = StateMachines(calm_dwell_s, (SIGNAL,))
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
        shows: Shows | None = None,
    ) -> Status:
        """Takes one tick in. Without `shows` a server with requests answers one, slowly if it looks so."""
        if shows is None:
            shows = NOTHING if low_traffic else Shows(answered=True, slow=seen != "calm")
        steps = self.machines.step(
            np.array([0]),
            now_s,
            np.array([label_unix_s]),
            np.array([CODES[seen]]),
            says=np.array([EVIDENCE.ratios[QUIET if seen == "calm" else level]]),
            quiet=EVIDENCE.ratios[[QUIET]],
            threshold=np.array([THRESHOLD]),
            period_s=weight * REFERENCE_S,
            low_traffic=np.array([low_traffic]),
            signs=signs(shows),
        )
        return Status(
            STATES[int(steps.state[0])],
            float(steps.since_unix_s[0]),
            int(steps.episode[0]),
            "; ".join([episode_reason(steps, 0), *proof_numbers(steps, 0, (*SIGNS, SIGNAL))]),
            bool(steps.began[0]),
            bool(steps.waits[0]),
            float(steps.probability[0]),
            float(steps.calm_shows_within_s[0]),
            float(steps.proof.needed[0]),
        )
