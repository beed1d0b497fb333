"""From ticks to episodes: into a state with 2 of the last 3 Samples, out of it after a calm dwell. Pure.

The dwell grows when episodes follow each other closely. A drained server can look calm although its neighbour is not:
each time that sending it requests again proves so, the next wait is twice as long, up to `MAX_DWELL_S`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from slackwater.messages import State

OF = 3
NEEDED = 2
REOPENS_WITHIN_S = 10.0
"""An episode that begins this soon after the end of the one before doubles the dwell; a later one resets it."""
MAX_DWELL_S = 30.0
RESIDUAL_OF = 10
RESIDUAL_NEEDED = 2
"""So many of the last ticks must show something on a server without requests to hold its episode: measured, a neighbour
shows in about a third of them; the machine's own little jobs show in one of twenty."""
THIN_FACTOR = 2.0
"""On a server without requests fewer signals live, so it must look calm for this many times the dwell."""


@dataclass(frozen=True)
class Status:
    """What a node is in."""

    state: State
    since_unix_s: float
    episode: int
    """Number of the node's episode, from 1; 0 before the first. In `calm` that of the last one."""
    said: str
    """The state machine's say in words; empty in a calm without history."""
    began: bool = False
    """True on the tick on which the state changed."""


class StateMachine:
    """One node's state. `now_s` is monotonic; `label_unix_s` is the wall time that goes into `since`."""

    def __init__(self, calm_dwell_s: float, now_s: float, label_unix_s: float) -> None:
        self.calm_dwell_s = calm_dwell_s
        self.dwell_s = calm_dwell_s
        self.state: State = "calm"
        self.since_s = now_s
        self.since_unix_s = label_unix_s
        self.episode = 0
        self._last: deque[State] = deque(maxlen=OF)
        self._residual: deque[bool] = deque(maxlen=RESIDUAL_OF)
        self._ended_s: float | None = None
        self._calm_from_s: float | None = None

    def step(
        self,
        now_s: float,
        label_unix_s: float,
        seen: State,
        *,
        wary: bool = False,
        thin: bool = False,
        residual: str = "",
    ) -> Status:
        """Takes one tick in.

        `seen` is what the tick looks like by itself; `thin` says that only little can show, since the server has no
        requests; `residual` names what shows of a neighbour even so. With requests they tell, and it is not asked.
        `wary` asks for 3 of 3 ticks: a node without a baseline of its own may just be starting.
        """
        if self.state == "unknown":
            self._change("calm", now_s, label_unix_s)
        self._last.append(seen)
        if seen not in ("calm", self.state) and self._last.count(seen) >= (OF if wary else NEEDED):
            said = f"{self._last.count(seen)} of the last {len(self._last)} ticks"
            self._begin(seen, now_s, label_unix_s)
            return self._status(said, began=True)
        if self.state == "calm":
            return self._status("")
        if seen != "calm":
            self._calm_from_s = None
            return self._status(f"episode {self.episode}, for {now_s - self.since_s:.1f} s")
        neighbour = self.state == "interference"
        if thin and neighbour:
            self._residual.append(bool(residual))
            if residual and sum(self._residual) >= RESIDUAL_NEEDED:
                self._calm_from_s = None
                return self._status(f"held: {residual}")
        if self._calm_from_s is None:
            self._calm_from_s = now_s
        thin = thin and neighbour
        dwell_s = min(MAX_DWELL_S, self.dwell_s * (THIN_FACTOR if thin else 1.0))
        calm_s = now_s - self._calm_from_s
        if calm_s < dwell_s:
            why = ", longer since it has no requests" if thin else ""
            return self._status(f"held: looks calm for {calm_s:.1f} of {dwell_s:.1f} s{why}")
        self._ended_s = now_s
        self._change("calm", now_s, label_unix_s)
        return self._status(f"episode {self.episode} ended: calm for {calm_s:.1f} s", began=True)

    def lost(self, now_s: float, label_unix_s: float, for_s: float) -> Status:
        """The node has sent nothing for `for_s` seconds."""
        began = self.state != "unknown"
        if began:
            if self.state != "calm":
                self._ended_s = now_s
            self._change("unknown", now_s, label_unix_s)
        return self._status(f"no Sample for {for_s:.1f} s", began=began)

    def _begin(self, state: State, now_s: float, label_unix_s: float) -> None:
        if self.state == "calm":
            self.episode += 1
            soon = self._ended_s is not None and now_s - self._ended_s <= REOPENS_WITHIN_S
            self.dwell_s = min(MAX_DWELL_S, self.dwell_s * 2) if soon else self.calm_dwell_s
        self._change(state, now_s, label_unix_s)

    def _change(self, state: State, now_s: float, label_unix_s: float) -> None:
        self.state, self.since_s, self.since_unix_s = state, now_s, label_unix_s
        self._calm_from_s = None
        self._last.clear()
        self._residual.clear()

    def _status(self, said: str, began: bool = False) -> Status:
        return Status(self.state, self.since_unix_s, self.episode, said, began)
